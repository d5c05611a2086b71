"""One model on one device: rows in cache slots, ragged extension, rollback, logits where they are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ensemble_decode import attention as attention_module
from ensemble_decode import plan
from ensemble_decode.body import Body
from ensemble_decode.buckets import Buckets
from ensemble_decode.cache import SlotCache
from ensemble_decode.errors import ContextError, InputError
from ensemble_decode.rollback_support import check_model, context_length

if TYPE_CHECKING:
    from ensemble_decode.vocab import ModelVocab


@dataclass(frozen=True)
class Logits:
    """Logits of the positions asked for. ``values`` ``[R, V]`` in the model's dtype, rows in the order of the call; row ``r``
    has ``values[starts[r]:starts[r + 1]]``, in text order."""

    values: torch.Tensor
    starts: list[int]


@dataclass
class RunnerStats:
    """Work so far. ``tokens``: ids forwarded; ``forwards``: calls of the decoder; ``seconds``: host clock around them, or
    device time between CUDA events on a GPU."""

    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0


class Runner:
    """One causal model: ``acquire`` a slot per row, ``extend`` rows by new ids, ``rollback`` any row to any shorter length.

    ``model``: a transformers causal LM, already on its device. ``attention``: "auto", "sdpa" or "flash". ``compile``: steps of
    few tokens run through ``torch.compile``. ``max_slots``, ``block``, ``memory_limit`` (bytes): of the KV cache.
    Raises ``ModelError`` for models whose state cannot be rolled back.
    """

    def __init__(
        self,
        model: Any,
        vocab: ModelVocab | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        attention: str = "auto",
        compile: bool = False,
        max_slots: int | None = None,
        block: int = 256,
        memory_limit: int | None = None,
        chunk_tokens: int = 2048,
        name: str = "model",
    ):
        check_model(model, name)
        if device is not None or dtype is not None:
            model = model.to(device=device, dtype=dtype)
        self.model = model.eval()
        self.vocab = vocab
        self.name = name
        self.config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.context_length = context_length(model.config)
        self.chunk_tokens = chunk_tokens
        self.attention = attention_module.status(attention, self.device, self.dtype, name)
        self._flash = attention_module.flash_function() if self.attention.kind == "flash" else None
        self._body = Body(model, name)
        shapes = self._body.record_shapes()
        self._body.use_our_attention()
        self.cache = SlotCache(
            [shapes[layer] for layer in sorted(shapes)],
            self.device,
            block=block,
            max_slots=max_slots,
            memory_limit=memory_limit,
            name=name,
        )
        self._heads = [shape.heads for shape in self.cache.shapes]
        self._buckets = Buckets(key_block=64 if self.device.type == "cuda" else 1)
        self.stats = RunnerStats()

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self) -> int:
        """A free slot with length 0; the cache grows by whole blocks where none is free."""
        return self.cache.acquire()

    def release(self, slot: int) -> None:
        self.cache.release(slot)

    def length(self, slot: int) -> int:
        return self.cache.length(slot)

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a row to ``length`` tokens in O(1); longer than there is: ``CacheError``."""
        self.cache.rollback(slot, length)

    def reserve(self, slots: int, length: int) -> None:
        """Allocate the cache for ``slots`` rows of ``length`` tokens at once instead of growing into it."""
        self.cache.reserve(slots, min(length, self.context_length))

    # -- forwards ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def extend(
        self,
        slots: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        logits: str | Sequence[int] = "last",
    ) -> Logits:
        """Append ``new_ids[r]`` to the row in ``slots[r]`` and return the logits behind the positions asked for.

        ``logits``: "last" (one per row, which then needs at least one new id), "all", "none", or per row the number of
        trailing new positions. Rows may differ in length and come in any order; a row may be empty where nothing is asked of it.
        Raises ``InputError``, ``ContextError`` or ``CacheError`` before anything has changed.
        """
        counts = [len(ids) for ids in new_ids]
        wanted = self._wanted(slots, counts, logits)
        starts = self._check(slots, new_ids, counts)
        begun = time.perf_counter()
        read: dict[int, list[torch.Tensor]] = {}
        forwards = plan.chunks(slots, starts, counts, self.chunk_tokens)
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self.cache.touch(slot, start + count)
        for pieces in forwards:
            self._forward(pieces, new_ids, counts, wanted, read)
        for slot, count in zip(slots, counts, strict=True):
            self.cache.advance(slot, count)
        out = self._head(read, wanted)
        self.stats.tokens += sum(counts)
        self.stats.forwards += len(forwards)
        self.stats.seconds += time.perf_counter() - begun
        return out

    def _wanted(self, slots: Sequence[int], counts: Sequence[int], logits: str | Sequence[int]) -> list[int]:
        """How many trailing positions of each row are read."""
        if len(counts) != len(slots):
            raise InputError(f"{self.name}: {len(slots)} slots but {len(counts)} lists of new ids")
        if isinstance(logits, str):
            kinds = {"last": [1] * len(counts), "all": list(counts), "none": [0] * len(counts)}
            if logits not in kinds:
                raise InputError(f"logits={logits!r} is not known; use 'last', 'all', 'none' or a count per row")
            wanted = kinds[logits]
        else:
            wanted = list(logits)
        if len(wanted) != len(counts):
            raise InputError(f"{self.name}: {len(counts)} rows but {len(wanted)} counts of logits")
        for row, (want, count) in enumerate(zip(wanted, counts, strict=True)):
            if not 0 <= want <= count:
                raise InputError(
                    f"{self.name}: logits of {want} trailing positions asked for in row {row}, which adds {count} ids"
                )
        return wanted

    def _check(self, slots: Sequence[int], new_ids: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        """Every reason to refuse, before anything changes; makes room in the cache. Returns the rows' lengths."""
        if len(set(slots)) != len(slots):
            raise InputError(f"{self.name}: a slot appears twice in {list(slots)}; join its ids into one row")
        starts = [self.cache.length(slot) for slot in slots]
        size = self._body.vocab_size
        for row, (ids, start, count) in enumerate(zip(new_ids, starts, counts, strict=True)):
            if start + count > self.context_length:
                raise ContextError(
                    f"{self.name}: row {row} (slot {slots[row]}) would have {start + count} tokens, the context length is "
                    f"{self.context_length}"
                )
            if count and not (min(ids) >= 0 and max(ids) < size):
                raise InputError(f"{self.name}: row {row} has a token id outside 0..{size - 1}")
        self.cache.reserve(self.cache.slots, max((s + c for s, c in zip(starts, counts, strict=True)), default=0))
        return starts

    def _forward(
        self,
        pieces: list[plan.Piece],
        new_ids: Sequence[Sequence[int]],
        counts: Sequence[int],
        wanted: Sequence[int],
        read: dict[int, list[torch.Tensor]],
    ) -> None:
        """One call of the decoder; adds to ``read`` the hidden states behind the positions that are wanted."""
        step, places = plan.build(
            pieces,
            new_ids,
            heads=self._heads,
            slots_allocated=self.cache.slots,
            capacity=self.cache.capacity,
            buckets=self._buckets,
            device=self.device,
        )
        step.stores, step.flash = self.cache.layers, self._flash
        hidden = self._body.hidden(step)
        for piece in pieces:
            skipped = max(counts[piece.row] - wanted[piece.row] - piece.offset, 0)
            if skipped < piece.count:
                at = places[piece.row]
                read.setdefault(piece.row, []).append(hidden[at + skipped : at + piece.count])

    def _head(self, read: dict[int, list[torch.Tensor]], wanted: Sequence[int]) -> Logits:
        starts = [0]
        for want in wanted:
            starts.append(starts[-1] + want)
        parts = [part for row in range(len(wanted)) for part in read.get(row, ())]
        if not parts:
            empty = torch.empty(0, self._body.vocab_size, dtype=self.dtype, device=self.device)
            return Logits(empty, starts)
        return Logits(self._body.logits(torch.cat(parts) if len(parts) > 1 else parts[0]), starts)
