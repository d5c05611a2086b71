"""The disk cache of aligned vocabularies: found again, rebuilt when damaged, done without where it cannot be
written."""

import json
import os

import numpy as np
import pytest
from support import tokenizers as tiny
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ensemble_decode.vocab import aligned as vocab_module
from ensemble_decode.vocab.aligned import AlignedVocab, ModelVocab
from ensemble_decode.vocab.disk_cache import contents_digest

NAMES = ["gemma", "qwen2"]


def build(folder, **changes):
    arguments = {"eos_ids": [tiny.eos_ids(name) for name in NAMES], "cache_dir": folder, **changes}
    return AlignedVocab.build([tiny.build(name) for name in NAMES], **arguments)


def same(one: AlignedVocab, other: AlignedVocab) -> bool:
    arrays = [
        all(np.array_equal(a, b) for a, b in zip(getattr(one, what), getattr(other, what), strict=True))
        for what in ("to_cid", "exact_id", "piece_id")
    ]
    models = all(
        (a.token_bytes, a.exact, a.eos_ids, a.size) == (b.token_bytes, b.exact, b.eos_ids, b.size)
        and np.array_equal(a.allowed, b.allowed)
        for a, b in zip(one.models, other.models, strict=True)
    )
    return all(arrays) and models and np.array_equal(one.prefix_end, other.prefix_end) and one.size == other.size


@pytest.fixture
def aligned_anew(monkeypatch):
    """Counts how often the vocabularies are aligned rather than loaded."""
    calls = []
    align = AlignedVocab._align.__func__
    monkeypatch.setattr(AlignedVocab, "_align", classmethod(lambda cls, models: calls.append(1) or align(cls, models)))
    return calls


def test_the_second_build_loads_what_the_first_wrote(tmp_path, aligned_anew):
    first, second = build(tmp_path / "new" / "folder"), build(tmp_path / "new" / "folder")
    assert len(aligned_anew) == 1
    assert same(first, second)
    assert first.models[0].encode(b"the \xff e\xcc\x81") == second.models[0].encode(b"the \xff e\xcc\x81")
    assert [file.suffix for file in (tmp_path / "new" / "folder").iterdir()] == [".npz"]


def test_the_file_holds_no_pickles(tmp_path):
    build(tmp_path)
    with np.load(next(tmp_path.iterdir()), allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": [None, 700]},
        {"eos_ids": [[1], [0]]},
    ],
)
def test_another_head_or_other_eos_ids_are_another_entry(tmp_path, aligned_anew, changes):
    build(tmp_path)
    build(tmp_path, **changes)
    assert len(aligned_anew) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_an_added_token_and_another_size_are_another_entry():
    one, other = tiny.BUILDERS["gpt2"](), tiny.BUILDERS["gpt2"]()
    assert ModelVocab.build(one).fingerprint() == ModelVocab.build(other).fingerprint()
    other.add_tokens(["<x>"])
    assert ModelVocab.build(one).fingerprint() != ModelVocab.build(other).fingerprint()
    assert ModelVocab.build(one).fingerprint() != ModelVocab.build(one, size=5000).fingerprint()


def test_other_tokens_under_the_name_of_the_same_folder_are_another_entry(tmp_path):
    """Tokenizers changed in memory keep the folder that they were read from: one retrained, one with a single token
    renamed."""
    tiny.build("gpt2").save_pretrained(tmp_path)
    one = AutoTokenizer.from_pretrained(tmp_path)
    trained = one.train_new_from_iterator(["zebra zoo of a far land"], vocab_size=len(one))
    renamed = AutoTokenizer.from_pretrained(tmp_path)
    contents = json.loads(renamed.backend_tokenizer.to_str())
    vocab = contents["model"]["vocab"]
    last = max(vocab, key=vocab.get)
    vocab["zzz"] = vocab.pop(last)
    contents["model"]["merges"] = contents["model"]["merges"][:-1]
    renamed._tokenizer = Tokenizer.from_str(json.dumps(contents))
    assert one.name_or_path == trained.name_or_path == renamed.name_or_path == str(tmp_path)
    assert len(renamed) == len(one)
    digests = [contents_digest(t, "t") for t in (one, trained, renamed, AutoTokenizer.from_pretrained(tmp_path))]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "missing array", "wrong shape"])
def test_a_damaged_file_is_built_again(tmp_path, aligned_anew, damage):
    first = build(tmp_path)
    file = next(tmp_path.iterdir())
    data = file.read_bytes()
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_bytes(b"not an archive")
    else:
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if damage == "missing array":
            del arrays["to_cid_1"]
        else:
            arrays["piece_id_0"] = arrays["piece_id_0"][:-1]
        with file.open("wb") as stream:
            np.savez(stream, **arrays)
    second = build(tmp_path)
    assert len(aligned_anew) == 2
    assert same(first, second)
    build(tmp_path)
    assert len(aligned_anew) == 2  # and the file is whole again


def test_a_file_whose_tokenizer_now_gives_other_ids_is_not_trusted(tmp_path, aligned_anew):
    build(tmp_path)
    file = next(tmp_path.iterdir())
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["samples_0"] = arrays["samples_0"][::-1]
    with file.open("wb") as stream:
        np.savez(stream, **arrays)
    build(tmp_path)
    assert len(aligned_anew) == 2


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, aligned_anew):
    (tmp_path / "file").write_bytes(b"")
    first, second = build(tmp_path / "file"), build(tmp_path / "file" / "below")
    assert len(aligned_anew) == 2
    assert same(first, second)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_cache_folder_means_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path))
    monkeypatch.setattr(vocab_module, "save_arrays", lambda *_: pytest.fail("nothing is to be written"))
    build(None)
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_is_the_packages_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path))
    build("default")
    assert [file.suffix for file in (tmp_path / "vocab").iterdir()] == [".npz"]
