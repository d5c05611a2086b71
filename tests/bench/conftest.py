"""A record whose figures are written down."""

import pytest
from support.bench import MODELS, cell

from ensemble_decode.bench.record import Record


@pytest.fixture
def record():
    made = Record.begin(MODELS, "bfloat16", ["cpu", "cpu"], "not reported: only CUDA devices are read")
    made.cells = [cell("single-0", [0.1, 0.2, 0.4]), cell("unite", [0.2, 0.3, 0.4])]
    for prompt in (32, 128):
        made.cells += [
            cell("unite", [0.2], suite="length", prompt=prompt),
            cell("dictionary", [0.01 * prompt], suite="length", prompt=prompt, kind="baseline"),
        ]
    made.cells += [cell("unite", [0.1 / batch], suite="batch", batch=batch) for batch in (1, 4)]
    for count in (2, 3):
        made.cells.append(
            cell("unite", [0.1 * count], suite="models", models=MODELS + ["third"] * (count - 2), forward=[0.1] * count)
        )
    made.skipped = [{"subject": "segments", "label": "x", "batch": 4, "reason": "only <one> row"}]
    return made
