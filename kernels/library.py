"""Registration of the operators with torch, so that compilers and fake tensors see one opaque call each.

Operators are defined through `torch.library.Library` rather than `torch.library.custom_op`: the same registration with
less work per call. None of them changes its inputs or returns a view of one, and none has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ensemble_decode.kernels.types import FuseSettings, VocabTensors
from torch import Tensor

NAMESPACE = "ensemble_decode"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def register(schema: str, implementation: Callable, fake: Callable) -> Any:
    """Define `schema`, run it with `implementation` on every device, trace it with `fake`; returns the operator."""
    name = schema.split("(", 1)[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def plain(tensor: Tensor) -> Tensor:
    """The tensor without the graph behind it: operators have no derivative, and backends export the memory as it is."""
    return tensor.detach() if tensor.requires_grad else tensor


VOCAB_SCHEMA = (
    "Tensor[] to_cid, Tensor[] exact_id, Tensor[] piece_id, Tensor[] allowed, Tensor[] eos_ids, "
    "Tensor prefix_end, int space_cid"
)
"""A vocabulary in an operator's schema; tuples of tensors cannot cross it, lists can."""


def flat_vocab(vocab: VocabTensors) -> tuple[Any, ...]:
    """The arguments that VOCAB_SCHEMA names."""
    lists = (vocab.to_cid, vocab.exact_id, vocab.piece_id, vocab.allowed, vocab.eos_ids)
    return (*(list(tensors) for tensors in lists), vocab.prefix_end, vocab.space_cid)


def built_vocab(flat: Sequence[Any]) -> VocabTensors:
    """The vocabulary again."""
    to_cid, exact_id, piece_id, allowed, eos_ids, prefix_end, space_cid = flat
    size = prefix_end.shape[0]
    return VocabTensors(to_cid, exact_id, piece_id, allowed, eos_ids, prefix_end, space_cid, size)


def built_settings(flat: Sequence[Tensor]) -> FuseSettings:
    """Settings from the list of their fields."""
    return FuseSettings(*flat)
