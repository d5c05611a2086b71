"""Steps of few shapes run compiled, or captured once per shape as a CUDA graph and replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ensemble_decode.members.transformers.packing import Step

Hidden = Callable[[Step], torch.Tensor]


def signature(step: Step) -> tuple[Any, ...]:
    """What must be equal for one compiled or captured step to serve another."""
    groups = tuple(
        (group.rows, group.queries, group.keys, group.begin, group.take is None, group.aligned) for group in step.groups
    )
    return (step.ids.shape[1], step.stores[0].keys.shape, step.flash is None, groups)


class CompiledSteps:
    """``torch.compile`` of the forward, one compilation per signature.

    Dynamo gives up silently after a few recompilations of one function. Here each new shape is meant, so the limit is
    lifted for the first call of each. ``fullgraph`` makes anything that would need a value on the host an error.

    Args:
        hidden: The forward.
        backend: Of ``torch.compile``.
    """

    def __init__(self, hidden: Hidden, backend: str = "inductor"):
        self._hidden = torch.compile(hidden, dynamic=False, fullgraph=True, backend=backend)
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, step: Step) -> torch.Tensor:
        """Run a step, captured where its shape is new."""
        key = signature(step)
        if key in self._seen:
            return self._hidden(step)
        config = torch._dynamo.config
        limits: dict[str, Any] = {
            limit: 4096
            for limit in ("cache_size_limit", "accumulated_cache_size_limit", "recompile_limit")
            if hasattr(config, limit)
        }
        with config.patch(limits):  # type: ignore[attr-defined]
            out = self._hidden(step)
        self._seen.add(key)
        return out

    @property
    def shapes(self) -> int:
        """Signatures compiled so far."""
        return len(self._seen)


class Graph(Protocol):
    """What is needed of a ``torch.cuda.CUDAGraph``."""

    def replay(self) -> None:
        """Run what was captured, on the buffers it was captured with."""


Capture = Callable[[Callable[[], torch.Tensor]], tuple[Graph, torch.Tensor]]


def cuda_capture(run: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
    """Capture ``run`` as a CUDA graph, after two warm-up runs on a side stream.

    Returns:
        The graph and its output tensor.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@dataclasses.dataclass
class _Captured:
    step: Step
    graph: Graph
    out: torch.Tensor


class StepGraphs:
    """Replays a forward captured once per signature, over input buffers that stay where they are.

    Graphs hold the cache's addresses, so a cache that was reallocated makes every graph stale.

    Args:
        hidden: The forward, compiled or not.
        capture: How a graph is made; tests put in one that needs no GPU.
        limit: Graphs that are kept; the one unused for longest goes first.
    """

    def __init__(self, hidden: Hidden, capture: Capture = cuda_capture, limit: int = 64):
        self._hidden, self._capture, self._limit = hidden, capture, limit
        self._captured: dict[tuple[Any, ...], _Captured] = {}
        self._generation = -1

    def __call__(self, step: Step, generation: int) -> torch.Tensor:
        """The forward's output ``[N, hidden]``, a tensor of its own.

        Args:
            step: The step.
            generation: ``SlotCache.generation``.
        """
        if generation != self._generation:
            self._captured.clear()
            self._generation = generation
        key = signature(step)
        held = self._captured.pop(key, None)
        if held is None:
            static = _copy(step)
            graph, out = self._capture(lambda: self._run(static))
            held = _Captured(static, graph, out)
            if len(self._captured) >= self._limit:
                self._captured.pop(next(iter(self._captured)))
        self._captured[key] = held  # last: most recently used
        _load(held.step, step)
        held.graph.replay()
        return held.out.clone()

    def _run(self, static: Step) -> torch.Tensor:
        for group in static.groups:  # masks belong to the values of one step: each run makes its own
            group.masks.clear()
        return self._hidden(static)

    @property
    def shapes(self) -> int:
        """Graphs held."""
        return len(self._captured)


def _tensors(step: Step) -> list[torch.Tensor]:
    out = [step.ids, step.positions, *(step.write[heads] for heads in sorted(step.write))]
    for group in step.groups:
        for field in (group.slots, group.slots32, group.take, group.put, group.positions, group.starts):
            if field is not None:
                out.append(field)
    return out


def _copy(step: Step) -> Step:
    """A step with buffers of its own."""

    def own(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    groups = [
        dataclasses.replace(group, masks={}, **{f.name: own(getattr(group, f.name)) for f in _fields(group)})
        for group in step.groups
    ]
    write = {heads: index.clone() for heads, index in step.write.items()}
    return dataclasses.replace(step, groups=groups, write=write, ids=step.ids.clone(), positions=step.positions.clone())


def _fields(group: Any) -> list[Any]:
    return [f for f in dataclasses.fields(group) if isinstance(getattr(group, f.name), torch.Tensor)]


def _load(static: Step, step: Step) -> None:
    for buffer, value in zip(_tensors(static), _tensors(step), strict=True):
        buffer.copy_(value, non_blocking=True)
