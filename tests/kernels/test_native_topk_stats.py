"""The C++ `topk_stats` on every instruction set that runs here, against float64 and the reference."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from ensemble_decode.kernels import FLAG_EMPTY, FLAG_NAN, native_, reference

pytestmark = pytest.mark.skipif(
    native_.unavailable_reason() is not None, reason=f"no C++ extension: {native_.unavailable_reason()}"
)

ISAS = native_.available_isas() if native_.unavailable_reason() is None else []
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INF = float("inf")


@pytest.fixture(params=ISAS)
def isa(request):
    native_.set_isa(request.param)
    assert native_.isa() == request.param
    yield request.param
    native_.set_isa("auto")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bitmask(allowed: torch.Tensor) -> torch.Tensor:
    """bool [R, V] -> int32 [R, ceil(V/32)], bit i % 32 of word i // 32."""
    rows, size = allowed.shape
    padded = np.zeros((rows, -(-size // 32) * 32), dtype=bool)
    padded[:, :size] = allowed.numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())


def oracle(logits: torch.Tensor, k: int, allowed: torch.Tensor | None = None):
    """values, ids, logsumexp, entropy and flags, row by row in float64 with a stable sort."""
    results = []
    for r, row in enumerate(logits.to(torch.float64).numpy()):
        ok = np.ones(len(row), bool) if allowed is None else allowed[min(r, len(allowed) - 1)].numpy()
        nan = bool((ok & np.isnan(row)).any())
        x = np.where(ok & ~np.isnan(row), row, -INF)
        order = [int(i) for i in np.argsort(-x, kind="stable")[:k] if x[i] > -INF]
        values = [float(x[i]) for i in order] + [-INF] * (k - len(order))
        ids = order + [-1] * (k - len(order))
        if not order:
            lse, entropy = -INF, 0.0
        elif x.max() == INF:
            lse, entropy = INF, float(np.log((x == INF).sum()))
        else:
            d = x - x.max()
            e = np.exp(d)
            lse = float(x.max() + np.log(e.sum()))
            entropy = float(np.log(e.sum()) - (e[e > 0] * d[e > 0]).sum() / e.sum())
        results.append((values, ids, lse, entropy, nan * FLAG_NAN + (not order) * FLAG_EMPTY))
    return results


def check(logits: torch.Tensor, k: int, allowed: torch.Tensor | None = None, tolerance: float = 1e-5) -> None:
    mask = None if allowed is None else bitmask(allowed)
    got = native_.topk_stats(logits, k, mask)
    want = oracle(logits, k, allowed)
    assert got.values.tolist() == [w[0] for w in want]
    assert got.ids.tolist() == [w[1] for w in want]
    assert got.flags.tolist() == [w[4] for w in want]
    for name, column in (("logsumexp", 2), ("entropy", 3)):
        have = getattr(got, name).to(torch.float64)
        assert not have.isnan().any()
        for a, w in zip(have.tolist(), want, strict=True):
            # float32 itself cannot be nearer than half a unit in the last place
            assert a == w[column] or abs(a - w[column]) <= tolerance + abs(w[column]) * 2**-24, (name, a, w[column])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 31, 111, 127, 128, 129, 8191, 8192, 8193, 20000])
def test_sizes(isa, dtype, size):
    logits = (torch.randn(3, size, generator=generator(size)) * 4).to(dtype)
    for k in (1, 10, 64, min(size + 5, 9000)):
        check(logits, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [32_000, 50_257, 151_936, 262_144])
