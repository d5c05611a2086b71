"""bfloat16 linear layers on CPUs without bfloat16 instructions: the same numbers, another route."""

import pytest
import torch
from support.tiny_models import tiny_model

from ensemble_decode import cpu_linear
from ensemble_decode.cpu_linear import FEW_ROWS, upcast_linear, use_upcast_linear
from ensemble_decode.runner import Runner


@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 1), (0,), (33,)])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 3), (1000, 576), (257, 1100), (64, 20000)])
@pytest.mark.parametrize("bias", [True, False])
def test_upcast_linear_is_at_least_as_exact_as_torchs_own(shape, outputs, inputs, bias):
    generator = torch.Generator().manual_seed(outputs + inputs)
    x = torch.randn(*shape, inputs, generator=generator).bfloat16()
    weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
    offset = torch.randn(outputs, generator=generator).bfloat16() if bias else None
    got = upcast_linear(x, weight, offset)
    own = torch.nn.functional.linear(x, weight, offset)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    assert (got.shape, got.dtype) == (own.shape, torch.bfloat16)
    if got.numel():
        error = (got.double() - exact).abs().max()
        # half a unit in the last place of bfloat16, and a little for the order of the float32 sums
        assert error <= exact.abs().max() * 2**-8 * 1.01
        assert error <= 1.05 * (own.double() - exact).abs().max() + 1e-12


def test_only_bfloat16_layers_change_and_only_from_a_few_rows_on(monkeypatch):
    calls = []
    monkeypatch.setattr(cpu_linear, "upcast_linear", lambda x, *rest: calls.append(x.shape) or upcast_linear(x, *rest))
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 6, dtype=torch.bfloat16))
    assert use_upcast_linear(layers) == 1
    layers[0](torch.zeros(FEW_ROWS, 4))
    half = layers[1]
    half(torch.zeros(FEW_ROWS - 1, 4, dtype=torch.bfloat16))
    assert calls == []
    half(torch.zeros(1, FEW_ROWS, 4, dtype=torch.bfloat16))
    half(torch.zeros(9, 4, dtype=torch.bfloat16))
    assert calls == [(1, FEW_ROWS, 4), (9, 4)]


@pytest.mark.parametrize("lacking", [True, False])
def test_the_runner_takes_it_where_the_cpu_lacks_bfloat16_or_when_told(lacking, monkeypatch):
    monkeypatch.setattr("ensemble_decode.runner.lacks_bfloat16", lambda: lacking)
    ids = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]

    def play(upcast):
        model = tiny_model("llama", 111).to(torch.bfloat16)
        runner = Runner(model, upcast=upcast)
        changed = any("forward" in vars(module) for module in model.modules())
        return changed, runner.extend([runner.acquire(), runner.acquire()], ids, "all").values

    assert play(None)[0] is lacking
    with_it, without = play(True), play(False)
    assert (with_it[0], without[0]) == (True, False)
    gap = (with_it[1].float() - without[1].float()).abs().max()
    assert gap <= 0.05 * without[1].float().std()
