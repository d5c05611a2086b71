"""docs/options.md says what the classes say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_options_is_the_classes_own():
    made = runpy.run_path(str(ROOT / "buildtools" / "options_page.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run: python buildtools/options_page.py"
