"""Linear layers for a few rows on a CPU: the same numbers, another route."""

import pytest
import torch
from ensemble_decode.kernels.native_ import extension
from support.tiny_models import tiny_model

from ensemble_decode.members.transformers import few_rows as few_rows_module
from ensemble_decode.members.transformers.few_rows import few_rows, few_rows_linear, in_blocks, use_few_rows_linear
from ensemble_decode.members.transformers.runner import Runner

native = pytest.mark.skipif(not few_rows_module.runs_native(), reason="the C++ extension has no such loop here")


CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float32)


def operands(shape, outputs, inputs, bias, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(outputs + inputs)
    x = torch.randn(*shape, inputs, generator=generator).to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    return x, weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None


def by_blocks(x, weight, bias=None):
    out = torch.empty(x.reshape(-1, weight.shape[1]).shape[0], weight.shape[0], dtype=x.dtype)
    in_blocks(x.reshape(-1, weight.shape[1]).float(), weight, bias, out)
    return out.view(*x.shape[:-1], weight.shape[0])


@pytest.mark.parametrize("route", [pytest.param(few_rows_linear, marks=native), by_blocks])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 1), (0,), (33,), (130,)])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 3), (1000, 576), (257, 1100), (64, 20000), (1, 1), (101, 8)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_few_rows_linear_is_as_exact_as_float32_sums_can_be(route, shape, outputs, inputs, bias, dtype):
    x, weight, offset = operands(shape, outputs, inputs, bias, dtype)
    got = route(x, weight, offset)
    own = torch.nn.functional.linear(x, weight, offset)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    assert (got.shape, got.dtype) == (own.shape, dtype)
    if got.numel():
        # half a unit in the last place, and a little for the order of the float32 sums
        error = (got.double() - exact).abs()
        rounding = 2**-8 if dtype == torch.bfloat16 else 2**-24
        assert (error <= exact.abs() * rounding + x.double().abs().max() * 2e-6 * inputs**0.5).all()
        if dtype == torch.bfloat16:
            assert error.max() <= 1.05 * (own.double() - exact).abs().max() + 1e-12


@native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [1111, 1200])
def test_a_rows_bits_depend_neither_on_the_rows_beside_it_nor_on_threads(inputs, dtype):
    x, weight, bias = operands((150,), 1000, inputs, True, dtype)
    whole = few_rows_linear(x, weight, bias)
    for rows in (slice(0, 1), slice(3, 5), slice(7, 10), slice(60, 70), slice(149, 150)):
        assert torch.equal(few_rows_linear(x[rows], weight, bias), whole[rows])
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(few_rows_linear(x, weight, bias), whole)
    finally:
        torch.set_num_threads(threads)


@native
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan_go_where_they_belong(dtype):
    x, weight, _ = operands((4,), 9, 20, False, dtype)
    x[1, 3], x[2, 19] = float("inf"), float("nan")
    own, got = torch.nn.functional.linear(x.double(), weight.double()), few_rows_linear(x, weight)
    assert torch.equal(got.isnan(), own.isnan())
    assert torch.equal(got.isinf(), own.isinf())
    assert got[2].isnan().all()
    assert got[[0, 3]].isfinite().all()


@native
def test_without_the_loop_blocks_do_the_work(monkeypatch):
    x, weight, bias = operands((8,), 70, 33, True)
    calls = []
    monkeypatch.setattr(few_rows_module, "in_blocks", lambda *args: calls.append(1) or in_blocks(*args))
    few_rows_linear(x, weight, bias)
    assert calls == []
    extension.set_isa("plain")
    try:
        assert few_rows(weight) == few_rows_module.FEW_ROWS_IN_BLOCKS
        assert torch.equal(few_rows_linear(x, weight, bias), by_blocks(x, weight, bias))
        with pytest.raises(ValueError, match="no linear layer"):
            extension.core().linear(x.float(), weight, bias, torch.empty(8, 70, dtype=torch.bfloat16), 1)
    finally:
        extension.set_isa("auto")
    assert len(calls) == 1


@native
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 9)}, "weight must be contiguous bfloat16 or float32"),
        ({"weight": torch.zeros(4, 8, dtype=torch.float16)}, "weight must be contiguous bfloat16 or float32"),
        ({"weight": torch.zeros(4, 16, dtype=torch.bfloat16)[:, ::2]}, "weight must be contiguous bfloat16 or float32"),
        ({"bias": torch.zeros(5, dtype=torch.bfloat16)}, "bias must be contiguous"),
        ({"bias": torch.zeros(4)}, "bias must be contiguous"),
        ({"out": torch.zeros(2, 5, dtype=torch.bfloat16)}, "out must be"),
        ({"out": torch.zeros(2, 4)}, "out must be"),
    ],
)
def test_the_extension_refuses_what_does_not_fit(change, message):
    arguments = {
        "x": torch.zeros(2, 8),
        "weight": torch.zeros(4, 8, dtype=torch.bfloat16),
        "bias": None,
        "out": torch.zeros(2, 4, dtype=torch.bfloat16),
    } | change
    with pytest.raises(ValueError, match=message):
        extension.core().linear(*arguments.values(), 1)


