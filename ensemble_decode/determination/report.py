"""The report of ``determine``: its findings, as a page and as files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ensemble_decode.determination.findings import Findings
from ensemble_decode.determination.html import page


@dataclass(frozen=True)
class Report(Findings):
    """What ``determine`` returns: ``Findings`` that can be shown."""

    def to_html(self) -> str:
        """One page with everything in it: no file beside it, nothing fetched.

        Raises:
            InputError: matplotlib or jinja2 is not installed (the extra ``determine``).
        """
        return page(self)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``report.json`` and ``report.html``.

        Args:
            folder: Where; it is made where it is missing.

        Returns:
            The two paths.
        """
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        files = [home / "report.json", home / "report.html"]
        for file, text in zip(files, (self.to_json(), self.to_html()), strict=True):
            file.write_text(text, encoding="utf-8")
        return files
