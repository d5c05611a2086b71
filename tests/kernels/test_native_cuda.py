"""The CUDA stage: its sources compile for every target, and its second stage is exact on what the first one writes."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch
from ensemble_decode.kernels import native_, reference
from ensemble_decode.kernels.native_ import cuda
from support import kernel_cases as cases

ROOT = Path(__file__).resolve().parents[2]
INF = float("inf")


def aot():
    spec = importlib.util.spec_from_file_location("aot_cuda", ROOT / "benches" / "aot_cuda.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("source", sorted(p.name for p in (ROOT / "csrc" / "cuda").glob("*.cu")))
def test_every_source_compiles_within_its_budget(source, tmp_path):
    rows = aot().compile_source(ROOT / "csrc" / "cuda" / source, tmp_path)
    assert {row.target for row in rows} == {"sm_80", "sm_90a", "sm_100"}
    for row in rows:
        assert row.spills == 0, row
        assert row.stack == 0, row
        assert row.shared <= 48 * 1024, row
        if row.per_element is not None:  # None where no disassembler is installed
            assert row.wide_loads == row.expected_wide_loads, row
            assert row.per_element <= (28 if row.dtype == "float32" else 13), row


def first_stage(logits: torch.Tensor, allowed: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What the CUDA kernel writes, in plain torch and float64."""
    x, _ = reference.numerics.masked(logits, allowed, torch.float32)
    nan = torch.isnan(logits.float())
    if allowed is not None:
        ids = torch.arange(logits.shape[1])
        nan = nan & ((allowed[:, ids >> 5] >> (ids & 31).int()) & 1 == 1)
    missing = -logits.shape[1] % cuda.CHUNK
    x = torch.nn.functional.pad(x, (0, missing), value=-INF).view(len(x), -1, cuda.CHUNK)
    nan = torch.nn.functional.pad(nan, (0, missing)).view(x.shape).any(-1)
    top = x.amax(-1)
    limit = torch.finfo(torch.float32).max
    z = (x.double().clamp(max=limit) - top.double().clamp(-limit, limit).unsqueeze(-1)) / torch.log(torch.tensor(2.0))
    e = torch.exp2(z)
    weighted = torch.where(e > 0, e * z.clamp(min=-1e6), 0.0).sum(-1)
    partials = torch.stack([top.double(), e.sum(-1), weighted, nan.double()], -1).float()
    return partials, x.view(len(x), -1, cuda.GROUP).amax(-1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [7, 111, 20_000, 50_257])
@pytest.mark.parametrize("build", list(cases.BUILDERS.values()), ids=list(cases.BUILDERS))
def test_second_stage_equals_the_reference(build, size, masked):
    generator = torch.Generator().manual_seed(size)
    logits = build(4, size, torch.bfloat16, generator)
    allowed = cases.pack(cases.masks(4, size, generator)) if masked else None
    for k in (1, 10, 64):
        got = cuda.finish(logits, k, allowed, *first_stage(logits, allowed))
        want = reference.topk_stats(logits, k, allowed, dtype=torch.float64)
        assert torch.equal(got.ids, want.ids)
        assert torch.equal(got.values, want.values.float())
        assert torch.equal(got.flags, want.flags)
        torch.testing.assert_close(got.logsumexp, want.logsumexp.float(), rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(got.entropy, want.entropy.float(), rtol=1e-6, atol=1e-5)


@pytest.mark.skipif(
    cuda.cuda_stage() is None or not torch.cuda.is_available(), reason="needs a CUDA GPU and the CUDA stage"
)
@pytest.mark.parametrize("build", list(cases.BUILDERS.values()), ids=list(cases.BUILDERS))
def test_on_a_gpu_it_equals_the_reference(build):
    generator = torch.Generator().manual_seed(1)
    for size in (111, 8192, 50_257):
        for dtype in cases.DTYPES:
            logits = build(4, size, dtype, generator)
            for allowed in (None, cases.pack(cases.masks(4, size, generator))):
                mask = None if allowed is None else allowed.cuda()
                got = native_.topk_stats(cases.on(logits, "cuda"), 10, mask)
                want = reference.topk_stats(logits, 10, allowed, dtype=torch.float64)
                assert torch.equal(got.ids.cpu(), want.ids)
                assert torch.equal(got.values.cpu(), want.values.float())
                assert torch.equal(got.flags.cpu(), want.flags)
                torch.testing.assert_close(got.logsumexp.cpu(), want.logsumexp.float(), rtol=1e-6, atol=1e-5)
                torch.testing.assert_close(got.entropy.cpu(), want.entropy.float(), rtol=1e-6, atol=1e-5)


def test_without_the_cuda_stage_a_request_says_why(monkeypatch):
    monkeypatch.setattr(cuda, "cuda_stage", lambda: None)
    with pytest.raises(RuntimeError, match="built without nvcc"):
        cuda.topk_stats(torch.zeros(1, 8), 1)
