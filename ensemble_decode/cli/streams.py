"""Text in and out: files and standard input byte for byte, standard output in UTF-8 wherever it goes."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ensemble_decode.errors import InputError

if TYPE_CHECKING:
    from ensemble_decode.outputs import Delta


def prepare_output() -> None:
    """Make standard output hold every text: UTF-8 where redirected, escapes where a terminal lacks a character."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        if out.isatty():
            out.reconfigure(errors="backslashreplace")
        else:
            out.reconfigure(encoding="utf-8", errors="backslashreplace")


def write_json(value: Any, *, indent: int | None = None) -> None:
    """Write one JSON value and a line's end to standard output; what UTF-8 cannot hold is escaped, as JSON allows."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def writer(console: Console) -> "Callable[[Delta], None]":
    """A receiver of deltas that writes their text to ``console`` at once, as it is: no markup, no wrapping."""

    def write(delta: "Delta") -> None:
        console.file.write(delta.text)
        console.file.flush()

    return write


def read_text(source: Path | None) -> str:
    """The text of a file or of standard input, less a byte-order mark at its start; line ends stay as they are.

    Args:
        source: The file; None and ``-`` are standard input.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    standard = source is None or str(source) == "-"
    name = "standard input" if standard else str(source)
    try:
        data = _standard_input() if source is None or standard else source.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from error


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("no prompt; give it as an argument, with --file, or on standard input")
    return sys.stdin.buffer.read()
