"""Two tiny models, as the command line and the library have them."""

import pytest
from support.command_line import tiny_pair

import ensemble_decode as ed


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The options that name two tiny models with different tokenizers."""
    return tiny_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def library(pair):
    """The same two models through the library."""
    return ed.Ensemble.load([pair[1], pair[3]], device="cpu", dtype="float32", cache_dir=None)
