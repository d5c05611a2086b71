"""What is Triton's own: every branch of the two stages, equality with the reference, limits, when it can run."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from ensemble_decode.kernels import dispatch, reference
from support import kernel_cases as cases

from ensemble_decode import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REASON = dispatch.unavailable_reason("triton", "topk_stats", DEVICE)
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}")


def triton_launch():
    from ensemble_decode.kernels.triton_ import launch

    return launch


@contextmanager
def counted(monkeypatch, module, name):
    """Count how often the interpreter enters a device function."""
    import importlib

    owner = importlib.import_module(f"ensemble_decode.kernels.triton_.{module}")
    function = getattr(owner, name)
    calls = []

    class Counting:
        def __call__(self, *args, **kwargs):
            calls.append(name)
            return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Counting())
        yield calls


@contextmanager
def launches(monkeypatch):
    """Every kernel launch: its name, what it was compiled for, and the types of what it was given."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    seen = []
    with monkeypatch.context() as patch:
        for kind in (InterpretedFunction, JITFunction):
            real = kind.run

            def run(self, *args, real=real, **kwargs):
                fixed = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
                kinds = [getattr(x, "dtype", x) for x in args if not isinstance(x, tuple)]
                seen.append((getattr(self, "fn", self).__name__, fixed, kinds))
                return real(self, *args, **kwargs)

            patch.setattr(kind, "run", run)
        yield seen


def test_a_step_is_two_launches_whatever_the_rows_ask_for(monkeypatch):
    """Settings are tensors: rows of other methods mean neither another launch nor another compilation."""
    vocab = cases.random_vocab(np.random.default_rng(3), [33, 200], letters=b"abc ")
    logits = [
        torch.randn(4, len(model), generator=torch.Generator().manual_seed(5)).to(DEVICE) for model in vocab.models
    ]
    kinds = {
        "plain": {},
        "mixed": {
            "aggregate": ["arithmetic", "geometric"] * 2,
            "sharpen": ["none", "prefix", "geometric", "temperature"],
            "trigger": ["max_prob", "entropy"] * 2,
            "gate": ["none", "max_prob", "kl", "js"],
            "temperature": [0.0, 0.7, 1.0, 1.3],
            "top_p": 0.9,
        },
    }
    seen = {}
    for kind, options in kinds.items():
        settings = kernels.FuseSettings.make(4, 2, DEVICE, **options)
        with launches(monkeypatch) as found:
            kernels.fuse_step(logits, cases.vocab_tensors(vocab, DEVICE), settings, 5, implementation="triton")
        seen[kind] = found
    assert [name for name, _, _ in seen["plain"]] == ["stream_kernel", "fuse_step_kernel"]
    assert str(seen["plain"]) == str(seen["mixed"])


