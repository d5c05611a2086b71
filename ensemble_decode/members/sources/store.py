"""Files of the cache: locks, hashes, and folders that appear whole or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from ensemble_decode.errors import ModelError
from ensemble_decode.paths import cache_home, sync_folder

_CHUNK = 1 << 20
_TEMPORARY = ".tmp-"


def cache_folder(name: str) -> Path:
    """The folder called ``name`` in the package's cache, which is not created here.

    Raises:
        ModelError: The user has no home folder and names no other one.
    """
    home = cache_home()
    if home is None:
        raise ModelError(
            "there is no folder to keep models in: this user has no home folder; set ENSEMBLE_DECODE_HOME to a folder "
            "that can be written"
        )
    return home / name


def file_sha256(path: Path) -> str:
    """The hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold ``folder`` alone, across processes; whoever comes second waits. A process that dies lets go of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire()
    except OSError as error:
        raise ModelError(
            f"cannot use the cache folder {folder}: {error.strerror or error}; "
            f"set ENSEMBLE_DECODE_HOME to a folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A new folder to fill; when the block ends well it becomes ``target``, otherwise it is removed.

    Call it under ``exclusive(target.parent)``: what an earlier process left half-written there is cleared first.
    """
    clear_leftovers(target.parent)
    try:
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=target.parent))
        try:
            yield work
            _sync_tree(work)  # contents reach the disk before the rename that publishes them
            shutil.rmtree(target, ignore_errors=True)
            os.replace(work, target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    except OSError as error:
        if error.errno is None:  # not from the operating system: a library's own way of saying something else
            raise
        raise ModelError(f"cannot write {target}: {error.strerror}; nothing was left half-written") from error


def clear_leftovers(folder: Path) -> None:
    """Remove what processes that died left behind in ``folder``; call it under ``exclusive(folder)``."""
    for path in folder.glob(_TEMPORARY + "*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
