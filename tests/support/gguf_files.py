"""Small GGUF files, written for a test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 64, 2, 4, 2, 96


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable spelling of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in spelled]
    return spelled | {byte: chr(256 + n) for n, byte in enumerate(others)}


SPELL = byte_alphabet()
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ã ©"]
SPECIALS = ["<|end|>", "<|start|>", "<|turn|>"]
TOKENS = [SPELL[b] for b in range(256)] + [m.replace(" ", "") for m in MERGES] + SPECIALS
END, TURN = len(TOKENS) - 3, len(TOKENS) - 1
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # types of tokens


@dataclass(frozen=True)
class FileVocab:
    """What a GGUF file says about its tokenizer; ``merges`` None and ``scores`` None: not in the file."""

    model: str
    pre: str | None
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str] | None
    scores: Sequence[float] | None = None
    eos: int = 0
    eot: int | None = None

    def with_added(self, **kinds: Sequence[str]) -> "FileVocab":
        """The same with further tokens: ``user_defined``, ``control``, ``normal``."""
        tokens, types = list(self.tokens), list(self.types)
        for kind, more in kinds.items():
            tokens += more
            types += [{"user_defined": USER_DEFINED, "control": CONTROL, "normal": NORMAL}[kind]] * len(more)
        scores = None if self.scores is None else [*self.scores, *[0.0] * (len(tokens) - len(self.tokens))]
        return FileVocab(self.model, self.pre, tokens, types, self.merges, scores, self.eos, self.eot)


BYTE_LEVEL = FileVocab(
    "gpt2", "smollm", TOKENS, [NORMAL] * (len(TOKENS) - 3) + [CONTROL] * 3, MERGES, eos=END, eot=TURN
)


def write_gguf(path: Path, *, vocab: FileVocab = BYTE_LEVEL, kind: str = "q8", seed: int = 0, arch: str = "llama"):
    """A tiny model of the Llama or Gemma 3 family; returns the arrays that were written, by GGUF name."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocab.tokens))
    writer.add_tokenizer_model(vocab.model)
    if vocab.pre is not None:
        writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    if vocab.scores is not None:
        writer.add_token_scores(vocab.scores)
    if vocab.merges is not None:
        writer.add_token_merges(vocab.merges)
    writer.add_eos_token_id(vocab.eos)
    if vocab.eot is not None:
        writer.add_eot_token_id(vocab.eot)
    shapes = {"token_embd.weight": (len(vocab.tokens), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{layer}.attn_v.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    written = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1 or kind == "f32":
            writer.add_tensor(name, values)
        elif kind == "f16":
            values = values.astype(np.float16)
            writer.add_tensor(name, values)
        else:
            packed = quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            values = dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
        written[name] = torch.from_numpy(values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written
