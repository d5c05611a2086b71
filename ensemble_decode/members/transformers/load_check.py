"""What a runner proves about a model before it is used: cached, ragged and rolled back, it answers as it does alone."""

from __future__ import annotations

import torch

from ensemble_decode.errors import ModelError
from ensemble_decode.members.protocol import Member
from ensemble_decode.members.transformers.rollback_support import ADVICE

_LENGTHS = (7, 4)


def probe_ids(size: int) -> list[list[int]]:
    """Two short rows of ids spread over a vocabulary of ``size``."""
    return [[(row + 1) * (i + 1) * 7919 % size for i in range(length)] for row, length in enumerate(_LENGTHS)]


def own_logits(model: torch.nn.Module, rows: list[list[int]], device: torch.device) -> list[torch.Tensor]:
    """Each row's logits ``[length, V]`` from the model itself: no cache, no batch."""
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0] for ids in rows]


def check_against(runner: Member, kind: str, rows: list[list[int]], expected: list[torch.Tensor]) -> None:
    """Run two rows through a member, with a ragged second step and a rollback, and compare their logits.

    The allowed difference is a share of the spread of the logits: 0.1 % in float32, 25 % in half precision (rounding of
    unlucky models). So this finds an attention or head that does something unknown, not a wrong bit.

    Args:
        runner: The member.
        kind: The class of its model, for the error.
        rows: Token ids of the two rows.
        expected: Their logits ``[length, V]``.

    Raises:
        ModelError: They differ.
    """
    first, second = rows
    slots = [runner.acquire(), runner.acquire()]
    runner.extend(slots[:1], [first[:4] + second[:2]], "none")
    runner.rollback(slots[0], 2)
    out = runner.extend(slots, [first[2:], second], "all")
    got = [out.values[a:b] for a, b in zip(out.starts[:-1], out.starts[1:], strict=True)]
    tolerance = 1e-3 if runner.dtype == torch.float32 else 0.25
    for values, wanted in zip(got, (expected[0][2:], expected[1]), strict=True):
        wanted = wanted.float()
        if not bool(torch.isfinite(wanted).all()):
            continue  # broken weights are not this check's business: rows with NaN logits fail by themselves
        gap = float((values.float() - wanted).abs().max())
        spread = float(wanted.std())
        if not gap <= tolerance * spread + 1e-6:
            raise ModelError(
                f"{runner.name} ({kind}): with its keys and values in row slots its logits differ from "
                f"its own by {gap:.3g} (their spread is {spread:.3g}), so something in its attention or head is not "
                f"supported; {ADVICE}"
            )
    for slot in slots:
        runner.release(slot)
