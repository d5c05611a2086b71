"""This machine as a device of the cost model, from small measurements, and the model's error against a run's cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import random_models
import torch

from ensemble_decode.bench.measure import Cell
from ensemble_decode.bench.stats import figure, quantile
from ensemble_decode.bench.tables import Table
from ensemble_decode.cost.devices import Device
from ensemble_decode.cost.model import Cost, Settings, cost_of_run
from ensemble_decode.cost.shapes import ModelShape
from ensemble_decode.ensemble import Ensemble
from ensemble_decode.members.transformers.few_rows import helps, use_few_rows_linear
from ensemble_decode.members.transformers.runner import Runner

# Of which method of the cost model each measured configuration is.
_METHOD = {
    "single-0": "single",
    "unite": "unite",
    "safe": "safe",
    "specfuse-all": "specfuse",
    "dictionary": "dictionary",
    "segments": "segments",
}


def this_machine(device: torch.device, dtype: torch.dtype, memory: float, *, quick: bool = False) -> Device:
    """Bandwidth and rate of linear layers in ``dtype`` as the runners compute them, and what a layer, a forward and a
    row add.

    None of these numbers comes from the cells that the model is compared with. ``quick``: of weights that may lie in a
    cache.
    """
    # past any cache, unless it is to be quick
    layers = [torch.nn.Linear(1024, 16384, bias=False, device=device, dtype=dtype) for _ in range(1 if quick else 6)]
    if helps(dtype, device):
        use_few_rows_linear(torch.nn.ModuleList(layers))
    weights = sum(layer.weight.numel() for layer in layers)

    def products(rows: int) -> float:
        x = torch.randn(rows, 1024, device=device).to(dtype)

        @torch.no_grad()
        def work() -> None:
            for layer in layers:
                layer(x)

        return _seconds(work, device, 3 if quick else 9)

    bandwidth = weights * layers[0].weight.element_size() / products(1)
    flops = 2.0 * 128 * weights / products(128)
    few, many = (_step_seconds(count, device, dtype) for count in (2, 12))
    layer_seconds = max(0.0, (many - few) / 10)
    return Device(
        name="this machine",
        memory=memory,
        bandwidth=bandwidth,
        flops=flops,
        bandwidth_share=1.0,
        flops_share=1.0,
        layer_seconds=layer_seconds,
        forward_seconds=max(0.0, few - 2 * layer_seconds),
        fuse_seconds=3e-4 if device.type == "cpu" else 3e-5,
        row_seconds=1e-4,
        measured=True,
    )


def _step_seconds(layers: int, device: torch.device, dtype: torch.dtype) -> float:
    """A decode step of a model that is nearly nothing but overhead."""
    made = random_models.model(256, layers=layers, hidden=64, dtype=dtype).to(device)
    runner = Runner(made, name="overhead")
    slot = runner.acquire()
    runner.extend([slot], [[1] * 8], "last")

    def work() -> None:
        runner.extend([slot], [[1]], "last")
        runner.rollback(slot, 8)

    return _seconds(work, device)


def _seconds(work: Callable[[], None], device: torch.device, repeats: int = 9) -> float:
    """The median of some repeats, after two that do not count."""
    times = []
    for number in range(repeats + 2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number > 1:
            times.append(time.perf_counter() - began)
    return quantile(times, 0.5)


class Comparison(NamedTuple):
    """One cell beside what the cost model says of it, in seconds between two tokens."""

    label: str
    batch: int
    prompt: int
    tokens: int
    models: int
    measured: float
    modelled: float

    @property
    def error(self) -> float:
        """Relative, above 0 where the model is too slow."""
        return self.modelled / self.measured - 1


def compare(cells: Sequence[Cell], shapes: Mapping[str, ModelShape], device: Device) -> list[Comparison]:
    """Every cell of a method that the cost model knows. ``shapes`` by the models' names."""
    made = []
    for cell in cells:
        if cell.subject not in _METHOD:
            continue
        cost = _modelled(cell, [shapes[name] for name in cell.models], device)
        measured = figure(cell.values(lambda s: s.latency_mean)).median
        made.append(
            Comparison(cell.label, cell.batch, cell.prompt, cell.tokens, len(cell.models), measured, cost.seconds)
        )
    return made


def _modelled(cell: Cell, shapes: Sequence[ModelShape], device: Device) -> Cost:
    return cost_of_run(
        shapes,
        device,
        _METHOD[cell.subject],
        batch=cell.batch,
        prompt=cell.prompt,
        tokens=cell.tokens,
        settings=settings_of(cell),
    )


def settings_of(cell: Cell) -> Settings:
    """The share of drafted tokens that stood, as measured, for SAFE: the probability that one token stands, by
    bisection."""
    if cell.subject != "safe" or not sum(s.drafted for s in cell.samples):
        return Settings()
    accepted = sum(s.accepted for s in cell.samples) / sum(s.drafted for s in cell.samples)
    length, low, high = Settings().draft_length, 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, length + 1)) / length < accepted:
            low = middle
        else:
            high = middle
    return Settings(stands=low)


def shapes_of(ensemble: Ensemble) -> dict[str, ModelShape]:
    """The shapes of an ensemble's models, by name."""
    names = [model.name for model in ensemble.vocab.models]
    return {
        name: ModelShape.of_model(runner.model, name=name) for name, runner in zip(names, ensemble.runners, strict=True)
    }


def error_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Measured and modelled times per token, and the error."""
    rows = []
    for entry in found:
        one = Comparison(**entry)
        rows.append(
            [
                f"{one.label}, {one.models} models, batch {one.batch}, {one.prompt} + {one.tokens} tokens",
                f"{one.measured * 1e3:.1f}",
                f"{one.modelled * 1e3:.1f}",
                f"{100 * one.error:+.0f} %",
            ]
        )
    columns = ["configuration", "measured ms between tokens", "modelled ms", "error"]
    return Table("The cost model against this run", columns, rows)
