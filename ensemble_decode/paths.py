"""Where the package keeps what it downloads and computes once, and how a folder's changes reach the disk."""

import os
from pathlib import Path


def cache_home() -> Path | None:
    """The package's cache folder, which is not created here.

    It is ``$ENSEMBLE_DECODE_HOME``, else ``$XDG_CACHE_HOME/ensemble-decode``, else ``~/.cache/ensemble-decode``. A
    relative ``XDG_CACHE_HOME`` is ignored, as the XDG base directory specification asks.

    Returns:
        The absolute path, or None where it depends on a home folder and the user has none: containers often run under a
        number without a passwd entry and without ``HOME``. Whoever can do without the cache then does.
    """
    try:
        if home := os.environ.get("ENSEMBLE_DECODE_HOME"):
            return Path(home).expanduser().absolute()
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    except RuntimeError:  # pathlib's way of saying that there is no home folder
        return None
    return base / "ensemble-decode"


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a file that was renamed into it survives a loss of power.

    Args:
        folder: An existing folder.

    Raises:
        OSError: The folder cannot be opened or synced.
    """
    if os.name == "posix":  # elsewhere a folder cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
