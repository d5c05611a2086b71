"""Where the package keeps what it downloads and computes once."""

import os
from pathlib import Path


def cache_home() -> Path:
    """The cache folder (not created): ``$ENSEMBLE_DECODE_HOME``, else ``$XDG_CACHE_HOME/ensemble-decode``, else
    ``~/.cache/ensemble-decode``. A relative ``XDG_CACHE_HOME`` is ignored, as its specification asks."""
    if home := os.environ.get("ENSEMBLE_DECODE_HOME"):
        return Path(home).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "ensemble-decode"
