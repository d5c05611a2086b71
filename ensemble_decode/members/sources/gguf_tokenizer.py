"""The tokenizer of a GGUF file, with the pre-tokenizer that the file names.

A GGUF file names the way its text is split before the merges (``tokenizer.ggml.pre``). transformers builds some of them
and silently takes GPT-2's for the rest, which gives other ids than the original tokenizer: SmolLM2's splits every digit
off.
"""

from pathlib import Path
from typing import Any

# Split like GPT-2, after every digit has been split off on its own.
_DIGITS_THEN_GPT2 = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# Split like GPT-2: what transformers builds where it knows nothing better.
_GPT2 = frozenset(
    {"gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-es", "jina-de", "gigachat", "trillion"}
)


def load_gguf_tokenizer(path: Path, kind: str | None, pre: str | None) -> tuple[Any, list[str]]:
    """The tokenizer of the GGUF file at ``path``, and warnings about it.

    ``kind`` and ``pre`` are the file's ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre``. There is a warning where the
    pre-tokenizer is not known here, since ids may then differ from the original tokenizer's.
    """
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if kind != "gpt2":  # only byte-level BPE is split by `pre`; SentencePiece vocabularies are not
        return tokenizer, []
    if pre in _DIGITS_THEN_GPT2:
        _split_digits(tokenizer)
    elif pre not in _GPT2 and pre not in GGUF_PRE_TOKENIZER_SPLITS:
        return tokenizer, [
            f"the pre-tokenizer {pre!r} (tokenizer.ggml.pre) is not known; text is split as GPT-2 splits it; ids "
            f"may differ from the original tokenizer's, most likely around digits, punctuation, accents and runs of "
            f"spaces. The original model's folder or hub id gives exact ids."
        ]
    return tokenizer, []


def _split_digits(tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
