"""Predictions of the cost model for pairs of large models on common cards. Nothing here was measured on those cards."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode.bench.tables import Table
from ensemble_decode.cost.devices import Device
from ensemble_decode.cost.model import Settings, cost_of_run
from ensemble_decode.cost.shapes import ModelShape

METHODS = ("unite", "safe", "specfuse", "dictionary")


def prediction_table(
    name: str,
    shapes: Sequence[ModelShape],
    devices: Sequence[Device],
    *,
    batch: int,
    prompt: int = 512,
    tokens: int = 256,
) -> Table:
    """Milliseconds between tokens on each device: the first model alone, and each method; "does not fit" where memory
    is short."""
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
        f"PREDICTED, not measured: {name + ': ' if name else ''}{models}, batch {batch}, {prompt} + {tokens} "
        "tokens, both models on one card",
        ["card", "first model alone, ms between tokens", *METHODS],
        rows,
    )
