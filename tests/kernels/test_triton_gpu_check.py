"""The GPU script: goes through all its steps in the interpreter, finds a wrong operator, and says when there is no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from ensemble_decode.kernels import dispatch

from ensemble_decode import kernels

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "gpu_check.py"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the script itself is the check on a GPU")
REASON = dispatch.unavailable_reason("triton", "fuse_step", "cpu")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so(script, capsys, monkeypatch):
    assert script.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().out


@pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}")
def test_dry_run_checks_measures_and_writes(script, tmp_path, capsys):
    page = tmp_path / "gpu.md"
    assert script.main(["--dry-run", "--out", str(page)]) == 0
    text = page.read_text()
    assert "interpreter, not a GPU" in text.splitlines()[0]
    assert sum(line.startswith("| 2 × ") for line in text.splitlines()) == 2  # eager and ours, one size, one batch


@pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}")
def test_a_wrong_operator_ends_it(script, capsys, monkeypatch):
    right = kernels.topk_stats
    monkeypatch.setattr(kernels, "topk_stats", lambda *a, **k: (r := right(*a, **k))._replace(ids=r.ids + 1))
    assert script.main(["--dry-run"]) == 1
    assert "topk_stats V=111" in capsys.readouterr().out
