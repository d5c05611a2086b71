"""The build backend: scikit-build-core, with two changes.

Editable wheels put nothing on ``sys.path``. scikit-build-core finds an editable package's modules through an import
hook, which is enough, but its ``.pth`` file also adds the folders that hold the packages to ``sys.path``. Here one of
them is the repository's root, where ``kernels/`` would become a top-level module, a name that transformers imports when
it finds it. So those lines are taken out.

Metadata is prepared without compiling. Because the build may fall back to one without native code, scikit-build-core
offers no way to ask for metadata alone, and installers would compile everything twice. The metadata is the same either
way, so it is taken from a wheel without native code.
"""

import base64
import hashlib
import tempfile
import zipfile
from pathlib import Path

from scikit_build_core import build as _backend

build_sdist = _backend.build_sdist
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
get_requires_for_build_wheel = _backend.get_requires_for_build_wheel
get_requires_for_build_editable = _backend.get_requires_for_build_editable


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517. The prepared metadata is not handed on: its WHEEL file names the tags of a wheel without native code."""
    return _backend.build_wheel(wheel_directory, config_settings)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660: the editable wheel, without its ``sys.path`` entries."""
    name = _backend.build_editable(wheel_directory, config_settings)
    _without_paths(Path(wheel_directory) / name)
    return name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517: the ``.dist-info`` folder, from a wheel that compiles nothing."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**(config_settings or {}), "wheel.cmake": "false", "wheel.py-api": "py3"}
        with zipfile.ZipFile(Path(folder) / _backend.build_wheel(folder, settings)) as wheel:
            names = [name for name in wheel.namelist() if name.split("/")[0].endswith(".dist-info")]
            wheel.extractall(metadata_directory, names)
    return names[0].split("/")[0]


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def _without_paths(wheel):
    """Keep only the import lines of every ``.pth`` file in ``wheel``, in place, and write its RECORD to match."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    changed = {}
    for info, content in entries:
        if info.filename.endswith(".pth"):
            lines = content.decode().splitlines()
            changed[info.filename] = "".join(f"{line}\n" for line in lines if line.startswith("import ")).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in entries:
            if info.filename.endswith(".dist-info/RECORD"):
                content = _record(content, changed)
            archive.writestr(info, changed.get(info.filename, content))


def _record(content, changed):
    lines = []
    for line in content.decode().splitlines():
        path = line.rsplit(",", 2)[0].strip('"')
        if path in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[path]).digest()).rstrip(b"=").decode()
            line = f"{path},sha256={digest},{len(changed[path])}"
        lines.append(line + "\n")
    return "".join(lines).encode()
