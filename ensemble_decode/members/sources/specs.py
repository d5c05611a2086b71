"""What a user writes to name a model, and what it means."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ensemble_decode.errors import InputError
from ensemble_decode.members.sources.catalogue import DEMO_MODELS

# owner/name or name, as the hub allows; revisions are branch names, tags and commits
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class ModelSpec:
    """One model as named by the user.

    Attributes:
        kind: How ``location`` is read. ``"hub"``: a repository id; ``"folder"``: a folder that ``save_pretrained``
            wrote; ``"gguf"``: a GGUF file; ``"demo"``: a name of the catalogue of demo models.
        location: The id, path or name.
        revision: Branch, tag or commit, for ``"hub"`` alone.
    """

    kind: Literal["hub", "folder", "gguf", "demo"]
    location: str
    revision: str | None = None

    @property
    def name(self) -> str:
        """What messages call the model."""
        if self.kind == "demo":
            return f"demo:{self.location}"
        if self.kind == "hub":
            return self.location if self.revision is None else f"{self.location}@{self.revision}"
        return Path(self.location).name


def parse_spec(spec: "str | os.PathLike[str] | ModelSpec", revision: str | None = None) -> ModelSpec:
    """Read a model's name. A path that exists is taken before a hub id of the same spelling.

    Args:
        spec: ``demo:NAME``, a path to a folder or a ``.gguf`` file, or ``ID[@REVISION]`` on the hub.
        revision: Branch, tag or commit of a hub id, where the name does not hold it.

    Raises:
        InputError: The name fits nothing, or a revision is given for something that has none.
    """
    if isinstance(spec, ModelSpec):
        return spec
    text = os.fspath(spec)
    parsed = _parse(text, revision)
    if revision is not None and parsed.kind != "hub":
        raise InputError(f"model {text!r}: a revision ({revision!r}) is for a hub id; this is a {parsed.kind} model")
    return parsed


def _parse(text: str, revision: str | None) -> ModelSpec:
    if text.startswith("demo:"):
        name = text.removeprefix("demo:")
        if name not in DEMO_MODELS:
            raise InputError(
                f"model {text!r}: no such demo model; there are {', '.join(f'demo:{n}' for n in DEMO_MODELS)}"
            )
        return ModelSpec("demo", name)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"model {text!r}: this user has no home folder; name the model's full path") from error
    if text and path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"model {text!r}: the folder has no config.json; name a folder that save_pretrained wrote")
        return ModelSpec("folder", str(path.absolute()))
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"model {text!r}: no such GGUF file")
        return ModelSpec("gguf", str(path.absolute()))
    if path.is_file():
        raise InputError(f"model {text!r}: a file, but not a .gguf one; name a folder, a .gguf file or a hub id")
    hub_id, at, suffix = text.partition("@")
    if at and revision is not None and suffix != revision:
        raise InputError(f"model {text!r}: two revisions, {suffix!r} in its name and {revision!r} beside it")
    revision = suffix if at else revision
    if not _HUB_ID.fullmatch(hub_id) or (revision is not None and not _REVISION.fullmatch(revision)):
        raise InputError(
            f"model {text!r}: neither an existing folder, a .gguf file, demo:NAME "
            f"nor a hub id (owner/name or owner/name@revision)"
        )
    return ModelSpec("hub", hub_id, revision)
