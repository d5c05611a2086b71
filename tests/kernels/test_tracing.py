"""Operators under fake tensors, torch.compile and torch's own checks of custom operators; nothing reads the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ensemble_decode.kernels import reference
from support import kernel_cases as cases
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ensemble_decode import kernels

K = 5


def inputs(batch: int = 3):
    rng = np.random.default_rng(0)
    vocab = cases.random_vocab(rng, [30, 50])
    tensors = cases.vocab_tensors(vocab)
    logits = [torch.tensor(rng.normal(size=(batch, len(m))), dtype=torch.float32) for m in vocab.models]
    settings = kernels.FuseSettings.make(
        batch,
        2,
        sharpen=["prefix", "geometric", "temperature"][:batch],
        threshold=1.0,
        min_prob=0.0,
        temperature=[0.0, 0.7, 0.0][:batch],
        gate=["none", "kl", "js"][:batch],
        gate_threshold=0.0,
        top_p=0.9,
    )
    return logits, tensors, settings


def faked(mode: FakeTensorMode, value):
    """The same structure with fake tensors."""
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(faked(mode, v) for v in value))
    return [faked(mode, v) for v in value] if isinstance(value, (list, tuple)) else value


def calls(m):
    """Every operator of a module (public or reference) on the same inputs, as name -> thunk of (logits, vocab,
    settings)."""

    def candidates(logits, vocab, settings):
        stats = [m.topk_stats(x, K, a) for x, a in zip(logits, vocab.allowed, strict=True)]
        cids, _ = m.union_topk([s.ids for s in stats], vocab.to_cid)
        scores = torch.stack(
            [
                m.gather_candidates(x, cids, ids, eos, a)
                for x, ids, eos, a in zip(logits, vocab.piece_id, vocab.eos_ids, vocab.allowed, strict=True)
            ]
        )
        tops = vocab.to_cid[0][stats[0].ids.long()]
        lse = torch.stack([s.logsumexp for s in stats])
        return m.fuse_candidates(
            scores, cids, lse, tops, stats[0].values[:, 0].contiguous(), tops[:, 0].contiguous(),
            vocab.prefix_end, vocab.space_cid, settings,
        )  # fmt: skip

    def verify(logits, vocab, settings):
        targets = torch.zeros(logits[0].shape[0], dtype=torch.int32, device=logits[0].device)
        return m.verify_draft(logits[0], targets, vocab.allowed[0], vocab.eos_ids[0])

    return {
        "fuse_candidates": candidates,
        "fuse_step": lambda logits, vocab, settings: m.fuse_step(logits, vocab, settings, K),
        "fuse_full": lambda logits, vocab, settings: m.fuse_full(logits, vocab, settings, K),
        "verify_draft": verify,
    }


@pytest.mark.parametrize("module", [kernels, reference], ids=["public", "reference"])
@pytest.mark.parametrize("name", list(calls(kernels)))
def test_fake_tensors(module, name):
    """Shapes and types under fake tensors are the real ones; the reference itself has no data-dependent branch."""
    arguments = inputs()
    real = calls(module)[name](*arguments)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = calls(module)[name](*(faked(mode, a) for a in arguments))
    for field, a, b in zip(real._fields, real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), field


def test_fake_tensors_catch_a_read():
    """The check above can fail: reading a value under fake tensors raises."""
    with FakeTensorMode() as mode, pytest.raises(DataDependentOutputException):
        mode.from_tensor(torch.zeros(1)).item()


@pytest.mark.parametrize("name", list(calls(kernels)))
def test_compiled_whole_graph(name):
    """torch.compile(fullgraph=True) gives the same bits, for two batch sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(calls(kernels)[name], fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (3, 2):
        arguments = inputs(batch)
        cases.assert_equal(compiled(*arguments), calls(kernels)[name](*arguments))


def test_compiled_code_reads_the_choice_when_it_runs():
    """`use` around a call of compiled code decides, not `use` around its compilation."""
    torch._dynamo.reset()
    compiled = torch.compile(calls(kernels)["fuse_step"], fullgraph=True, backend="aot_eager")
    arguments = inputs()
    with kernels.use("auto"):
        compiled(*arguments)
    with kernels.trace_calls() as seen, kernels.use("reference"):
        compiled(*arguments)
    assert set(seen) == {("fuse_step", "reference", "")}


def test_reference_compiles_as_one_graph():
    """The reference's own code, not only the opaque operator, can be traced whole; the result is the same bits."""
    torch._dynamo.reset()
    arguments = inputs()
    compiled = torch.compile(calls(reference)["verify_draft"], fullgraph=True, backend="eager")
    cases.assert_equal(compiled(*arguments), calls(reference)["verify_draft"](*arguments))


@pytest.mark.parametrize("operator", ["topk_stats", "union_topk", "gather_candidates", "fuse_candidates", "fuse_step"])
def test_registration_passes_torchs_own_checks(operator):
    """torch.library.opcheck: schema, fake kernel, no aliasing, no mutation."""
    logits, vocab, settings = inputs()
    stats = kernels.topk_stats(logits[0], K, vocab.allowed[0])
    cids, _ = kernels.union_topk([stats.ids], vocab.to_cid[:1])
    flat = [[*field] for field in vocab[:5]]
    arguments = {
        "topk_stats": (logits[0], K, vocab.allowed[0], "reference"),
        "union_topk": ([stats.ids], [vocab.to_cid[0]], "reference"),
        "gather_candidates": (logits[0], cids, vocab.piece_id[0], vocab.eos_ids[0], None, "reference"),
        "fuse_candidates": (
            torch.zeros(1, 3, K), cids, stats.logsumexp[None], cids, stats.values[:, 0].contiguous(),
            cids[:, 0].contiguous(), vocab.prefix_end, 0, list(kernels.FuseSettings.make(3, 1)), "reference",
        ),
        "fuse_step": (logits, *flat, vocab.prefix_end, vocab.space_cid, list(settings), K, "reference"),
    }  # fmt: skip
    torch.library.opcheck(
        getattr(torch.ops.ensemble_decode, operator).default,
        arguments[operator],
        test_utils=("test_schema", "test_faketensor"),
    )


def test_logits_that_require_gradients_are_read_only():
    """Models outside inference mode hand over logits with a graph behind them."""
    logits = torch.randn(2, 9, requires_grad=True)
    assert not kernels.topk_stats(logits * 2, 2).values.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", list(calls(kernels)))
def test_nothing_waits_for_the_gpu(name):
    """torch's own detector of synchronising calls stays silent."""
    logits, vocab, settings = inputs()
    vocab = kernels.VocabTensors(
        *([t.cuda() for t in field] for field in vocab[:5]), vocab.prefix_end.cuda(), vocab.space_cid, vocab.size
    )
    logits, settings = [x.cuda() for x in logits], kernels.FuseSettings(*(f.cuda() for f in settings))
    calls(kernels)[name](logits, vocab, settings)
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls(kernels)[name](logits, vocab, settings)
    finally:
        torch.cuda.set_sync_debug_mode("default")
