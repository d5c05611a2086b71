"""The command line in this process."""

import io
import sys
from typing import NamedTuple

import pytest

from ensemble_decode.cli import app
from support import tiny_models


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs `ensemble-decode` with arguments; standard input is `stdin`, which is no terminal."""

    def __init__(self, monkeypatch, capsys):
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments, stdin=b"", columns=200) -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "argv", ["ensemble-decode", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
            with pytest.raises(SystemExit) as stopped:
                app.main()
        return Ended(stopped.value.code or 0, *self.capsys.readouterr())


def tiny_pair(home) -> list[str]:
    """The options that name two tiny models with different tokenizers, saved in folders under `home`."""
    first = tiny_models.save_tiny(home / "first", "llama", "llama3", seed=1)
    second = tiny_models.save_tiny(home / "second", "gpt2", "gpt2", seed=2)
    return ["--model", str(first), "--model", str(second), "--device", "cpu", "--dtype", "float32"]
