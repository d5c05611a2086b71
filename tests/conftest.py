"""Settings that every test shares."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that spin while they wait make tiny models a hundred times slower as soon as another process wants the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread for each worker: workers that want each other's cores wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    # Before anything imports triton: its decorators read this once. On a CPU its kernels run in its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items):
    """Tests on the demo models come first: they are the long ones, and a long one at the end leaves the other worker
    idle."""
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


@pytest.fixture(scope="session")
def demo_models():
    """Both demo models in float32, as (model, tokenizer): loaded once for all tests of a worker."""
    from support.oracle import sweep

    return sweep.load_demo()


@pytest.fixture(scope="session")
def demo_oracle(demo_models):
    """The oracle's models over them."""
    from support.oracle.model import Model, align

    return align([Model(*pair) for pair in demo_models])


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command line in this process: `code, out, err = run("generate", ...)`. Its cache folder is the test's
    own."""
    from support.command_line import CommandLine

    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "home"))
    return CommandLine(monkeypatch, capsys)