def test_it_compiles_as_one_opaque_call():
    x, weight, bias = operands((8,), 70, 33, True)

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x):
        return few_rows_linear(x, weight, bias) * 2

    assert torch.equal(compiled(x), few_rows_linear(x, weight, bias) * 2)


def test_only_layers_of_the_two_types_change_and_only_from_a_few_rows_on(monkeypatch):
    calls = []
    monkeypatch.setattr(
        few_rows_module, "few_rows_linear", lambda x, *rest: calls.append(x.shape) or few_rows_linear(x, *rest)
    )
    types = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 6, dtype=dtype) for dtype in types))
    assert use_few_rows_linear(layers) == 2
    few = few_rows(layers[0].weight)
    for layer, dtype in zip(layers, types, strict=True):
        calls.clear()
        layer(torch.zeros(few - 1, 4, dtype=dtype))
        assert calls == []
        layer(torch.zeros(1, few, 4, dtype=dtype))
        layer(torch.zeros(9, 4, dtype=dtype))
        assert calls == ([(1, few, 4), (9, 4)] if dtype in DTYPES else [])


@native
def test_one_row_takes_it_where_float32_weights_are_large():
    small, large = torch.empty(4, 6), torch.empty(few_rows_module.LARGE // 4, 4)
    assert [few_rows(weight) for weight in (small, large, large.bfloat16())] == [
        few_rows_module.FEW_ROWS,
        1,
        few_rows_module.FEW_ROWS,
    ]


@native
def test_float32_takes_it_where_torch_has_no_avx512():
    assert few_rows_module.helps(torch.float32, CPU) is (extension.isa() == "avx2")
    assert not few_rows_module.helps(torch.float16, CPU)
    assert not few_rows_module.helps(torch.float32, torch.device("cuda"))
    extension.set_isa("plain")
    try:
        assert not few_rows_module.helps(torch.float32, CPU)
    finally:
        extension.set_isa("auto")


@pytest.mark.parametrize("lacking", [True, False])
def test_the_runner_takes_it_where_the_cpu_lacks_bfloat16_or_when_told(lacking, monkeypatch):
    monkeypatch.setattr(few_rows_module, "bfloat16_products", lambda: "emulated" if lacking else "float32 vectors")
    ids = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]

    def play(asked):
        model = tiny_model("llama", 111).to(torch.bfloat16)
        runner = Runner(model, few_rows=asked)
        changed = any("forward" in vars(module) for module in model.modules())
        return changed, runner.extend([runner.acquire(), runner.acquire()], ids, "all").values

    assert play(None)[0] is lacking
    with_it, without = play(True), play(False)
    assert (with_it[0], without[0]) == (True, False)
    gap = (with_it[1].float() - without[1].float()).abs().max()
    assert gap <= 0.05 * without[1].float().std()


def test_views_of_every_kind():
    """A stride that means nothing on an axis of length one, and values that a view only promises to negate."""
    x, w, b = torch.randn(3, 16), torch.randn(2, 32), torch.randn(4)
    one = few_rows_linear(x, w[:1, :16], b[::2][:1])
    torch.testing.assert_close(one, torch.nn.functional.linear(x, w[:1, :16], b[::2][:1]))
    column = few_rows_linear(x[:, ::16], w[:, ::32])
    torch.testing.assert_close(column, torch.nn.functional.linear(x[:, ::16], w[:, ::32]))
    negative = [torch._neg_view(t) for t in (x, torch.randn(5, 16), torch.randn(5))]
    torch.testing.assert_close(few_rows_linear(*negative), torch.nn.functional.linear(*negative))


class Quantised(torch.Tensor):
    """As torchao's weights: a subclass that says bfloat16 or float32, whose own memory holds something else."""

    @staticmethod
    def __new__(cls, codes, scale):
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if function is torch.nn.functional.linear:
            x, weight, *rest = arguments
            return function(x, weight.codes * weight.scale, *rest)
        return super().__torch_function__(function, types, arguments, options or {})

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].codes, arguments[0].scale)
        raise AssertionError(f"{function} of a quantised weight")


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_are_not_plain_tensors_are_left_to_their_own_product(when):
    layer = torch.nn.Linear(8, 6, bias=False)
    codes, scale = torch.randint(-8, 8, (6, 8)), 0.25
    weight = torch.nn.Parameter(Quantised(codes, scale), requires_grad=False)
    if when == "before":
        layer.weight = weight
        assert use_few_rows_linear(layer) == 0
    else:
        assert use_few_rows_linear(layer) == 1
        layer.weight = weight
    x = torch.randn(40, 8)
    torch.testing.assert_close(layer(x), x @ (codes * scale).T)
