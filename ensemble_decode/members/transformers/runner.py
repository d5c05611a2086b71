"""A transformers model as a member: rows in cache slots, ragged extension, rollback, logits where they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members import requests
from ensemble_decode.members.protocol import Capabilities, Logits
from ensemble_decode.members.transformers import attention as attention_module
from ensemble_decode.members.transformers import load_check, packing, token_trees
from ensemble_decode.members.transformers.body import Body
from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.cache_size import CacheLimits
from ensemble_decode.members.transformers.clock import SectionClock
from ensemble_decode.members.transformers.few_rows import helps as few_rows_helps
from ensemble_decode.members.transformers.few_rows import use_few_rows_linear
from ensemble_decode.members.transformers.graphs import CompiledSteps, StepGraphs
from ensemble_decode.members.transformers.kv_cache import SlotCache
from ensemble_decode.members.transformers.layer_store import LayerShape
from ensemble_decode.members.transformers.rollback_support import check_model, check_windows, context_length
from ensemble_decode.members.tree import Tree
from ensemble_decode.vocab.model import ModelVocab

SMALL_STEP = 64  # tokens; larger steps are bound by arithmetic and run eagerly, whatever their shape


class RunnerStats:
    """What a runner has done so far.

    Args:
        device: The device whose time counts.

    Attributes:
        tokens: Ids that were forwarded.
        forwards: Calls of the decoder.
        reused: Ids that did not have to be forwarded, since another row had begun with them.
        clock: Runs during forwards and the head.
    """

    def __init__(self, device: torch.device):
        self.tokens = 0
        self.forwards = 0
        self.reused = 0
        self.clock = SectionClock(device)

    @property
    def seconds(self) -> float:
        """Seconds spent in forwards and the head. On a GPU, reading it waits for the device."""
        return self.clock.seconds


class Runner:
    """One causal language model of transformers, as ``Member`` describes it.

    Args:
        model: The model. Its attention is replaced for good (docs/caches.md); by itself it still works.
        vocab: Its vocabulary; None where it is used without an ensemble.
        device: Where the model is moved; None: it stays where it is.
        dtype: What its weights are cast to; None: they stay as they are.
        attention: "auto", "sdpa" or "flash".
        compile: Run steps of up to ``SMALL_STEP`` tokens through ``torch.compile``, their shapes rounded to a few.
        graphs: Capture such steps as CUDA graphs, one per shape, and replay them.
        few_rows: Whether linear layers on a CPU go through ``few_rows_linear`` from a few rows on; None: where that is
            faster.
        max_slots: The most rows at once; None: no limit.
        block: Positions of the KV cache are allocated in multiples of it.
        memory: Bytes that the KV cache may have allocated; None: no limit.
        chunk_tokens: The most tokens in one forward; longer prompts go in several.
        name: What errors call the model.

    Attributes:
        body: The model's decoder and head.
        cache: The keys and values of all rows.
        config: The model's configuration.
        attention: Which attention runs, and why.
        compiled: The compiled steps, or None.
        graphs: The captured steps, or None.

    Raises:
        ModelError: The model cannot be rolled back, or its logits from row slots are not its own (docs/caches.md).
        InputError: An argument that does not fit.
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
        self.capabilities = Capabilities()
        if few_rows or (few_rows is None and few_rows_helps(self.dtype, self.device)):
            use_few_rows_linear(model)
        self.body = Body(model, name)
        self.context_length = context_length(model.config, name)
        shapes = self.body.record_shapes()
        self._heads = sorted({shape.heads for shape in shapes})
        self._eager = Buckets(key_block=64 if self.device.type == "cuda" else 1)
        self._padded = Buckets(padded=True, key_block=64)
        self._flash = attention_module.flash_function() if self.attention.kind == "flash" else None
        self._windows: dict[int, int | None] | None = None
        self.compiled: CompiledSteps | None = None
        self.graphs: StepGraphs | None = None
        self._check_model(shapes)
        if compile:
            self.compiled = CompiledSteps(self.body.hidden)
        if graphs:
            self.graphs = StepGraphs(self.compiled or self.body.hidden)
        self.stats = RunnerStats(self.device)
        max_length = None if self._flash else self.context_length  # flash-attn appends padding behind a row's end
        limits = CacheLimits(shapes, block=block, max_slots=max_slots, max_length=max_length, memory=memory, name=name)
        self.cache = SlotCache(limits, self.device)

    def _check_model(self, shapes: list[LayerShape]) -> None:
        """Prove on a throw-away cache that the model answers from row slots as it does alone."""
        rows = load_check.probe_ids(min(self.body.id_limit, self.body.vocab_size))
        expected = load_check.own_logits(self.model, rows, self.device)
        self.body.use_our_attention()
        self.stats = RunnerStats(self.device)
        self.cache = SlotCache(CacheLimits(shapes, block=16, slot_block=2, name=self.name), self.device)
        self._windows = {}
        load_check.check_against(self, type(self.model).__name__, rows, expected)
        check_windows(self.config, self._windows, len(shapes), self.name)
        self._windows = None

    # -- slots ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Sequence[int] | None = None) -> int:
        """See ``Member.acquire``; at least ``prefixes.SHORTEST`` tokens of a common beginning are worth a copy."""
        slot = self.cache.acquire(ids)
        self.stats.reused += self.cache.length(slot)
        return slot

    def take_over(self, slot: int, ids: Sequence[int]) -> int:
        """See ``Member.take_over``."""
        found = self.cache.take_over(slot, ids)
        self.stats.reused += found
        return found

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self.cache.release(slot)

    def length(self, slot: int) -> int:
        """Tokens that the row holds."""
        return self.cache.length(slot)

    def rollback(self, slot: int, length: int) -> None:
        """Shorten a row to ``length`` tokens in O(1). Raises ``CacheError`` where it holds fewer."""
        self.cache.rollback(slot, length)

    def shared(self, ids: Sequence[int]) -> int:
        """Tokens at the beginning of ``ids`` that some slot already holds; 0 where too few to be worth a copy."""
        return self.cache.shared(ids)

    def forget(self) -> None:
        """Let nothing that slots hold now be taken over by other rows; to be called when weights or adapters change."""
        self.cache.forget()

    # -- memory --------------------------------------------------------------------------------------------------

    def reserve(self, slots: int, length: int) -> None:
        """Allocate the cache for ``slots`` rows of ``length`` tokens at once instead of growing into it."""
        self.cache.reserve(slots, min(length, self.context_length))

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes over all layers."""
        return self.cache.limits.bytes_per_token

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
        return self.cache.limits.memory

    def limit_memory(self, limit: int | None) -> None:
        """Set ``memory``."""
        self.cache.limits.memory = limit

    def limit_peak(self, peak: int) -> None:
        """Keep the cache below ``peak`` bytes at any moment, growing included. Never loosens ``memory``."""
        if self.cache.bytes_allocated > peak and not self.cache.held:
            self.cache.reset()
        limits = self.cache.limits
        limits.memory = min(limits.for_peak(peak), limits.memory or peak)

    @property
    def limited(self) -> bool:
        """Whether memory or a number of slots bounds the rows it can hold."""
        return self.cache.limits.memory is not None or self.cache.limits.max_slots is not None

    @property
    def held(self) -> int:
        """Slots that rows hold."""
        return self.cache.held

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.cache.longest

    def could_hold(self, rows: int, length: int) -> bool:
        """Whether the limits allow ``rows`` rows of ``length`` tokens, or of the context where that is shorter."""
        return self.cache.could_hold(rows, self.cache.limits.within_context(length))

    def why_not(self, rows: int, length: int) -> str | None:
        """The figures that make ``could_hold`` false; None where it is true."""
        return self.cache.why_not(rows, self.cache.limits.within_context(length))

    def make_room(self, rows: int, length: int, *, ahead: int, most: int) -> Mapping[int, int]:
        """Shape the cache for what a round may add; see ``Member.make_room``."""
        return self.cache.make_room(rows, length, ahead=ahead, most=most)

    def free_memory(self) -> None:
        """Let go of all cache memory, where no slot is held."""
        if not self.cache.held:
            self.cache.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- forwards ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def extend(
        self,
        slots: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        logits: str | Sequence[int] = "last",
    ) -> Logits:
        """Append ids to rows and return the logits behind the positions that are asked for; see ``Member.extend``."""
        counts = [len(ids) for ids in new_ids]
        wanted = requests.wanted_positions(self.name, len(slots), counts, logits)
        lengths = [self.cache.length(slot) for slot in slots]
        requests.check_extension(
            self.name, slots, new_ids, lengths, context_length=self.context_length, id_limit=self.body.id_limit
        )
        self._grow_cache(slots, lengths, counts)
        forwards = packing.chunks(slots, lengths, counts, self.chunk_tokens)
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
        """Read several continuations of each row in one forward; see ``Member.read_trees``.

        Attends through SDPA, whatever else the runner uses.
        """
        lengths = [self.cache.length(slot) for slot in slots]
        requests.check_trees(
            self.name, slots, trees, lengths, context_length=self.context_length, id_limit=self.body.id_limit
        )
        self._grow_cache_for_trees(slots, trees, lengths)
        forwards = token_trees.forwards(slots, trees, lengths, self.chunk_tokens)
        read: dict[int, list[torch.Tensor]] = {}
        with self.stats.clock:
            for pieces in forwards:
                step, places = token_trees.build(
                    pieces, trees, heads=self._heads, cache=self.cache, buckets=self._eager, device=self.device
                )
                hidden = self.body.hidden(step)
                for piece in pieces:
                    at = [places[piece.row] + node for node in trees[piece.row].wanted]
                    if at:
                        read[piece.row] = [hidden[torch.tensor(at, device=self.device)]]
            out = self._head(read, [len(tree.wanted) for tree in trees])
        self.stats.tokens += sum(piece.count for pieces in forwards for piece in pieces)
        self.stats.forwards += len(forwards)
        return out

    @torch.no_grad()
    def keep_paths(self, slots: Sequence[int], trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> None:
        """Make one path of each tree part of its row; see ``Member.keep_paths``."""
        token_trees.keep(slots, trees, paths, self.cache)

    def _grow_cache(self, slots: Sequence[int], lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Make room behind each row for its new tokens, and for the padded queries that flash-attn appends there."""
        padding = self._padded.queries(max(counts, default=0)) if self._flash is not None else 0
        ends = [length + max(count, padding if count else 0) for length, count in zip(lengths, counts, strict=True)]
        self.cache.grow(length=max(ends, default=0))
        for slot, end in zip(slots, ends, strict=True):
            self.cache.touch(slot, end)

    def _grow_cache_for_trees(self, slots: Sequence[int], trees: Sequence[Tree], lengths: Sequence[int]) -> None:
        """Make room behind each row for its tree, which may lie past the context: no path of it does."""
        ends = [length + len(tree.ids) for tree, length in zip(trees, lengths, strict=True)]
        longest = max(ends, default=0)
        limits = self.cache.limits
        if limits.max_length is not None:
            limits.max_length = max(limits.max_length, longest)
        self.cache.grow(length=longest)
        for slot, end in zip(slots, ends, strict=True):
            self.cache.touch(slot, end)

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
        return self.body.hidden(step)

    def _head(self, read: dict[int, list[torch.Tensor]], wanted: Sequence[int]) -> Logits:
        starts = [0]
        for want in wanted:
            starts.append(starts[-1] + want)
        parts = [part for row in range(len(wanted)) for part in read.get(row, ())]
        if not parts:
            empty = torch.empty(0, self.body.vocab_size, dtype=self.dtype, device=self.device)
            return Logits(empty, starts)
        return Logits(self.body.logits(torch.cat(parts) if len(parts) > 1 else parts[0]), starts)
