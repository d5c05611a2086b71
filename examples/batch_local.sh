#!/usr/bin/env bash
# A file of prompts through two models. Stop it at any time and run it again: it goes on.
set -euo pipefail
folder=${1:-.}

cat > "$folder/prompts.jsonl" <<'LINES'
{"id": "a", "prompt": "The capital of France is", "max_new_tokens": 8}
{"id": "b", "prompt": "1, 2, 3, 4,", "stop": ["\n"]}
{"id": "c", "messages": [{"role": "user", "content": "Name a colour."}], "method": "safe(draft_length=3)"}
{"id": "d", "prompt": "Once upon a time", "temperature": 0.8, "seed": 7}
LINES

ensemble-decode batch "$folder/prompts.jsonl" "$folder/answers.jsonl" \
    --model demo:smollm2 --model demo:gemma3 --max-new-tokens 24 --memory 1GiB --no-template
cat "$folder/answers.jsonl"
