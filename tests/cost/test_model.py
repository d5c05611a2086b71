"""The cost model: known counts, limits that must hold whatever the device, and refusals."""

from dataclasses import replace

import pytest
from support import tiny_models

from ensemble_decode.cost.model import (
    DEVICES,
    KNOWN,
    METHODS,
    Device,
    ModelShape,
    Settings,
    cost_of_run,
    cost_per_token,
)
from ensemble_decode.errors import InputError

PLAIN = Device("plain", 1e12, 1e12, 1e12, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
SHAPE = ModelShape("m", layers=2, hidden=8, query=8, key=4, body=1000, vocab=100)


def test_known_models_have_their_published_sizes():
    billions = {name: shape.parameters / 1e9 for name, shape in KNOWN.items()}
    assert billions["llama3.1-8b"] == pytest.approx(8.03, abs=0.01)
    assert billions["qwen2.5-7b"] == pytest.approx(7.62, abs=0.01)
    assert billions["llama3.1-70b"] == pytest.approx(70.55, abs=0.05)
    assert billions["qwen2.5-72b"] == pytest.approx(72.7, abs=0.05)
    assert KNOWN["llama3.1-8b"].cache_bytes_per_token == 128 * 1024  # 2 x 32 layers x 1024 x 2 bytes


def test_a_decode_step_by_hand():
    cost = cost_per_token([SHAPE], PLAIN, "single", context=10)
    weights, cached, new, logits = (1000 + 800) * 2, 10 * 32, 2 * 32, 2 * 100 * 2
    assert cost.bytes == weights + cached + new + logits + 200  # and one pass over the logits
    assert cost.operations == 2 * (1000 + 800) + 4 * 10.5 * 8 * 2
    assert cost.seconds == pytest.approx((cost.bytes) / 1e12)
    slow = replace(PLAIN, flops=1e3)
    assert cost_per_token([SHAPE], slow, "single", context=10).parts["model 0"] == pytest.approx(cost.operations / 1e3)


def test_shapes_of_configs_and_models_agree():
    for family in ("llama", "qwen3", "gemma3"):
        model = tiny_models.tiny_model(family, 300)
        counted = ModelShape.of_model(model, name="m")
        stated = ModelShape.of_config(model.config, name="m", weight_bytes=4.0, cache_bytes=4.0)
        assert counted == stated
        assert counted.body + 2 * counted.head == sum(p.numel() for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_costs_grow_with_everything(method, device):
    small, large = KNOWN["qwen2.5-7b"], KNOWN["llama3.1-8b"]
    pair = [small, large]
    base = cost_per_token(pair, device, method)
    assert base.seconds == pytest.approx(sum(base.parts.values()))
    assert base.seconds > 0
    assert cost_per_token(pair, device, method, context=4096).seconds > base.seconds
    assert cost_per_token(pair, device, method, batch=64).seconds > base.seconds
    if method != "single":
        assert cost_per_token([*pair, large], device, method).seconds > base.seconds
    if method not in ("dictionary", "segments"):  # rows share the weights that are read
        assert cost_per_token(pair, device, method, batch=16).tokens_per_second > 4 * base.tokens_per_second


def test_methods_against_each_other():
    pair, card = [KNOWN["qwen2.5-7b"], KNOWN["llama3.1-8b"]], DEVICES["h100-sxm"]

    def seconds(method, shapes=pair, **settings):
        return cost_per_token(shapes, card, method, context=512, settings=Settings(**settings)).seconds

    alone = [seconds("single", [shape]) for shape in pair]
    assert seconds("unite") == pytest.approx(sum(alone), rel=0.02)
    assert seconds("gac", opened=0.0) == pytest.approx(alone[0], rel=0.02)
    assert alone[0] < seconds("gac", opened=0.3) < seconds("unite")
    assert seconds("safe", stands=0.95) < seconds("safe", stands=0.8) < seconds("safe", stands=0.0)
    assert seconds("safe", stands=1.0) < seconds("unite")  # one verification serves five tokens
    assert seconds("dictionary") > 1.2 * seconds("unite")
    assert seconds("segments") > seconds("specfuse")


def test_a_run_is_the_mean_over_its_lengths():
    pair, card = [KNOWN["qwen2.5-7b"], KNOWN["llama3.1-8b"]], DEVICES["a100-80gb"]
    run = cost_of_run(pair, card, "dictionary", prompt=100, tokens=400)
    steps = [cost_per_token(pair, card, "dictionary", context=100.5 + i).seconds for i in range(400)]
    assert run.seconds == pytest.approx(sum(steps) / 400, rel=1e-3)
    assert run.cache_bytes == 500 * sum(shape.cache_bytes_per_token for shape in pair)


def test_what_does_not_fit_is_said():
    seventy = [KNOWN["llama3.1-70b"], KNOWN["qwen2.5-72b"]]
    assert not cost_per_token(seventy, DEVICES["h200"]).fits
    four_bit = [replace(shape, weight_bytes=0.5) for shape in seventy]
    assert cost_per_token(four_bit, DEVICES["h200"]).fits
    assert not cost_per_token(four_bit, DEVICES["h200"], batch=64, context=8192).fits  # the caches


def test_predictions_are_labelled():
    assert all(cost_per_token([SHAPE], device).predicted for device in DEVICES.values())
    assert not cost_per_token([SHAPE], replace(PLAIN, measured=True)).predicted


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cost_per_token([], PLAIN), "at least one model"),
        (lambda: cost_per_token([SHAPE], PLAIN, "beam"), "there are single, unite"),
        (lambda: cost_per_token([SHAPE], PLAIN, batch=0), "batch must be at least 1"),
        (lambda: cost_of_run([SHAPE], PLAIN, tokens=0), "tokens must be at least 1"),
        (lambda: Settings(stands=1.5), "stands must lie between 0 and 1"),
        (lambda: Settings(draft_length=0), "draft_length must be at least 1"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_other_kinds_of_layers_are_refused():
    config = tiny_models.tiny_model("llama", 300).config
    config.num_experts = 8
    with pytest.raises(InputError, match="no experts"):
        ModelShape.of_config(config, name="mixture")
    with pytest.raises(InputError, match="intermediate_size"):
        ModelShape.of_config(tiny_models.tiny_model("gpt2", 300).config, name="old")
