"""The engines that ``bench_peers.py`` compares, each in a process of its own.

Run with the interpreter of the environment in which an engine is installed: nothing but the standard library is
imported before the engine is known. A worker reads one JSON line per measurement from standard input, ``{"batch": 8,
"tokens": 48}``, and answers with ``{"seconds": ..., "tokens": ...}``. Between measurements it waits without a thread
that spins.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Write = Callable[[Sequence[Sequence[int]], int], int]
"""Writes ``tokens`` tokens behind every prompt; returns how many were written."""


def prompts(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """``batch`` prompts of ``length`` ids, no two of which begin alike."""
    return [
        [(row * 7919 + place * 104_729 + 11) % (vocabulary - 512) + 256 for place in range(length)]
        for row in range(batch)
    ]


def ours(settings: dict[str, Any]) -> tuple[Write, str]:
    """This package: ``Single`` on an ensemble of one model whose texts never end."""
    import torch

    import ensemble_decode as ed
    from ensemble_decode.bench.subjects import load_endless
    from ensemble_decode.members.transformers.loading import load_all

    torch.set_num_threads(settings["threads"])
    ensemble = load_endless(load_all([settings["model"]], dtype="bfloat16"))

    def write(rows: Sequence[Sequence[int]], tokens: int) -> int:
        done = ensemble.generate(
            [ed.TokenPrompt([list(row)]) for row in rows],
            method=ed.Single(0),
            max_new_tokens=tokens,
            batch_size=len(rows),
            errors="raise",
        )
        return sum(len(one.token_ids) for one in done)

    return write, ed.__version__


def transformers(settings: dict[str, Any]) -> tuple[Write, str]:
    """``model.generate`` of transformers."""
    import torch
    import transformers as library

    torch.set_num_threads(settings["threads"])
    model = library.AutoModelForCausalLM.from_pretrained(settings["folder"], dtype=torch.bfloat16).eval()

    def write(rows: Sequence[Sequence[int]], tokens: int) -> int:
        ids = torch.tensor([list(row) for row in rows])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens
            )
        return int(out[:, ids.shape[1] :].numel())

    return write, library.__version__


def vllm(settings: dict[str, Any]) -> tuple[Write, str]:
    """vLLM's offline engine."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{settings['threads'] - 1}")
    import vllm as library

    model = library.LLM(settings["folder"], dtype="bfloat16", max_model_len=1024, disable_log_stats=True)

    def write(rows: Sequence[Sequence[int]], tokens: int) -> int:
        sampling = library.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        done = model.generate([{"prompt_token_ids": list(row)} for row in rows], sampling, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in done)

    return write, library.__version__


def llama_cpp(settings: dict[str, Any]) -> tuple[Write, str]:
    """llama.cpp's server in this process (the package xllamacpp), one slot per row; the GGUF file as it is."""
    from importlib.metadata import version

    import xllamacpp as library

    asked = library.CommonParams()
    asked.model.path = settings["gguf"]
    asked.n_parallel = settings["most_rows"]
    asked.n_ctx = settings["most_rows"] * settings["context"]
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = settings["threads"]
    server = library.Server(asked)

    def complete(ids: Sequence[int], tokens: int) -> int:
        told = server.handle_completions(
            {"prompt": list(ids), "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        )
        return int(told["usage"]["completion_tokens"])

    def write(batch: Sequence[Sequence[int]], tokens: int) -> int:
        with ThreadPoolExecutor(len(batch)) as pool:
            return sum(pool.map(lambda ids: complete(ids, tokens), batch))

    return write, f"xllamacpp {version('xllamacpp')}"


ENGINES = {"ensemble-decode": ours, "transformers": transformers, "vllm": vllm, "llama.cpp": llama_cpp}


def main() -> None:
    """A worker: ``peers.py ENGINE SETTINGS``."""
    engine, settings = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # libraries may print
    os.dup2(2, 1)
    write, version = ENGINES[engine](settings)
    print(json.dumps({"version": version}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        rows = prompts(asked["batch"], settings["prompt"], settings["vocabulary"])
        began = time.perf_counter()
        written = write(rows, asked["tokens"])
        took = time.perf_counter() - began
        print(json.dumps({"seconds": took, "tokens": written}), file=answers)


if __name__ == "__main__":
    main()