def compare(logits, k, allowed=None):
    """Ids and copied values exactly, statistics within 1e-5, against the float64 reference."""
    want = reference.topk_stats(logits.float(), k, allowed, dtype=torch.float64)
    got = kernels.topk_stats(
        logits.to(DEVICE), k, None if allowed is None else allowed.to(DEVICE), implementation="triton"
    )
    got = kernels.TopkStats(*(field.cpu() for field in got))
    assert got.ids.tolist() == want.ids.tolist()
    assert got.values.tolist() == want.values.tolist()
    assert got.flags.tolist() == want.flags.tolist()
    torch.testing.assert_close(got.logsumexp.double(), want.logsumexp.double(), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(got.entropy.double(), want.entropy.double(), atol=1e-5, rtol=1e-5)
    return got


def interpreted_only():
    if DEVICE == "cuda":
        pytest.skip("branches are counted in the interpreter")


@pytest.mark.parametrize(
    ("build", "guarded"),
    [
        (lambda x: x, 1),  # the tail alone
        (lambda x: x.index_fill(1, torch.tensor([5]), -math.inf), 2),
        (lambda x: x.index_fill(1, torch.tensor([5]), math.nan), 2),
        (lambda x: x.index_fill(1, torch.tensor([5]), math.inf), 2),
        (lambda x: x.index_fill(1, torch.tensor([5]), 3e38), 2),  # z overflows
        (lambda x: x[:, : 2 * 8192], 0),  # two full chunks
    ],
    ids=["plain", "-inf", "nan", "+inf", "overflow", "no-tail"],
)
def test_full_chunks_are_guarded_only_where_they_must(monkeypatch, build, guarded):
    interpreted_only()
    g = torch.Generator().manual_seed(3)
    logits = build(torch.randn(1, 2 * 8192 + 100, generator=g))
    with counted(monkeypatch, "stream", "_guarded_chunk") as calls:
        compare(logits, 5)
    assert len(calls) == guarded


def test_one_banned_id_guards_its_own_chunk_alone(monkeypatch):
    interpreted_only()
    logits = torch.randn(1, 3 * 8192, generator=torch.Generator().manual_seed(4))
    best = int(logits.argmax())
    mask = torch.ones(1, 3 * 8192, dtype=torch.bool)
    mask[0, best] = False
    with counted(monkeypatch, "stream", "_guarded_chunk") as calls:
        got = compare(logits, 3, cases.pack(mask))
    assert len(calls) == 1
    assert best not in got.ids.tolist()[0]


def test_selection_that_overflows_is_extracted_exactly(monkeypatch):
    """Rows of ties leave more elements above the threshold than there is room for."""
    interpreted_only()
    elements = torch.full((1, 3000), -1.0)
    elements[0, 128 : 128 * 6] = torch.arange(5.0).repeat_interleave(128)  # five groups, one tie each
    with counted(monkeypatch, "select", "_store_ranked") as calls:
        compare(elements, 10)
    assert len(calls) == 1  # the groups fit, their elements do not


def test_survivors_that_fit_are_ranked(monkeypatch):
    interpreted_only()
    with counted(monkeypatch, "select", "_store_ranked") as calls:
        compare(torch.randn(2, 5000, generator=torch.Generator().manual_seed(1)), 10)
    assert len(calls) == 4  # two rows, groups and elements


@pytest.mark.parametrize(("k", "dtype"), [(1, torch.float16), (16, torch.bfloat16), (40, torch.float32)])
def test_heavy_tails_over_many_groups(k, dtype):
    """More picked groups than one step of the second read covers, clustered in one region."""
    compare(cases.heavy_tail(1, 40_000, dtype, torch.Generator().manual_seed(k)), k)


def test_more_columns_than_groups():
    compare(torch.randn(1, 5_000, generator=torch.Generator().manual_seed(0)), 60)


@pytest.mark.parametrize("k", [1, 10, 16, 64, 1024])
@pytest.mark.parametrize("chunks", [1, 2, 19, 32, 33, 200])
def test_picked_groups_always_have_room(k, chunks):
    """The k sets that reach the bound hold no more groups than the scratch has room for."""
    sizes = triton_launch().finish_sizes(chunks, k)
    sets = min(sizes["K"], sizes["COLUMNS"])
    assert sets * (sizes["SPAN"] // sizes["COLUMNS"]) <= sizes["ROOM"]
    assert sizes["COLUMNS"] >= min(k, sizes["SPAN"])
    assert all(n & (n - 1) == 0 for n in sizes.values())


def test_best_groups_huddled_in_few_sets():
    """Every 128th group holds the large values: all of them reach the bound, and are put in order."""
    logits = torch.zeros(1, 128 * 128 * 5)
    logits[0, :: 128 * 128] = torch.arange(1.0, 6.0)
    logits[0, 128 :: 128 * 128] = torch.arange(1.0, 6.0)
    compare(logits, 12)


def test_order_key_orders_as_value_then_index():
    interpreted_only()
    x = torch.tensor([[2.0, -0.0, 0.0, -1.0, math.inf, 2.0, -3e38, 1e-45, -1e-45]])
    assert compare(x, 9).ids.tolist() == [[4, 0, 5, 7, 1, 2, 8, 3, 6]]


def test_too_many_models_is_refused_by_name():
    reason = triton_launch().limit_reason("union_topk", ([torch.zeros(1, 1)] * 9, []))
    assert reason == "it takes at most 8 models, got 9"
    assert triton_launch().limit_reason("fuse_step", ([torch.zeros(1, 1)] * 8,)) is None
    assert triton_launch().limit_reason("fuse_candidates", (torch.zeros(9, 1, 1),)) is not None
    ids = [torch.zeros((1, 1), dtype=torch.int32, device=DEVICE)] * 9
    with pytest.raises(kernels.ImplementationError, match="at most 8 models"):
        kernels.union_topk(ids, [torch.zeros(1, dtype=torch.int32, device=DEVICE)] * 9, implementation="triton")


@pytest.mark.parametrize(
    ("version", "interpret", "cuda", "reason"),
    [
        ("3.3.1", "1", True, "triton 3.3.1 is too old, 3.4 or newer is needed"),
        ("3.4.0", "1", False, None),
        ("3.10.0+git", "0", True, None),
        ("3.9.0", "0", False, "there is no CUDA device"),
        (None, "1", True, "triton is not installed"),
    ],
)
def test_unavailable_reason(monkeypatch, version, interpret, cuda, reason):
    launch = triton_launch()
    if version is None:
        monkeypatch.setattr(launch, "triton", None)
    else:
        monkeypatch.setattr(launch.triton, "__version__", version)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    got = launch.unavailable_reason()
    assert got == reason if reason is None else reason in got


def test_row_offsets_are_computed_in_64_bits():
    """Every program index that is multiplied by a stride is widened first: nothing else would fail below 2³¹ bytes."""
    import importlib

    for name in [*sorted(dispatch._backend("triton").implements), "stream", "full", "full_sample"]:
        module = importlib.import_module(f"ensemble_decode.kernels.triton_.{name}")
        source = inspect.getsource(module)
        assert source.count("row = tl.program_id(0).to(tl.int64)") == source.count("tl.program_id(0)") > 0


def test_floating_point_fusion_is_set_explicitly():
    launch = triton_launch()
    assert launch.STREAM_OPTIONS["enable_fp_fusion"] is True
    assert launch.FINISH_OPTIONS["enable_fp_fusion"] is False
