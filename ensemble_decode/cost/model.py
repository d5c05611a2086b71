"""The cost model: bytes and operations to time per token on a named device. No torch, no model, nothing measured.

    from ensemble_decode.cost.model import DEVICES, ModelShape, cost_per_token
    shapes = [ModelShape.of_config(a.config), ModelShape.of_config(b.config)]
    cost_per_token(shapes, DEVICES["h100-sxm"], "unite", batch=8, context=1024).seconds

A forward of n new tokens in each of B rows behind c cached ones moves every weight once, the cached keys and values of
each row, the new ones, and the logits that are read; it does two operations per weight and token and four per query
element and attended position. Its time is the roofline of the device plus fixed overheads. A method is a list of
forwards (docs/benchmarks/cost.md). Models on one device run one after the other, as the engine runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ensemble_decode.cost.devices import DEVICES, Device
from ensemble_decode.cost.shapes import KNOWN, ModelShape
from ensemble_decode.errors import InputError

__all__ = ["DEVICES", "KNOWN", "METHODS", "Cost", "Device", "ModelShape", "Settings", "cost_of_run", "cost_per_token"]


@dataclass(frozen=True)
class Settings:
    """What a method's cost depends on beyond the models.

    ``draft_length``, ``stands``: of SAFE, and the probability that a drafted token stands. ``segment_length``,
    ``kept``: of SpecFuse, and the share of a segment that is left after trimming. ``opened``: of GaC and gated UniTE,
    the share of steps at which the other models are asked.
    """

    draft_length: int = 5
    stands: float = 0.9
    segment_length: int = 10
    kept: float = 0.9
    opened: float = 1.0

    def __post_init__(self) -> None:
        for name in ("stands", "kept", "opened"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"cost settings: {name} must lie between 0 and 1, got {getattr(self, name)!r}")
        for name in ("draft_length", "segment_length"):
            if getattr(self, name) < 1:
                raise InputError(f"cost settings: {name} must be at least 1, got {getattr(self, name)!r}")


@dataclass
class Cost:
    """Per generated token of one row, in a batch of ``batch`` rows that advance together.

    ``seconds``: between two tokens of a row; ``parts``: the same by ``model 0``, ``model 1``, ..., ``fusion``,
    ``host``. ``bytes`` and ``operations``: of the whole batch per token of a row. ``cache_bytes``: KV caches of all
    rows and models at that context. ``held_bytes``: weights. ``fits``: weights and caches together are at most the
    device's memory. ``predicted``: the device is known from a data sheet only.
    """

    batch: int
    parts: dict[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    operations: float = 0.0
    cache_bytes: float = 0.0
    held_bytes: float = 0.0
    fits: bool = True
    predicted: bool = True

    @property
    def seconds(self) -> float:
        """Seconds per token, all parts together."""
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Of the whole batch."""
        return self.batch / self.seconds


