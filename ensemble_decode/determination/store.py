"""What has been run is kept, line by line, so that nothing is run twice and a stopped run resumes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ensemble_decode.errors import InputError


class Log:
    """A file of JSON lines, one result each, found by ``key``. Its first line says what the results depend on.

    A line that was cut off by a kill is dropped. ``settings``: what the file's name is made from, so that other
    settings go to another file. Used as a context manager while it is written.
    """

    def __init__(self, folder: Path, title: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True)
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", title).strip("-")[-60:]
        self.path = folder / f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.jsonl"
        self.settings = json.loads(text)
        self.records: dict[str, dict[str, Any]] = {}
        self._file: IO[str] | None = None
        self._read()

    def _read(self) -> None:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, cut = raw.rpartition(b"\n")
        lines = [json.loads(line) for line in whole.split(b"\n") if line]
        if cut:
            os.truncate(self.path, len(raw) - len(cut))
        if lines and lines[0].get("settings") != self.settings:
            raise InputError(f"{self.path}: holds results of other settings; give another output folder")
        self.records = {line["key"]: line for line in lines[1:]}

    def __enter__(self) -> Log:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        self._file = self.path.open("a", encoding="utf-8")
        if fresh:
            self._write({"settings": self.settings})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None

    def add(self, record: dict[str, Any]) -> None:
        """Keep one result; it is on disk when this returns."""
        self._write(record)
        self.records[record["key"]] = record

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None, "a log is written inside 'with'"
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()


def identity(spec: str) -> list[Any]:
    """What tells one model from another under the same name: of a local folder or file, its weights' names, sizes and
    times."""
    path = Path(spec).expanduser()
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".bin", ".gguf", ".json"))
    else:
        return [spec]
    return [spec, *([p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files)]
