"""The vocabularies of several models over one set of candidate byte strings."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ensemble_decode.errors import InputError
from ensemble_decode.kernels import VocabTensors
from ensemble_decode.vocab.disk_cache import cache_key, load_arrays, pack, save_arrays, unpack, vocab_folder
from ensemble_decode.vocab.model import ModelVocab, Source

__all__ = ["AlignedVocab", "ModelVocab"]


def prefix_ranges(candidates: Sequence[bytes]) -> np.ndarray:
    """Where, in a sorted list, the strings that start with each string end; int32 ``[len(candidates)]``."""
    ends = np.empty(len(candidates), dtype=np.int32)
    open_: list[int] = []
    for index, item in enumerate(candidates):
        while open_ and not item.startswith(candidates[open_[-1]]):
            ends[open_.pop()] = index
        open_.append(index)
    ends[open_] = len(candidates)
    return ends


class AlignedVocab:
    """Candidates across models: every byte string that some model can emit, in lexicographic order, and END last.

    Byte strings that some model cannot spell (`ModelVocab.unspellable`) are left out, and not allowed in any of
    ``models``, so that every candidate may follow any text in every model.

    ``models``: one `ModelVocab` each. ``size``: ``N``, END is ``N - 1``. ``to_cid[m]`` int32 ``[V_m]`` (−1 where not
    allowed), ``exact_id[m]`` and ``piece_id[m]`` int32 ``[N]`` (−1 where none), ``prefix_end`` int32 ``[N]``: candidate
    y is a proper prefix of x iff ``y < x < prefix_end[y]``.
    """

    def __init__(
        self,
        models: Sequence[ModelVocab],
        candidates: Sequence[bytes],
        to_cid: list[np.ndarray],
        exact_id: list[np.ndarray],
        piece_id: list[np.ndarray],
        prefix_end: np.ndarray,
    ):
        self.models = [model.restricted(known >= 0) for model, known in zip(models, to_cid, strict=True)]
        self.size = len(candidates) + 1
        self.to_cid, self.exact_id, self.piece_id, self.prefix_end = to_cid, exact_id, piece_id, prefix_end
        self._candidates = list(candidates)
        space = self.cid_of(b" ")
        self.space_cid = -1 if space is None else space
        self._tensors: dict[torch.device, VocabTensors] = {}

    def bytes_of(self, cid: int) -> bytes:
        """The bytes of a candidate; ``b""`` for END."""
        if not 0 <= cid < self.size:
            raise InputError(f"candidate id {cid} does not exist; expected 0 to {self.size - 1}")
        return self._candidates[cid] if cid < self.size - 1 else b""

    def cid_of(self, data: bytes) -> int | None:
        """The candidate whose bytes are ``data``, or None; END has no bytes."""
        cid = bisect_left(self._candidates, data)
        return cid if cid < len(self._candidates) and self._candidates[cid] == data else None

    @classmethod
    def build(
        cls,
        tokenizers: Sequence[Any],
        sizes: Sequence[int | None] | None = None,
        eos_ids: Sequence[Iterable[int]] | None = None,
        names: Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = "default",
    ) -> AlignedVocab:
        """Align the vocabularies of several tokenizers.

        Args:
            tokenizers: One for each model, or `ModelVocab` objects, which bring their own size and EOS ids.
            sizes: Rows of each head.
            eos_ids: For each model, EOS ids beside the tokenizer's own.
            names: What errors call the models.
            cache_dir: Where the result is kept for the next time. ``"default"``: the package's cache folder; None:
                nowhere. A damaged file is built again. A folder that cannot be written, or that a user without a home
                folder does not have, is done without.

        Raises:
            TokenizerError: A tokenizer cannot be read as bytes.
            InputError: The lists have different lengths, or are empty.
        """
        count = len(tokenizers)
        if not count:
            raise InputError("an aligned vocabulary needs at least one tokenizer")
        for what, given in (("sizes", sizes), ("eos_ids", eos_ids), ("names", names)):
            if given is not None and len(given) != count:
                raise InputError(f"{what} has {len(given)} entries for {count} tokenizers; expected one for each")
        sources = [
            tokenizer.source
            if isinstance(tokenizer, ModelVocab)
            else Source(
                tokenizer,
                None if sizes is None else sizes[index],
                () if eos_ids is None else eos_ids[index],
                f"model {index}" if names is None else names[index],
            )
            for index, tokenizer in enumerate(tokenizers)
        ]
        folder = vocab_folder(cache_dir)
        if folder is None:
            return cls._align([_model(*pair) for pair in zip(tokenizers, sources, strict=True)])
        file = folder / f"{cache_key([source.fingerprint for source in sources])}.npz"
        stored = load_arrays(file)
        if stored is not None and (aligned := cls._restore(sources, stored)) is not None:
            return aligned
        aligned = cls._align([_model(*pair) for pair in zip(tokenizers, sources, strict=True)])
        save_arrays(file, aligned._arrays())
        return aligned

    @classmethod
    def _align(cls, models: list[ModelVocab]) -> AlignedVocab:
        # A byte that one model cannot spell must not enter the text, whichever model proposes it.
        bad = bytes(set[int]().union(*(model.unspellable for model in models)))
        every = set[bytes]().union(*(model.exact for model in models))
        candidates = sorted(item for item in every if len(item.translate(None, bad)) == len(item))
        cids = {item: index for index, item in enumerate(candidates)}
        size = len(candidates) + 1
        to_cid, exact_id, piece_id = [], [], []
        for model in models:
            forward = np.fromiter((cids.get(piece, -1) for piece in model.token_bytes), np.int32, model.size)
            forward[list(model.eos_ids)] = size - 1
            exact = np.full(size, -1, np.int32)
            held = [(cid, index) for piece, index in model.exact.items() if (cid := cids.get(piece)) is not None]
            exact[[cid for cid, _ in held]] = [index for _, index in held]
            if model.eos_ids:
                exact[-1] = model.eos_ids[0]
            pieces = exact.copy()
            absent = np.flatnonzero(exact[:-1] < 0)
            pieces[absent] = [ids[0] for ids in model.encode_many([candidates[index] for index in absent])]
            to_cid.append(forward)
            exact_id.append(exact)
            piece_id.append(pieces)
        ends = np.append(prefix_ranges(candidates), np.int32(size))
        return cls(models, candidates, to_cid, exact_id, piece_id, ends)

    def _arrays(self) -> dict[str, np.ndarray]:
        """Everything that takes time to work out, as arrays without Python objects."""
        data, lengths = pack(self._candidates)
        arrays = {"candidates": data, "candidate_lengths": lengths, "prefix_end": self.prefix_end}
        for m, model in enumerate(self.models):
            data, lengths = pack(model.token_bytes)
            arrays |= {
                f"pieces_{m}": data,
                f"piece_lengths_{m}": lengths,
                f"canonical_{m}": np.asarray(model.canonical, np.int32),
                f"samples_{m}": np.asarray(model.sample_ids(), np.int32),
                f"to_cid_{m}": self.to_cid[m],
                f"exact_id_{m}": self.exact_id[m],
                f"piece_id_{m}": self.piece_id[m],
            }
        return arrays

    @classmethod
    def _restore(cls, sources: Sequence[Source], arrays: dict[str, np.ndarray]) -> AlignedVocab | None:
        """From stored arrays; None where they are not whole or the tokenizers no longer give the stored ids."""
        try:
            candidates = unpack(arrays["candidates"], arrays["candidate_lengths"])
            models = []
            for m, source in enumerate(sources):
                pieces = unpack(arrays[f"pieces_{m}"], arrays[f"piece_lengths_{m}"])
                model = ModelVocab.restore(source, pieces, arrays[f"canonical_{m}"].tolist())
                if model.sample_ids() != arrays[f"samples_{m}"].tolist():
                    return None
                models.append(model)
            to_cid, exact_id, piece_id = (
                [arrays[f"{what}_{m}"] for m in range(len(sources))] for what in ("to_cid", "exact_id", "piece_id")
            )
            ends = arrays["prefix_end"]
        except (KeyError, ValueError, IndexError):
            return None
        size = len(candidates) + 1
        if ends.shape != (size,) or any(array.shape != (size,) for array in (*exact_id, *piece_id)):
            return None
        if any(array.shape != (model.size,) for array, model in zip(to_cid, models, strict=True)):
            return None
        return cls(models, candidates, to_cid, exact_id, piece_id, ends)

    def tensors(self, device: str | torch.device = "cpu") -> VocabTensors:
        """The maps as int32 tensors on ``device``, made once for each device."""
        device = torch.device(device)
        if device not in self._tensors:

            def move(array: np.ndarray) -> torch.Tensor:
                return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)

            self._tensors[device] = VocabTensors(
                to_cid=[move(array) for array in self.to_cid],
                exact_id=[move(array) for array in self.exact_id],
                piece_id=[move(array) for array in self.piece_id],
                allowed=[move(bitmask(model.allowed))[None] for model in self.models],
                eos_ids=[move(np.asarray(model.eos_ids, dtype=np.int32)) for model in self.models],
                prefix_end=move(self.prefix_end),
                space_cid=self.space_cid,
                size=self.size,
            )
        return self._tensors[device]


def _model(tokenizer: Any, source: Source) -> ModelVocab:
    return tokenizer if isinstance(tokenizer, ModelVocab) else ModelVocab.from_source(source)


def bitmask(allowed: np.ndarray) -> np.ndarray:
    """A boolean array packed as grammar libraries do: int32 ``[ceil(V / 32)]``, bit ``i % 32`` of word ``i // 32``."""
    words = -(-len(allowed) // 32)
    padded = np.zeros(words * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32)