@dataclass
class _Round:
    """One round of a method on a batch: what it adds to each part, and how many tokens of a row come out of it."""

    device: Device
    batch: int
    tokens: float = 1.0
    parts: dict[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    operations: float = 0.0

    def forward(
        self, m: int, shape: ModelShape, new: float, context: float, read: float = 1.0, times: float = 1.0
    ) -> None:
        """``times`` forwards of ``new`` tokens a row behind ``context`` cached ones; the logits behind ``read`` of them
        a row."""
        rows = self.batch
        attended = context + new / 2
        moved = (shape.body + shape.head * (read > 0)) * shape.weight_bytes
        moved += rows * (context + 2 * new) * shape.cache_bytes_per_token
        moved += 2 * rows * read * shape.vocab * shape.cache_bytes
        operations = 2.0 * rows * (new * shape.body + read * shape.head)
        operations += 4.0 * rows * new * attended * shape.query * shape.layers
        overhead = shape.layers * self.device.layer_seconds + self.device.forward_seconds
        self._add(f"model {m}", moved * times, operations * times, times * overhead, times)

    def fuse(self, shapes: Sequence[ModelShape], reads: float = 1.0) -> None:
        """One pass over the logits that the models left."""
        moved = self.batch * reads * sum(shape.vocab * shape.cache_bytes for shape in shapes)
        self._add("fusion", moved, 0.0, self.device.fuse_seconds, 1.0)

    def host(self) -> None:
        self._add("host", 0.0, 0.0, self.batch * self.device.row_seconds, 1.0)

    def _add(self, part: str, moved: float, operations: float, overhead: float, times: float) -> None:
        busy = times * self.device.seconds(moved / times, operations / times) if times else 0.0
        self.parts[part] = self.parts.get(part, 0.0) + busy + overhead
        self.bytes += moved
        self.operations += operations


def _single(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    round_.forward(0, shapes[0], 1, context)
    round_.fuse(shapes[:1])


def _unite(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    """Every model one step. Behind a gate the others are asked at a share of the steps, and then catch up on what they
    missed."""
    round_.forward(0, shapes[0], 1, context)
    for m, shape in enumerate(shapes[1:], 1):
        if settings.opened > 0:
            round_.forward(m, shape, 1 / settings.opened, context, times=settings.opened)
    round_.fuse(shapes)


def _safe(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    """The primary drafts n tokens; every verifier reads them at once. A rejected place costs no forward: its logits are
    there."""
    n, p = settings.draft_length, settings.stands
    round_.tokens = (
        float(n) if p == 1 else (1 - p**n) / (1 - p)
    )  # the tokens that stand, and the one put in a rejected place
    round_.forward(0, shapes[0], 1, context, times=n)
    for m, shape in enumerate(shapes[1:], 1):
        round_.forward(m, shape, n, context, read=n)
    round_.fuse(shapes, reads=n)


def _specfuse(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    """Every model drafts L tokens and reads the other models' drafts in one forward."""
    length = settings.segment_length
    round_.tokens = max(1.0, length * settings.kept)
    others = (len(shapes) - 1) * length
    for m, shape in enumerate(shapes):
        round_.forward(m, shape, 1, context, times=length)
        if others:
            round_.forward(m, shape, others, context, read=others)
    round_.fuse(shapes, reads=length * len(shapes))


def _dictionary(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    """A cache for the primary alone: every other model reads the whole text again at every token."""
    round_.forward(0, shapes[0], 1, context)
    for m, shape in enumerate(shapes[1:], 1):
        round_.forward(m, shape, context + 1, 0)
    round_.fuse(shapes)


def _segments(round_: _Round, shapes: Sequence[ModelShape], context: float, settings: Settings) -> None:
    """Every model reads the whole text again to draft, and again with every model's draft behind it to score."""
    length = settings.segment_length
    round_.tokens = max(1.0, length * settings.kept)
    for m, shape in enumerate(shapes):
        round_.forward(m, shape, context, 0)
        round_.forward(m, shape, 1, context, times=length - 1)
        for _ in shapes:
            round_.forward(m, shape, context + length, 0, read=length)
    round_.fuse(shapes, reads=length * len(shapes))


METHODS: dict[str, Callable[[_Round, Sequence[ModelShape], float, Settings], None]] = {
    "single": _single,
    "unite": _unite,
    "gac": _unite,
    "safe": _safe,
    "specfuse": _specfuse,
    "dictionary": _dictionary,
    "segments": _segments,
}


def cost_per_token(
    shapes: Sequence[ModelShape],
    device: Device,
    method: str = "unite",
    *,
    batch: int = 1,
    context: float = 512,
    settings: Settings | None = None,
) -> Cost:
    """What the next token of each row costs behind ``context`` tokens.

    ``shapes``: the models, the primary first (``single`` takes the first alone). ``method``: a key of ``METHODS``;
    ``dictionary`` and ``segments`` are the uncached ways of UniTE and SpecFuse. All models are on ``device``. Raises
    ``InputError`` for what does not fit.
    """
    if not shapes:
        raise InputError("cost: at least one model is needed")
    if method not in METHODS:
        raise InputError(f"cost: method {method!r} is not known; there are {', '.join(METHODS)}")
    if batch < 1 or context < 0:
        raise InputError(f"cost: batch must be at least 1 and context at least 0, got {batch!r} and {context!r}")
    used = shapes[:1] if method == "single" else shapes
    round_ = _Round(device, batch)
    METHODS[method](round_, used, context, settings or Settings())
    round_.host()
    held, caches = sum(s.held_bytes for s in used), batch * context * sum(s.cache_bytes_per_token for s in used)
    return Cost(
        batch=batch,
        parts={name: seconds / round_.tokens for name, seconds in round_.parts.items()},
        bytes=round_.bytes / round_.tokens,
        operations=round_.operations / round_.tokens,
        cache_bytes=caches,
        held_bytes=held,
        fits=held + caches <= device.memory,
        predicted=not device.measured,
    )


def cost_of_run(
    shapes: Sequence[ModelShape],
    device: Device,
    method: str = "unite",
    *,
    batch: int = 1,
    prompt: int = 64,
    tokens: int = 64,
    settings: Settings | None = None,
) -> Cost:
    """The mean over a whole generation of ``tokens`` tokens behind a prompt of ``prompt``; ``seconds`` without the
    prompt's own forward."""
    if tokens < 1:
        raise InputError(f"cost: tokens must be at least 1, got {tokens!r}")
    pieces = min(tokens, 16)
    places = [prompt + (i + 0.5) * tokens / pieces for i in range(pieces)]
    costs = [cost_per_token(shapes, device, method, batch=batch, context=c, settings=settings) for c in places]
    last = cost_per_token(shapes, device, method, batch=batch, context=prompt + tokens, settings=settings)
    return Cost(
        batch=batch,
        parts={name: sum(cost.parts[name] for cost in costs) / pieces for name in last.parts},
        bytes=sum(cost.bytes for cost in costs) / pieces,
        operations=sum(cost.operations for cost in costs) / pieces,
        cache_bytes=last.cache_bytes,
        held_bytes=last.held_bytes,
        fits=last.fits,
        predicted=last.predicted,
    )
