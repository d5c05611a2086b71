"""What fits: rows that the KV caches of several models hold in a memory, and the pace to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_decode.cost.devices import Device
from ensemble_decode.cost.model import DEVICES, METHODS, Settings, cost_of_run
from ensemble_decode.cost.shapes import KNOWN, ModelShape
from ensemble_decode.errors import InputError, ModelError

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
BLOCK = 256  # positions: caches grow in these


@dataclass(frozen=True)
class Capacity:
    """``rows`` of ``tokens`` each at once: as many as the caches hold in ``cache_bytes``. ``positions``: ``tokens`` in
    whole blocks.

    ``tokens_per_second``: of all rows together, by the cost model; None without a device. ``predicted``: from a data
    sheet.
    """

    shapes: list[ModelShape]
    tokens: int
    positions: int
    cache_bytes: float
    rows: int
    tokens_per_second: float | None = None
    predicted: bool = True

    @property
    def bytes_per_token(self) -> float:
        """Bytes of KV cache that one token of one row takes in all models together."""
        return sum(shape.cache_bytes_per_token for shape in self.shapes)


def shape_of(spec: str, dtype: str) -> ModelShape:
    """A model's shape from its config alone: a name of ``cost.model.KNOWN``, or a model as ``Ensemble.load`` takes
    it."""
    if dtype not in _BYTES:
        raise InputError(f"dtype {dtype!r} is not one of {', '.join(_BYTES)}")
    size = _BYTES[dtype]
    if spec in KNOWN:
        from dataclasses import replace

        return replace(KNOWN[spec], weight_bytes=size, cache_bytes=size)
    return ModelShape.of_config(_config(spec), name=spec, weight_bytes=size, cache_bytes=size)


def _config(spec: str) -> Any:
    from transformers import AutoConfig

    from ensemble_decode.members.sources.specs import parse_spec
    from ensemble_decode.members.transformers.loading import spec_source

    parsed = parse_spec(spec)
    options = {} if parsed.revision is None else {"revision": parsed.revision}
    try:
        return AutoConfig.from_pretrained(spec_source(parsed), trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {spec}: its config cannot be read: {' '.join(str(error).split())[:300]}") from error


def device_named(name: str) -> Device:
    """A device of the data sheets by its name; ``InputError`` where there is none."""
    if name not in DEVICES:
        raise InputError(f"device {name!r} is not known; there are {', '.join(DEVICES)}")
    return DEVICES[name]


def capacity(
    shapes: Sequence[ModelShape],
    *,
    prompt_tokens: int,
    new_tokens: int,
    memory: float | None = None,
    device: Device | None = None,
    method: str = "unite",
    settings: Settings | None = None,
    batch_size: int | None = None,
) -> Capacity:
    """How many rows fit at once, and how fast they go.

    ``memory``: bytes for the caches; None: 80 % of what the weights leave of ``device``. ``settings``: of ``method``.
    ``batch_size``: the pace is that of so many rows, where they fit. Raises ``InputError`` where nothing says how much
    memory there is, and where the weights alone do not fit.
    """
    if prompt_tokens < 1 or new_tokens < 1:
        raise InputError(f"prompt and new tokens must be at least 1, got {prompt_tokens} and {new_tokens}")
    if method not in METHODS:
        raise InputError(f"method {method!r} is not known; there are {', '.join(METHODS)}")
    if memory is None:
        if device is None:
            raise InputError("nothing says how much memory there is: give memory for the caches, or a device")
        free = device.memory - sum(shape.held_bytes for shape in shapes)
        if free <= 0:
            held = sum(shape.held_bytes for shape in shapes) / 1e9
            raise InputError(
                f"the weights alone take {held:.1f} GB, the {device.name} has {device.memory / 1e9:.0f} GB"
            )
        memory = 0.8 * free
    tokens = prompt_tokens + new_tokens
    positions = -(-tokens // BLOCK) * BLOCK
    per_row = positions * sum(shape.cache_bytes_per_token for shape in shapes)
    copy = max(1 / (2 * shape.layers) for shape in shapes)  # a cache that grows is copied a tensor at a time
    rows = int(memory / (1 + copy) / per_row)
    pace = None
    if device is not None and rows:
        batch = rows if batch_size is None else min(rows, batch_size)
        pace = cost_of_run(
            shapes,
            device,
            method,
            batch=batch,
            prompt=prompt_tokens,
            tokens=new_tokens,
            settings=settings,
        ).tokens_per_second
    return Capacity(list(shapes), tokens, positions, memory, rows, pace, device is None or not device.measured)
