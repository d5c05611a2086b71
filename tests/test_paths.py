"""The cache folder: where it lies, and a user who has no home folder to keep it in."""

import os
import pwd

import pytest
from support import tokenizers as tiny
from typer.testing import CliRunner

from ensemble_decode import paths
from ensemble_decode.cli.app import app
from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members import sources
from ensemble_decode.members.sources import gguf_convert
from ensemble_decode.members.sources.specs import parse_spec
from ensemble_decode.vocab.aligned import AlignedVocab


def test_cache_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "a"))
    assert paths.cache_home() == tmp_path / "a"
    monkeypatch.delenv("ENSEMBLE_DECODE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert paths.cache_home() == tmp_path / "b" / "ensemble-decode"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_home() == tmp_path / ".cache" / "ensemble-decode"


@pytest.fixture
def homeless(monkeypatch):
    """A number without a passwd entry and without HOME, as containers run programs."""

    def no_entry(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "ENSEMBLE_DECODE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)


def test_without_a_home_folder_vocabularies_are_aligned_and_not_kept(homeless):
    assert paths.cache_home() is None
    aligned = AlignedVocab.build([tiny.build("bytes")])
    assert aligned.cid_of(b" ") == aligned.space_cid


def test_without_a_home_folder_demo_models_are_listed_as_absent(homeless):
    assert [(status.fetched, status.path) for status in sources.list_demos()] == [(False, None)] * 2
    assert sources.remove_demo("smollm2") is False
    assert gguf_convert.remove_conversions("0" * 64) == 0


def test_without_a_home_folder_what_must_be_kept_names_the_variable(homeless, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"")
    for use in (lambda: sources.fetch_demo("smollm2"), lambda: gguf_convert.converted_folder(tmp_path / "m.gguf", "m")):
        with pytest.raises(ModelError, match="no home folder; set ENSEMBLE_DECODE_HOME"):
            use()


def test_a_name_that_begins_at_a_missing_home_folder_is_refused(homeless):
    with pytest.raises(InputError, match="no home folder; name the model's full path"):
        parse_spec("~/model")


def test_without_a_home_folder_a_tilde_in_the_variable_means_no_cache(homeless, monkeypatch):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", "~/cache")
    assert paths.cache_home() is None


@pytest.mark.parametrize("arguments", [["info", "--json"], ["models", "list"]])
def test_commands_run_without_a_home_folder(homeless, arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    if arguments[0] == "info":
        assert "this user has no home folder" in done.output
    else:
        assert done.output.count("not downloaded") == 2


@pytest.mark.skipif(os.name != "posix", reason="folders are synced where they can be opened")
def test_a_folder_is_synced_and_a_missing_one_is_an_error(tmp_path):
    paths.sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        paths.sync_folder(tmp_path / "absent")
