"""How alike two models' next-token distributions are on the first tokens of one model's responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ensemble_decode import kernels
from ensemble_decode.determination.data import Item
from ensemble_decode.determination.running import Models, Progress
from ensemble_decode.determination.store import Log, identity
from ensemble_decode.methods import BaseMethod, Sharpen, UniTE
from ensemble_decode.methods.base import StepContext, StepRow
from ensemble_decode.methods.sharpen import NO_SHARPEN
from ensemble_decode.outputs import Completion


@dataclass(frozen=True)
class Beside(BaseMethod):
    """The primary writes its own greedy text, and the trace shows what a union step of all models says of it.

    Args:
        union: The step that is traced.
    """

    union: UniTE

    def fuse(
        self,
        context: StepContext,
        rows: Sequence[StepRow],
        logits: Sequence[torch.Tensor],
        sharpen: Sharpen = NO_SHARPEN,
        *,
        draw: bool = True,
    ) -> kernels.FuseStep:
        """The union step."""
        return self.union.fuse(context, rows, logits, sharpen, draw=draw)

    def round(self, context: StepContext, rows: Sequence[StepRow]) -> None:
        """One step of every row."""
        logits = [context.next_logits(m, rows) for m in range(len(context.devices))]
        with context.time_fusion():
            fused = self.fuse(context, rows, logits)
            own = fused.top_cid[0].tolist()
        context.commit(rows, logits, fused, chosen=own)  # one of the union, as each model's first candidate is


def first_tokens(
    models: Models,
    pair: tuple[int, int],
    items: Sequence[Item],
    folder: Path,
    progress: Progress,
    *,
    positions: int,
    top_k: int,
) -> dict[str, dict[str, Any]]:
    """How alike the models are on the first tokens that ``pair[0]`` writes.

    Args:
        models: The candidates.
        pair: The two models; the first one writes.
        items: The prompts.
        folder: Where results are saved, as responses are.
        progress: Called as work goes on.
        positions: The most tokens of a response that are looked at.
        top_k: How many candidates of each model enter the union.

    Returns:
        By the item's key, a list per figure with a value per position. ``js``: the Jensen-Shannon divergence in nats,
        over
        the union and one bucket for the rest. ``same_top``: whether both models would write the same. ``stands``:
            whether
        SAFE would leave the token: both would write it, or its mean probability over the union is above 1/2. And
            ``error``.
    """
    specs, settings = [models.specs[m] for m in pair], models.settings
    log = Log(
        folder / "first-tokens",
        "--".join(specs),
        {
            "models": [identity(spec) for spec in specs],
            **settings.of_text(),
            "positions": positions,
            "top_k": top_k,
        },
    )
    missing = list({item.key: item for item in items if item.key not in log.records}.values())
    what = f"{specs[0]} beside {specs[1]}: first tokens"
    progress(what, len(items) - len(missing), len(items))
    if missing:
        ensemble = models.pair(*pair)
        with log:
            for at in range(0, len(missing), settings.batch_size):
                batch = missing[at : at + settings.batch_size]
                done = ensemble.generate(
                    [item.prompt for item in batch],
                    method=Beside(UniTE(top_k=top_k)),
                    max_new_tokens=positions,
                    stop=settings.stop,
                    batch_size=settings.batch_size,
                    chat=settings.chat,
                    system=settings.system,
                    trace=True,
                )
                for item, completion in zip(batch, done, strict=True):
                    log.add({"key": item.key, "id": item.id, **_likeness(completion)})
                progress(what, len(items) - len(missing) + at + len(batch), len(items))
    return log.records


def _likeness(done: Completion) -> dict[str, Any]:
    steps = done.trace or []
    same = [step.model_top[0] == step.model_top[1] for step in steps]
    stands = []
    for step, alike in zip(steps, same, strict=True):
        mass = dict(zip(step.candidates, step.probs, strict=True)).get(step.chosen, 0.0)
        stands.append(alike or mass > 0.5)
    return {"js": [step.js for step in steps], "same_top": same, "stands": stands, "error": done.error}
