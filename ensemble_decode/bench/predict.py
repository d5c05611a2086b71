"""Predictions of the cost model for pairs of large models on common cards. Nothing here was measured on those cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ensemble_decode.bench.tables import Table
from ensemble_decode.cost.devices import Device
from ensemble_decode.cost.model import DEVICES, KNOWN, Settings, cost_of_run
from ensemble_decode.cost.shapes import ModelShape

PAIRS = {"7B pair": ("qwen2.5-7b", "llama3.1-8b"), "70B pair": ("llama3.1-70b", "qwen2.5-72b")}
METHODS = ("unite", "safe", "specfuse", "dictionary")


def pair(name: str, bits: int) -> list[ModelShape]:
    """The two models of a pair with weights of ``bits`` bits."""
    return [replace(KNOWN[model], weight_bytes=bits / 8) for model in PAIRS[name]]


def prediction_table(
    name: str,
    shapes: Sequence[ModelShape],
    devices: Sequence[Device],
    *,
    batch: int,
    prompt: int = 512,
    tokens: int = 256,
) -> Table:
    """Milliseconds between tokens on each device: the first model alone, and each method; "does not fit" where memory is short."""
    rows = []
    for device in devices:
        alone = cost_of_run(shapes, device, "single", batch=batch, prompt=prompt, tokens=tokens)
        row = [device.name, f"{alone.seconds * 1e3:.1f}" if alone.fits else "does not fit"]
        for method in METHODS:
            if method == "dictionary" and batch > 1:
                row.append("no batches")
                continue
            cost = cost_of_run(shapes, device, method, batch=batch, prompt=prompt, tokens=tokens, settings=Settings())
            shown = f"{cost.seconds * 1e3:.1f} (× {cost.seconds / alone.seconds:.2f})"
            row.append(shown if cost.fits else "does not fit")
        rows.append(row)
    models = " + ".join(f"{shape.name} at {8 * shape.weight_bytes:g} bits" for shape in shapes)
    return Table(
        f"PREDICTED, not measured: {name + ': ' if name else ''}{models}, batch {batch}, {prompt} + {tokens} tokens, both models on one card",
        ["card", "first model alone, ms between tokens", *METHODS],
        rows,
    )


def standard_tables() -> list[Table]:
    """The 7B pair in bfloat16 and the 70B pair at 4 bits, at batch 1 and 32, on every known card."""
    devices = list(DEVICES.values())
    return [
        prediction_table(name, pair(name, bits), devices, batch=batch)
        for name, bits in (("7B pair", 16), ("70B pair", 16), ("70B pair", 4))
        for batch in (1, 32)
        if not (bits == 16 and name == "70B pair" and batch > 1)
    ]
