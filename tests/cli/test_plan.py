"""What fits: the calculator against the caches that models really get."""

import json

import pytest
from support import tiny_models

from ensemble_decode.cost.capacity import capacity, shape_of
from ensemble_decode.cost.model import DEVICES, KNOWN
from ensemble_decode.cost.shapes import ModelShape
from ensemble_decode.errors import InputError
from ensemble_decode.members.transformers.runner import Runner


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"])
def test_bytes_per_token_are_those_of_the_real_cache(family):
    model = tiny_models.tiny_model(family, 300)
    shape = ModelShape.of_config(model.config, weight_bytes=4, cache_bytes=4)
    assert shape.cache_bytes_per_token == Runner(model).bytes_per_token


def test_the_rows_that_are_said_to_fit_do_and_one_more_does_not():
    model = tiny_models.tiny_model("llama", 300)
    shape = ModelShape.of_config(model.config, weight_bytes=4, cache_bytes=4)
    memory = 4_000_000
    found = capacity([shape], prompt_tokens=100, new_tokens=50, memory=memory)
    runner = Runner(model)
    runner.cache.limits.slot_block = 1
    runner.limit_peak(memory)
    assert found.rows > 3
    assert runner.could_hold(found.rows, found.tokens)
    assert not runner.could_hold(found.rows + 1, found.tokens)


def test_weights_come_off_a_card_first():
    shapes = [KNOWN["qwen2.5-7b"], KNOWN["llama3.1-8b"]]
    found = capacity(shapes, prompt_tokens=512, new_tokens=256, device=DEVICES["h200"], method="safe")
    held = sum(shape.held_bytes for shape in shapes)
    assert found.cache_bytes == pytest.approx(0.8 * (141e9 - held))
    assert found.tokens_per_second > 0
    assert found.predicted
    with pytest.raises(InputError, match="weights alone take"):
        capacity([KNOWN["qwen2.5-72b"]], prompt_tokens=1, new_tokens=1, device=DEVICES["h100-sxm"])
    with pytest.raises(InputError, match="how much memory"):
        capacity(shapes, prompt_tokens=1, new_tokens=1)
    with pytest.raises(InputError, match="float64"):
        shape_of("qwen2.5-7b", "float64")


def test_the_command(run, tmp_path):
    folder = tiny_models.save_tiny(tmp_path / "m", "llama", "llama3")
    common = ["plan", "-m", folder, "--dtype", "float32", "--memory", "100MB"]
    code, out, _ = run(*common, "--json")
    told = json.loads(out)
    config = json.loads((folder / "config.json").read_text())
    width = config["hidden_size"] // config["num_attention_heads"]
    assert told["cache_bytes_per_token"] == 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * width
    assert code == 0
    code, out, _ = run(*common)
    assert f"{told['rows']} rows at once" in out
    for wrong, message in (
        ([], "no model given"),
        (["-m", folder], "--memory for the caches, or --gpu"),
        (["-m", folder, "--memory", "50%"], "give a size"),
        (["-m", folder, "--gpu", "x"], "there are rtx4090"),
        (["-m", folder, "--gpu", "h200", "--method", "gac(0.3)"], "the cost model does not know threshold=0.3"),
        (["-m", folder, "--gpu", "h200", "--method", "safe(draft_length=auto)"], "does not know draft_length=auto"),
    ):
        code, _, err = run("plan", *wrong)
        assert code == 2
        assert message in " ".join(err.split())


def test_drafts_of_another_length_have_another_pace(run):
    def pace(method):
        options = ["-m", "qwen2.5-7b", "-m", "llama3.1-8b", "--gpu", "h200", "--batch-size", "8", "--json"]
        code, out, err = run("plan", *options, "--method", method)
        assert code == 0, err
        return json.loads(out)["tokens_per_second"]

    assert pace("safe(draft_length=5)") == pace("safe")
    assert pace("safe(draft_length=2)") != pace("safe")
    assert pace("specfuse(segment_length=4)") != pace("specfuse")
