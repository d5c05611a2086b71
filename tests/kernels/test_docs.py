"""The examples of docs/operators.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "operators.md"


def test_examples_run_and_say_what_the_page_says():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    step = names["step"]
    assert step.cids.tolist()[0][: step.count.item()] == [0, 1, 2, 3]
    assert step.sharpened.item()
    assert {operator for operator, _, _ in names["calls"]} == {"topk_stats"}
