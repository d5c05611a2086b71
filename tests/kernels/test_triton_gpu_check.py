"""The GPU script: goes through all its steps in the interpreter, finds a wrong operator, and says when there is no
GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from ensemble_decode.kernels import dispatch, triton_

from ensemble_decode import kernels

BENCHES = Path(__file__).resolve().parents[2] / "benches"
REASON = dispatch.unavailable_reason("triton", "fuse_step", "cpu")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the script itself is the check on a GPU"),
    pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}"),
]


@pytest.fixture(scope="module")
def script():
    return loaded("gpu_check")


@pytest.fixture(scope="module")
def checks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHES))
        yield loaded("operator_checks")


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so(script, capsys):
    assert script.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().out


def test_dry_run_checks_measures_and_writes(script, tmp_path):
    """Every check of every operator passes on the way."""
    page = tmp_path / "gpu.md"
    assert script.main(["--dry-run", "--out", str(page)]) == 0
    text = page.read_text()
    assert "interpreter, not a GPU" in text.splitlines()[0]
    assert sum(line.startswith("| 2 × ") for line in text.splitlines()) == 2  # eager and ours, one size, one batch


def test_a_difference_ends_it(script, capsys, monkeypatch):
    monkeypatch.setattr(script, "check", lambda plan, device: ["topk_stats: V=111"])
    monkeypatch.setattr(script, "measure", None)
    assert script.main(["--dry-run"]) == 1
    assert "topk_stats: V=111" in capsys.readouterr().out


def test_every_operator_of_triton_is_checked(checks):
    assert set(triton_.implements) | {"sampling"} == set(checks.CHECKS)
    assert set(triton_.implements) <= set(dispatch.OPERATORS)


@pytest.mark.parametrize(
    ("check", "operator", "field"),
    [
        ("topk_stats", "topk_stats", "entropy"),
        ("verify_draft", "verify_draft", "target_prob"),
        ("union_topk", "union_topk", None),
        ("gather_candidates", "gather_candidates", None),
        ("fuse_candidates", "fuse_candidates", "kl"),
        ("fuse_step", "fuse_step", "probs"),
        ("fuse_full", "fuse_full", "cids"),
        ("sampling", "fuse_step", "cid"),
        ("sampling", "fuse_full", "cid"),
    ],
)
def test_a_wrong_operator_is_found(checks, monkeypatch, check, operator, field):
    """The reference in Triton's place passes; the same with one field wrong in one place does not."""
    from ensemble_decode.kernels import reference

    right = getattr(reference, operator)

    def off(result):
        if field is None:
            first = result[0] if isinstance(result, tuple) else result
            first[-1, -1] = 1
            return result
        value = getattr(result, field)
        value[(0,) * value.dim()] += 1
        return result

    sizes = checks.Sizes((111,), (150, 150), (torch.bfloat16,), 4, 4)

    def stand_in(function):
        return lambda *args, implementation: function(*args)

    for name in ("fuse_step", "fuse_full", operator):
        monkeypatch.setattr(kernels, name, stand_in(getattr(reference, name)))
    assert list(checks.differences(sizes, "cpu", [check])) == []
    monkeypatch.setattr(kernels, operator, stand_in(lambda *args: off(right(*args))))
    assert all(line.startswith(f"{check}: ") for line in checks.differences(sizes, "cpu", [check]))
    assert list(checks.differences(sizes, "cpu", [check]))


def test_whole_vocabularies_over_several_chunks_and_blocks(checks, monkeypatch):
    """6 251 candidates are four programs' work; two rows fit a block; sampled rows with filters among greedy ones."""
    launcher = importlib.import_module("ensemble_decode.kernels.triton_.fuse_full")
    monkeypatch.setattr(launcher, "FULL_BLOCK", 2 * 6251)
    sizes = checks.Sizes((), (3000, 5000), (), 3, 5)
    assert checks.mixed_step(sizes, torch.float32).vocab.size == 6251
    filters = {"temperature": [0.0, 0.8, 2.0], "top_p": [1.0, 0.9, 0.6], "sample_top_k": [0, 40, 0]}
    sharpen = {"sharpen": ["prefix", "none", "temperature"], "gate": 0, "trigger": 0}
    assert list(checks.fuse_full(sizes, "cpu", **filters, **sharpen)) == []