def test_real_vocabulary_sizes_equal_torch(isa, dtype, size):
    logits = (torch.randn(4, size, generator=generator(size)) * 3).to(dtype)
    got = native_.topk_stats(logits, 16)
    order = torch.sort(logits.float(), dim=1, descending=True, stable=True)
    assert torch.equal(got.values, order.values[:, :16])
    assert torch.equal(got.ids, order.indices[:, :16].int())
    exact = logits.double()
    log_p = torch.log_softmax(exact, 1)
    torch.testing.assert_close(got.logsumexp.double(), torch.logsumexp(exact, 1), rtol=2**-23, atol=5e-6)
    torch.testing.assert_close(got.entropy.double(), -(log_p.exp() * log_p).sum(1), rtol=2**-23, atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_and_misaligned_rows(isa, dtype):
    base = (torch.randn(5, 9001, generator=generator(1)) * 4).to(dtype)
    for start in (0, 1, 3, 7):
        view = base[:, start : start + 8500]
        assert view.stride() == (9001, 1)
        check(view, 9)
    check(base[::2, :8192], 9)
    check(base[0].expand(4, -1), 9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_across_groups_and_at_rank_k(isa, dtype):
    for size in (300, 8192 + 300):
        logits = torch.zeros(4, size)
        logits[1, ::2] = 1.0
        logits[2, torch.arange(0, size, 130)] = 2.0  # one per group, more than k of them
        logits[3] = torch.arange(size).remainder(3).float()
        logits[3, size - 1] = -0.0
        for k in (1, 2, 3, 8, 64, 200):
            check(logits.to(dtype), k)


def test_all_rows_equal_have_log_size_entropy(isa):
    for value in (0.0, -7.5, 80.0, 1e4, -3e38):
        got = native_.topk_stats(torch.full((2, 151_936), value), 3)
        assert got.ids.tolist() == [[0, 1, 2]] * 2
        torch.testing.assert_close(got.entropy.double(), torch.full((2,), 151_936.0).double().log(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities(isa, dtype):
    size = 8192 * 2 + 77
    logits = (torch.randn(6, size, generator=generator(2)) * 4).to(dtype)
    logits[0, 5] = INF
    logits[1, [3, 9000, size - 1]] = INF
    logits[2, : size - 2] = -INF
    logits[3] = -INF
    logits[4, 8192:] = -INF
    logits[5, 100] = -INF
    logits[5, 101] = INF
    check(logits, 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_flagged_and_counts_as_minus_infinity(isa, dtype):
    size = 8192 * 2 + 77
    logits = (torch.randn(5, size, generator=generator(3)) * 4).to(dtype)
    logits[0, 5] = float("nan")
    logits[1, size - 1] = float("nan")
    logits[2] = float("nan")
    logits[3, 7000], logits[3, 7001] = float("nan"), INF
    check(logits, 5)
    raw = torch.tensor([[0x7F800001, 0x7FFFFFFF, 0x3F800000, -1, 0x7F8001FF] * 40], dtype=torch.int32)
    check(raw.view(torch.float32), 5)  # every kind of NaN payload, signalling ones too


def test_huge_finite_logits_do_not_overflow(isa):
    top = torch.finfo(torch.float32).max
    logits = torch.randn(5, 9000, generator=generator(4))
    logits[0] *= 1e38
    logits[1, 4] = top
    logits[2, :] = -top
    logits[3, 8999] = 2e30  # far in one chunk, ordinary in the other
    logits[4, 0], logits[4, 8500] = top, INF
    got = native_.topk_stats(logits, 3)
    want = reference.topk_stats(logits, 3)
    assert torch.equal(got.values, want.values)
    assert torch.equal(got.ids, want.ids)
    torch.testing.assert_close(got.logsumexp, want.logsumexp)
    torch.testing.assert_close(got.entropy, want.entropy, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(isa, dtype):
    size = 8192 * 3 + 45
    logits = (torch.randn(6, size, generator=generator(5)) * 4).to(dtype)
    logits[2, 17] = float("nan")
    allowed = torch.rand(6, size, generator=generator(6)) < 0.5
    allowed[1] = True
    allowed[2, 17] = False  # a NaN that is not allowed is nobody's business
    allowed[3] = False
    allowed[4] = False
    allowed[4, [0, 8191, 8192, size - 1]] = True
    allowed[5, :8192] = True
    check(logits, 7, allowed)
    check(logits, 7, allowed[:1])
    check(logits, 7, torch.ones(1, size, dtype=torch.bool))


def test_mask_equals_minus_infinity_bitwise(isa):
    logits = torch.randn(3, 30_000, generator=generator(7)).to(torch.bfloat16)
    allowed = torch.rand(3, 30_000, generator=generator(8)) < 0.9
    a = native_.topk_stats(logits, 10, bitmask(allowed))
    b = native_.topk_stats(logits.masked_fill(~allowed, -INF), 10)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_bits_do_not_depend_on_threads_neighbours_or_run(isa, threads):
    logits = (torch.randn(9, 151_936, generator=generator(9)) * 3).to(torch.bfloat16)
    threads(1)
    alone = [native_.topk_stats(logits[r : r + 1], 10) for r in range(9)]
    for count in (1, 2, 5):
        threads(count)
        for _ in range(3):
            together = native_.topk_stats(logits, 10)
            for r, single in enumerate(alone):
                assert all(torch.equal(x[r : r + 1], y) for x, y in zip(together, single, strict=True))


def test_fused_instruction_sets_agree_bitwise():
    fused = [name for name in ISAS if name != "plain"]
    logits = (torch.randn(4, 50_257, generator=generator(10)) * 3).to(torch.float16)
    results = []
    for name in fused:
        native_.set_isa(name)
        results.append(native_.topk_stats(logits, 10))
    native_.set_isa("auto")
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


def test_concurrent_callers(isa, threads):
    threads(2)
    batches = [(torch.randn(4, 40_000, generator=generator(s)) * 3).to(torch.bfloat16) for s in range(8)]
    want = [native_.topk_stats(x, 10) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, expected in zip(pool.map(lambda x: native_.topk_stats(x, 10), batches), want, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def _child(logits, queue):
    torch.set_num_threads(2)
    queue.put([x.tolist() for x in native_.topk_stats(logits, 3)])


def test_works_after_fork(threads):
    threads(2)
    logits = torch.randn(4, 40_000, generator=generator(11))
    want = [x.tolist() for x in native_.topk_stats(logits, 3)]  # the parent's threads exist before the fork
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_child, args=(logits, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == want


def test_empty_batch_and_wide_offsets(isa):
    assert native_.topk_stats(torch.empty(0, 100), 4).values.shape == (0, 4)
    row_stride = 2**31 + 64  # the second row starts past 2^31 elements; the pages in between are never touched
    storage = torch.empty(row_stride + 300, dtype=torch.bfloat16)
    logits = storage.as_strided((2, 300), (row_stride, 1))
    logits.copy_(torch.randn(2, 300, generator=generator(12)))
    check(logits, 5)


def test_grad_and_inference_mode_tensors():
    logits = torch.randn(2, 500, generator=generator(13))
    want = native_.topk_stats(logits, 3)
    got = native_.topk_stats(logits.clone().requires_grad_(), 3)
    assert torch.equal(got.values, want.values)
    with torch.inference_mode():
        assert torch.equal(native_.topk_stats(logits.clone(), 3).values, want.values)


def test_wrong_arguments_are_refused_by_the_extension():
    logits = torch.randn(2, 64)
    with pytest.raises(ValueError, match=r"allowed must be \[1 or 2, 2\]"):
        native_.topk_stats(logits, 3, torch.zeros(1, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="stride 1"):
        native_.topk_stats(torch.randn(64, 2).t(), 3)
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        native_.topk_stats(logits.double(), 3)
    with pytest.raises(ValueError, match="does not run here"):
        native_.set_isa("mmx")
