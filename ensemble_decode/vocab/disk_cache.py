"""Aligned vocabularies kept on disk: what identifies one, how it is written, and when a file is not to be trusted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ensemble_decode.errors import TokenizerError
from ensemble_decode.paths import cache_home
from ensemble_decode.vocab.token_bytes import component, rust_tokenizer, tiktoken_encoding

_FORMAT = 2  # raise it whenever the arrays, or the rules behind them, change


def contents_digest(tokenizer: Any, name: str) -> str:
    """A hash of everything that decides which ids a tokenizer gives.

    The model behind a tokenizer that transformers read from a folder is hashed as that folder's ``tokenizer.json``,
    which is faster than writing it out again, and as its tokens: retrained on other text or given other tokens in
    memory, it still names the folder it came from.
    """
    digest = hashlib.sha256()
    special = sorted(getattr(tokenizer, "all_special_ids", ()) or ())
    rust = rust_tokenizer(tokenizer)
    if rust is None:
        encoding = tiktoken_encoding(tokenizer)
        if encoding is None:
            raise TokenizerError(f"{name}: {type(tokenizer).__name__} is not a tokenizer that can be read")
        digest.update(encoding._pat_str.encode())
        for piece, index in sorted(encoding._mergeable_ranks.items()):
            digest.update(f"{index}:{len(piece)}:".encode() + piece)
        digest.update(repr(sorted(encoding._special_tokens.items())).encode())
        return digest.hexdigest()
    parts = [component(part, name) for part in (rust.normalizer, rust.pre_tokenizer, rust.decoder)]
    added = [
        (index, token.content, token.special, token.single_word, token.lstrip, token.rstrip, token.normalized)
        for index, token in sorted(rust.get_added_tokens_decoder().items())
    ]
    digest.update(json.dumps([type(rust.model).__name__, parts, added, special, rust.get_vocab_size()]).encode())
    folder = getattr(tokenizer, "name_or_path", "")
    file = Path(folder) / "tokenizer.json" if folder else None
    if file is not None and file.is_file():
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
        tokens = map(rust.id_to_token, range(rust.get_vocab_size()))
        digest.update("\0".join(map(str, tokens)).encode())
    else:
        digest.update(rust.model.__getstate__())
    return digest.hexdigest()


def cache_key(fingerprints: Sequence[str]) -> str:
    """The name of the file for models with these fingerprints, in this order."""
    text = json.dumps([_FORMAT, tokenizers.__version__, list(fingerprints)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def vocab_folder(cache_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder that ``cache_dir`` stands for.

    Args:
        cache_dir: A folder; ``"default"``: the package's own; None: no folder.

    Returns:
        The folder, or None where nothing is to be kept, or where the user has no home folder for the package's own.
    """
    if cache_dir == "default":
        home = cache_home()
        return None if home is None else home / "vocab"
    return None if cache_dir is None else Path(cache_dir)


def save_arrays(file: Path, arrays: dict[str, np.ndarray]) -> bool:
    """Write arrays so that a reader sees the whole file or none.

    Args:
        file: Where; its folder is created.
        arrays: What, by name; none of Python objects.

    Returns:
        False where the folder cannot be written.
    """
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as stream:
            temporary = stream.name
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, file)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def load_arrays(file: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a file; None where it is missing, cut short or damaged (each array carries a checksum)."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except Exception:  # a damaged archive fails in many ways, and every one means: build it again
        return None


def pack(items: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Byte strings as one array of bytes and one of their lengths."""
    items = list(items)
    lengths = np.fromiter(map(len, items), np.int32, len(items))
    return np.frombuffer(b"".join(items), np.uint8), lengths


def unpack(data: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    """The byte strings that `pack` packed.

    Args:
        data: uint8, all of them joined.
        lengths: int32, of each.

    Raises:
        ValueError: The two arrays do not fit.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    if (len(ends) and int(ends[-1]) != data.size) or bool((lengths < 0).any()):
        raise ValueError("lengths and bytes differ")
    whole = data.tobytes()
    stops = ends.tolist()
    return list(map(whole.__getitem__, map(slice, [0, *stops], stops)))
