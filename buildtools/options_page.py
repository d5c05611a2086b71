"""Write docs/options.md from the classes that describe the options: ``python buildtools/options_page.py``."""

from __future__ import annotations

from pathlib import Path

from ensemble_decode.methods.options import options_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
_HEAD = """# Options

Every option of every method, gate, sharpening, of sampling and of limits. This page is made from the classes
themselves, by `python buildtools/options_page.py`; so are the command line, the fields of JSONL and the JSON schema.
`ensemble-decode methods` prints the same, `ensemble-decode methods --json` the schema.

A method is written with its options: `safe(draft_length=auto, sharpen=geometric, base=gac(threshold=0.4))`; or as JSON:
`{"name": "safe", "draft_length": "auto", "base": {"name": "gac", "threshold": 0.4}}`.

"""


def page() -> str:
    """The page as it should be."""
    return _HEAD + options_table().rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
