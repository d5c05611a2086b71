"""What the harness passes as text: values in brackets stay whole, defaults of the harness say nothing, nothing is
dropped."""

import pytest

import ensemble_decode as ed

pytest.importorskip("lm_eval")

from lm_eval._cli.utils import key_val_to_dict

from ensemble_decode.errors import InputError
from ensemble_decode.harness import arguments


@pytest.mark.parametrize(
    "text",
    [
        "models=a;b,method=safe(draft_length=auto,sharpen=geometric,base=gac(threshold=0.4)),dtype=float32",
        "models=a,weight=2",
        "models='a,b',join=bytes",
        "",
    ],
)
def test_model_args_are_cut_as_the_harness_command_line_cuts_them(text):
    assert arguments.model_args(text) == key_val_to_dict(text)


def test_a_part_without_a_value_is_named():
    with pytest.raises(InputError, match="'safe'"):
        arguments.model_args("models=a,safe")


@pytest.mark.parametrize(
    ("given", "harness", "device"),
    [
        ({}, {"device": "cuda:0"}, None),  # the harness's default
        ({}, {"device": "cpu"}, "cpu"),
        ({}, {"device": "cuda:1"}, "cuda:1"),
        ({"device": "cuda:0"}, {"device": "cuda:0"}, "cuda:0"),
        ({"device": "cuda:0;cuda:1"}, {"device": "cpu"}, "cuda:0;cuda:1"),
        ({}, {"device": None}, None),
        ({}, None, None),
    ],
)
def test_the_device_is_that_of_model_args_then_of_the_command_line(given, harness, device):
    assert arguments.with_the_harness_own(given, harness).get("device") == device


def test_several_values_have_semicolons_between():
    assert arguments.load_options(
        {"device": "cpu;cuda:0", "weight": "1;0.5", "dtype": "float32", "memory": "1GiB"}
    ) == {
        "device": ["cpu", "cuda:0"],
        "weight": [1.0, 0.5],
        "dtype": "float32",
        "memory": "1GiB",
    }
    assert arguments.load_options({"weight": 2}) == {"weight": 2.0}


def test_a_request_has_its_own_length_stops_and_sampling():
    made = arguments.generation({"do_sample": True, "temperature": 0.7, "top_p": 0.9, "until": "a", "max_gen_toks": 5})
    assert made == {"max_new_tokens": 5, "stop": ["a"], "sampling": ed.Sampling(temperature=0.7, top_p=0.9)}
    assert arguments.generation({"do_sample": True})["sampling"].temperature == 1.0
    assert arguments.generation({"do_sample": False, "temperature": 0.7})["sampling"].greedy
    assert arguments.generation({"until": ["b", ""]})["stop"] == ["b"]


@pytest.mark.parametrize("key", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True])
def test_a_length_that_gives_no_text_is_refused(key, value):
    with pytest.raises(InputError, match=rf"generation_kwargs: .*{value}"):
        arguments.generation({key: value})


@pytest.mark.parametrize("value", ["many", "0", "-1", 1.5])
def test_a_batch_size_is_a_positive_number_or_auto(value):
    assert arguments.batch_size("auto", None) == 8
    assert arguments.batch_size("auto:4", 2) == 2
    assert arguments.batch_size("3", None) == 3
    with pytest.raises(InputError, match="batch_size"):
        arguments.batch_size(value, None)
