"""One model on one device: rows in cache slots, ragged extension, rollback, logits where they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ensemble_decode.errors import ContextError, InputError, ModelError
from ensemble_decode.members.protocol import Capabilities, Logits
from ensemble_decode.members.transformers import attention as attention_module
from ensemble_decode.members.transformers import load_check, packing, token_trees
from ensemble_decode.members.transformers.body import Body
from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.clock import SectionClock
from ensemble_decode.members.transformers.few_rows import helps as few_rows_helps
from ensemble_decode.members.transformers.few_rows import use_few_rows_linear
from ensemble_decode.members.transformers.graphs import CompiledSteps, StepGraphs
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.rollback_support import check_model, check_windows, context_length
from ensemble_decode.members.tree import Tree

if TYPE_CHECKING:
    from ensemble_decode.vocab.aligned import ModelVocab

SMALL_STEP = 64  # tokens; larger steps are bound by arithmetic and run eagerly, whatever their shape


class RunnerStats:
    """Work so far. ``tokens``: ids forwarded; ``forwards``: calls of the decoder; ``seconds``: spent in them and the head.

    ``reused``: ids that did not have to be forwarded, for another row had begun with them.
    """

    def __init__(self, device: torch.device):
        self.tokens = 0
        self.forwards = 0
        self.reused = 0
        self.clock = SectionClock(device)

    @property
    def seconds(self) -> float:
        return self.clock.seconds


class Runner:
    """One causal model: ``acquire`` a slot per row, ``extend`` rows by new ids, ``rollback`` any row to any shorter length.

    ``model``: a transformers causal LM. ``device``, ``dtype``: where it goes (None: where it is). ``attention``: "auto",
    "sdpa" or "flash". ``compile``: steps of up to 64 tokens run through ``torch.compile``, their shapes rounded to few.
    ``graphs``: such steps are captured as CUDA graphs. ``few_rows``: linear layers of a
    model on a CPU go through ``cpu_linear`` from a few rows on (None: where that is faster). ``max_slots``, ``block`` (positions), ``memory`` (bytes): of
    the KV cache. ``chunk_tokens``: the most tokens in one forward. ``name``: what errors call the model.
    Raises ``ModelError`` for a model that cannot be rolled back or is not understood (docs/caches.md).
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
        graphs: bool = False,
        few_rows: bool | None = None,
        max_slots: int | None = None,
        block: int = 256,
        memory: int | None = None,
        chunk_tokens: int = 2048,
        name: str = "model",
    ):
        check_model(model, name)
        if chunk_tokens < 1:
            raise InputError(f"{name}: chunk_tokens must be at least 1, got {chunk_tokens}")
        if device is not None or dtype is not None:
            model = model.to(device=device, dtype=dtype)
        self.model = model.eval()
        self.vocab = vocab
        self.name = name
        self.config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.chunk_tokens = chunk_tokens
        if graphs and self.device.type != "cuda":
            raise ModelError(f"{name}: graphs=True needs a CUDA device, the model is on {self.device.type}")
        self.attention = attention_module.status(attention, self.device, self.dtype, name)
        self._flash = attention_module.flash_function() if self.attention.kind == "flash" else None
        if few_rows or (few_rows is None and few_rows_helps(self.dtype, self.device)):
            use_few_rows_linear(model)
        self._body = Body(model, name)
        self.context_length = context_length(model.config, name)
        shapes = self._body.record_shapes()
        self._heads = sorted({shape.heads for shape in shapes})
        self._eager = Buckets(key_block=64 if self.device.type == "cuda" else 1)
        self._padded = Buckets(padded=True, key_block=64)
        hidden = CompiledSteps(self._body.hidden) if compile else self._body.hidden
        self.compiled = hidden if isinstance(hidden, CompiledSteps) else None
        self.graphs = StepGraphs(hidden) if graphs else None
        self.stats = RunnerStats(self.device)
        self.capabilities = Capabilities()
        self._check_model(shapes)
        self.cache = SlotCache(
            shapes,
            self.device,
            block=block,
            max_slots=max_slots,
            max_length=None if self._flash else self.context_length,  # flash-attn appends padding behind a row's end
            memory_limit=memory,
            name=name,
        )

    def _check_model(self, shapes: list[Any]) -> None:
        """Prove on a throw-away cache that the model answers from row slots as it does alone."""
        rows = load_check.probe_ids(min(self._body.id_limit, self._body.vocab_size))
        expected = load_check.own_logits(self.model, rows, self.device)
        self._body.use_our_attention()
        compiled, self.compiled, graphs, self.graphs = self.compiled, None, self.graphs, None
        self.cache = SlotCache(shapes, self.device, block=16, slot_block=2, name=self.name)
        self._windows: dict[int, int | None] | None = {}
        load_check.check_against(self, type(self.model).__name__, rows, expected)
        check_windows(self.config, self._windows, len(shapes), self.name)
        self._windows = None
        self.compiled, self.graphs = compiled, graphs
        self.stats = RunnerStats(self.device)

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Sequence[int] | None = None) -> int:
        """A free slot; the cache grows by whole blocks where none is free.

        Its length is 0, or with ``ids`` (what the row is to hold) as many of them as another row acquired so begins with:
        at least ``prefixes.SHORTEST``, never the last.
        """
        slot = self.cache.acquire(ids)
        self.stats.reused += self.cache.length(slot)
        return slot

    def take_over(self, slot: int, ids: Sequence[int]) -> int:
        """Look again for the beginning of ``ids`` in other slots, for a slot that is still empty; its length then."""
        found = self.cache.take_over(slot, ids)
        self.stats.reused += found
        return found

    def release(self, slot: int) -> None:
        """Give a slot back; its content is gone."""
        self.cache.release(slot)

    def length(self, slot: int) -> int:
        """Tokens that the row holds."""
        return self.cache.length(slot)

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a row to ``length`` tokens in O(1); longer than there is: ``CacheError``."""
        self.cache.rollback(slot, length)

    def reserve(self, slots: int, length: int) -> None:
        """Allocate the cache for ``slots`` rows of ``length`` tokens at once instead of growing into it."""
        self.cache.reserve(slots, min(length, self.context_length))

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``ids`` that some slot already holds; 0 where too few to be worth a copy."""
        return self.cache.shared(ids)

    def forget(self) -> None:
        """Let nothing that slots hold now be taken over by other rows; to be called when weights or adapters change."""
        self.cache.forget()

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes over all layers."""
        return self.cache.bytes_per_token

    @property
    def bytes_allocated(self) -> int:
        """Bytes held for keys and values, used or not."""
        return self.cache.bytes_allocated

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at once since ``watch_peak``, copies while growing included."""
        return self.cache.peak_bytes

    def watch_peak(self) -> None:
        """Count ``peak_bytes`` anew from here."""
        self.cache.peak_bytes = self.cache.bytes_allocated

    @property
    def memory(self) -> int | None:
        """Bytes that the cache may have allocated; None: no limit."""
        return self.cache.memory_limit

    def limit_memory(self, limit: int | None) -> None:
        """Set ``memory``."""
        self.cache.memory_limit = limit

    def limit_peak(self, peak: int) -> None:
        """Keep the cache below ``peak`` bytes at any moment, growing included. Never loosens ``memory``."""
        if self.cache.bytes_allocated > peak and not self.cache.held:
            self.cache.reset()
        self.cache.memory_limit = min(self.cache.limit_for_peak(peak), self.cache.memory_limit or peak)

    @property
    def limited(self) -> bool:
        """Whether memory or a number of slots bounds the rows it can hold."""
        return self.cache.memory_limit is not None or self.cache.max_slots is not None

    @property
    def held(self) -> int:
        """Slots that rows hold."""
        return self.cache.held

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.cache.longest

    def could_hold(self, rows: int, length: int) -> bool:
        """Whether the limits allow ``rows`` rows of ``length`` tokens; a length past the context counts as the context."""
        return self.cache.could_hold(rows, self.cache.within_context(length))

    def make_room(self, rows: int, length: int, *, ahead: int, most: int) -> Mapping[int, int]:
        """Shape the cache for what a round may add (see ``Member.make_room``).

        A cache is one block ``[slots, positions]``, so its longest row sets the positions of all: where slots are wanted and a long
        row has gone, the block is cut to what the rows need.
        """
        cache = self.cache
        length, ahead = cache.within_context(length), cache.within_context(ahead)
        if rows <= cache.slots and length <= cache.capacity:
            return {}
        if cache.could_hold(max(rows, cache.slots), max(length, cache.capacity)):
            roomy = cache.could_hold(max(rows, cache.slots), max(ahead, cache.capacity))
            cache.grow(rows, ahead if roomy else length)
            return {}
        length = ahead if cache.could_hold(rows, ahead) else length
        while rows < most and cache.could_hold(rows + 1, length):
            rows += 1
        return cache.reshape(rows, length)

    def free_memory(self) -> None:
        """Let go of all cache memory, where no slot is held."""
        if not self.cache.held:
            self.cache.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def why_not(self, rows: int, length: int) -> str | None:
        """The figures that make ``could_hold`` false; None where it is true."""
        return self.cache.why_not(rows, self.cache.within_context(length))

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
        trailing new positions. Rows may differ in length and come in any order; a row may be empty where nothing is
        asked of it. Raises ``InputError``, ``ContextError`` or ``CacheError`` before any row has changed.
        """
        counts = [len(ids) for ids in new_ids]
        wanted = self._wanted(slots, counts, logits)
        starts = self._check(slots, new_ids, counts)
        forwards = packing.chunks(slots, starts, counts, self.chunk_tokens)
        read: dict[int, list[torch.Tensor]] = {}
        with self.stats.clock:
            for pieces in forwards:
                self._forward(pieces, new_ids, counts, wanted, read)
            out = self._head(read, wanted)
        for slot, ids in zip(slots, new_ids, strict=True):
            self.cache.advance(slot, len(ids), ids)
        self.stats.tokens += sum(counts)
        self.stats.forwards += len(forwards)
        return out

    @torch.no_grad()
    def read_trees(self, slots: Sequence[int], trees: Sequence[Tree]) -> Logits:
        """Read several continuations of each row, ``trees[r]`` behind the cached tokens of the row in ``slots[r]``, in one forward.

        Returns the logits behind every tree's ``wanted`` nodes, in that order. The rows stay as they are; ``keep_paths``
        may make one path of each tree part of its row. Attends through SDPA, whatever else the runner uses. Raises
        ``InputError``, ``ContextError`` or ``CacheError`` before anything has changed.
        """
        parts = token_trees.forwards(slots, trees, self.cache, self.chunk_tokens, self.context_length, self.name)
        read: dict[int, list[torch.Tensor]] = {}
        with self.stats.clock:
            for pieces in parts:
                step, places = token_trees.build(
                    pieces, trees, heads=self._heads, cache=self.cache, buckets=self._eager, device=self.device
                )
                hidden = self._body.hidden(step)
                for piece in pieces:
                    at = [places[piece.row] + node for node in trees[piece.row].wanted]
                    if at:
                        read[piece.row] = [hidden[torch.tensor(at, device=self.device)]]
            out = self._head(read, [len(tree.wanted) for tree in trees])
        self.stats.tokens += sum(piece.count for pieces in parts for piece in pieces)
        self.stats.forwards += len(parts)
        return out

    @torch.no_grad()
    def keep_paths(self, slots: Sequence[int], trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> None:
        """After ``read_trees``: cut each row at the fork of ``paths[r]`` (nodes of its tree) and append that path's tokens."""
        token_trees.keep(slots, trees, paths, self.cache)

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
                    f"{self.name}: row {row} adds {count} ids, so logits of {want} positions cannot be given"
                )
        return wanted

    def _check(self, slots: Sequence[int], new_ids: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        """Every reason to refuse, before anything changes; then room in the cache. Returns the rows' lengths."""
        if len(set(slots)) != len(slots):
            raise InputError(f"{self.name}: a slot appears twice in {list(slots)}; join its ids into one row")
        starts = [self.cache.length(slot) for slot in slots]
        limit = self._body.id_limit
        for row, (ids, start, count) in enumerate(zip(new_ids, starts, counts, strict=True)):
            if start + count > self.context_length:
                raise ContextError(
                    f"{self.name}: row {row} (slot {slots[row]}) would have {start + count} tokens, the context length is "
                    f"{self.context_length}"
                )
            if count and not (min(ids) >= 0 and max(ids) < limit):
                raise InputError(f"{self.name}: row {row} has a token id outside 0..{limit - 1}")
        # flash-attn appends padded queries too, behind their rows' ends
        padding = self._padded.queries(max(counts, default=0)) if self._flash is not None else 0
        ends = [start + max(count, padding if count else 0) for start, count in zip(starts, counts, strict=True)]
        self.cache.grow(length=max(ends, default=0))
        for slot, end in zip(slots, ends, strict=True):
            self.cache.touch(slot, end)
        return starts

    def _forward(
        self,
        pieces: list[packing.Piece],
        new_ids: Sequence[Sequence[int]],
        counts: Sequence[int],
        wanted: Sequence[int],
        read: dict[int, list[torch.Tensor]],
    ) -> None:
        """One call of the decoder; adds to ``read`` the hidden states behind the positions that are wanted."""
        few_shapes = self.compiled is not None or self.graphs is not None
        small = few_shapes and sum(piece.count for piece in pieces) <= SMALL_STEP
        step, places = packing.build(
            pieces,
            new_ids,
            heads=self._heads,
            slots_allocated=self.cache.slots,
            capacity=self.cache.capacity,
            buckets=self._padded if small else self._eager,
            device=self.device,
        )
        step.stores, step.flash, step.windows = self.cache.layers, self._flash, self._windows
        hidden = self._hidden(step, small)
        for piece in pieces:
            skipped = max(counts[piece.row] - wanted[piece.row] - piece.offset, 0)
            if skipped < piece.count:
                at = places[piece.row]
                read.setdefault(piece.row, []).append(hidden[at + skipped : at + piece.count])

    def _hidden(self, step: packing.Step, small: bool) -> torch.Tensor:
        if small and self.graphs is not None:
            return self.graphs(step, self.cache.generation)
        if small and self.compiled is not None:
            return self.compiled(step)
        return self._body.hidden(step)

    def _head(self, read: dict[int, list[torch.Tensor]], wanted: Sequence[int]) -> Logits:
        starts = [0]
        for want in wanted:
            starts.append(starts[-1] + want)
        parts = [part for row in range(len(wanted)) for part in read.get(row, ())]
        if not parts:
            empty = torch.empty(0, self._body.vocab_size, dtype=self.dtype, device=self.device)
            return Logits(empty, starts)
        return Logits(self._body.logits(torch.cat(parts) if len(parts) > 1 else parts[0]), starts)
