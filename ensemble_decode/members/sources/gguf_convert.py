"""GGUF files, converted once to a plain folder of safetensors.

Reading a GGUF file through transformers takes up to a minute each time and by default keeps the weights in a form that
cannot be saved. Here it is done once: every tensor is dequantized in float32, rounded to the file's working dtype
(bfloat16 where anything is quantized), and saved with its tokenizer. The folder is kept under ``converted/`` in the
cache, named by the file's content and the versions that made it, and loads like any other.
"""

import functools
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ensemble_decode.errors import ModelError
from ensemble_decode.members.sources.gguf_tokenizer import FileTokenizer, doubts_of_saved, load_gguf_tokenizer
from ensemble_decode.members.sources.store import cache_folder, exclusive, file_sha256, published
from ensemble_decode.paths import cache_home

CONVERSION = 2  # raise it when a change here changes what a conversion writes
_READERS = ("gguf", "transformers", "tokenizers")
# Ids that end a text, a turn or a message; the file's own name for each.
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

_NOTE = "conversion.json"  # beside the weights: what to warn of at every load

_patching = threading.Lock()


def converted_folder(path: Path, name: str, sha256: str | None = None) -> Path:
    """The folder with the weights and the tokenizer of a GGUF file, converted first where it is missing.

    Args:
        path: The file.
        name: What errors and warnings call the model.
        sha256: The file's hash where it is known, which spares computing it.

    Raises:
        ModelError: The file cannot be read, a package is missing, or there is no folder to keep the conversion in.
    """
    made_by = "-".join([f"v{CONVERSION}", *(f"{package}{_version(package, name)}" for package in _READERS)])
    target = conversions_home() / f"{_prefix(sha256 or _remembered_sha256(path))}{made_by}"
    if not target.is_dir():
        with exclusive(target.parent):
            if not target.is_dir():  # another process converted it while this one waited
                _convert(path, name, target)
    for warning in _read_json(target / _NOTE).get("warnings", ()):
        warnings.warn(f"model {name}: {warning}", stacklevel=2)
    return target


def conversions_home() -> Path:
    """Where converted GGUF files are kept."""
    return cache_folder("converted")


def conversions(sha256: str) -> list[Path]:
    """The folders that hold conversions of the file with this hash, by any versions."""
    if cache_home() is None:
        return []
    return sorted(conversions_home().glob(f"{_prefix(sha256)}*"))


def remove_conversions(sha256: str) -> int:
    """Delete every conversion of the file with this hash; how many there were."""
    if not conversions(sha256):
        return 0
    with exclusive(conversions_home()):
        found = conversions(sha256)
        for folder in found:
            shutil.rmtree(folder)
    return len(found)


def _prefix(sha256: str) -> str:
    return f"{sha256[:32]}-"


def _version(package: str, name: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise ModelError(
            f"model {name}: reading a GGUF file needs the package {package}; install ensemble-decode[demo]"
        ) from None


def _remembered_sha256(path: Path) -> str:
    """The file's hash, computed again only when its size or time of change differs: large files take minutes."""
    status = path.stat()
    seen = [status.st_size, status.st_mtime_ns, status.st_ino]
    note = conversions_home() / "hashes.json"
    known = _read_json(note).get(str(path))
    if known is not None and known["seen"] == seen:
        return str(known["sha256"])
    digest = file_sha256(path)
    with suppress(ModelError, OSError), exclusive(note.parent):  # a cache that can only be read: hashed every time
        entries = _read_json(note) | {str(path): {"seen": seen, "sha256": digest}}
        partial = note.with_suffix(".partial")
        partial.write_text(json.dumps(entries, allow_nan=False))
        partial.replace(note)
    return digest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):  # missing, or cut short by a crash: it only saves time
        return {}


def _convert(path: Path, name: str, target: Path) -> None:
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    # A link in a folder of its own, so that files lying beside the GGUF file cannot change what it means.
    with tempfile.TemporaryDirectory(prefix="gguf-") as folder, published(target) as work:
        link = Path(folder) / path.name
        link.symlink_to(path)
        try:
            with read_once(link) as reader:
                dtype = _working_dtype(reader)
                listed = file_tokenizer(reader)
                tokenizer, doubts = load_gguf_tokenizer(link, listed)
                config = AutoConfig.from_pretrained(folder, gguf_file=link.name)
                model = AutoModelForCausalLM.from_pretrained(
                    folder,
                    gguf_file=link.name,
                    config=config,
                    dtype=dtype,
                    quantization_config=GgufConfig(dequantize=True),
                )
                ends = sorted({int(end) for key in _END_KEYS if (end := _text(reader, key)) is not None})
        except (ValueError, LookupError, NotImplementedError, ImportError, OSError) as error:
            raise ModelError(f"model {name}: this GGUF file cannot be read: {error}") from error
        if ends:
            model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
        try:
            model.save_pretrained(work)
        except SafetensorError as error:
            raise ModelError(
                f"model {name}: cannot write the converted weights to {target}: {error}; nothing was left half-written"
            ) from error
        tokenizer.save_pretrained(work)
        doubts += doubts_of_saved(work, listed)
        (work / _NOTE).write_text(json.dumps({"source": path.name, "warnings": doubts}, indent=1, allow_nan=False))


def _working_dtype(reader: Any) -> Any:
    """bfloat16 where a tensor is quantized; otherwise the file's own float type (norms aside), so nothing is lost."""
    import torch

    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    if not kinds <= set(plain):
        return torch.bfloat16
    halves = kinds - {"F32"}
    return plain[halves.pop()] if len(halves) == 1 else torch.float32


def file_tokenizer(reader: Any) -> FileTokenizer:
    """What an open ``gguf.GGUFReader`` says about its file's tokenizer."""

    def each(key: str) -> list[Any]:
        field = reader.get_field(f"tokenizer.ggml.{key}")
        return [] if field is None else list(field.contents())

    return FileTokenizer(
        model=_text(reader, "tokenizer.ggml.model"),
        pre=_text(reader, "tokenizer.ggml.pre"),
        tokens=each("tokens"),
        types=each("token_type"),
        merges=each("merges"),
    )


def _text(reader: Any, key: str) -> str | None:
    field = reader.get_field(key)
    return None if field is None else str(field.contents())


@contextmanager
def read_once(path: Path) -> Iterator[Any]:
    """A ``gguf.GGUFReader`` on ``path`` that transformers uses too, for as long as the block lasts.

    transformers parses the file anew for the config, the tokenizer and the weights (a quarter of a million strings
    each, one numpy memmap slice at a time), and builds the table of tensor names anew for every submodule. Nearly all
    of the loading time is there, so both are kept, and the slices are plain arrays, which cost half.
    """
    import gguf
    import numpy as np

    class ArrayReader(gguf.GGUFReader):
        def __setattr__(self, attribute: str, value: Any) -> None:
            super().__setattr__(attribute, value.view(np.ndarray) if attribute == "data" else value)

    reader = ArrayReader(path)
    real = os.path.realpath(path)
    package: Any = gguf
    original_reader, original_names = gguf.GGUFReader, gguf.get_tensor_name_map

    def shared_reader(asked: Any, *args: Any, **kwargs: Any) -> Any:
        return reader if os.path.realpath(asked) == real else original_reader(asked, *args, **kwargs)

    with _patching:
        package.GGUFReader, package.get_tensor_name_map = shared_reader, functools.cache(original_names)
        try:
            yield reader
        finally:
            package.GGUFReader, package.get_tensor_name_map = original_reader, original_names
