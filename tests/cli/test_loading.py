"""The options of loading as arguments of `Ensemble.load`."""

import dataclasses
import inspect

import pytest

import ensemble_decode as ed
from ensemble_decode.cli import batch, generate
from ensemble_decode.cli.loading import Loading
from ensemble_decode.errors import InputError


def test_what_is_not_given_is_left_to_the_library():
    assert Loading(["a"]).arguments() == {}


def test_one_value_is_for_all_models_and_several_are_one_for_each():
    asked = Loading(["a", "b"], weight=[1.0, 2.0], device=["cpu"], dtype=["float32", "bfloat16"], revision=["main"])
    assert asked.arguments() == {
        "weight": [1.0, 2.0],
        "device": "cpu",
        "dtype": ["float32", "bfloat16"],
        "revision": "main",
    }


def test_model_arguments_are_json_or_text_and_code_is_run_only_on_demand():
    asked = Loading(["a"], model_args=["local_files_only=true", "token=hf_x=y", "max_shards=3"])
    assert asked.arguments() == {"model_kwargs": {"local_files_only": True, "token": "hf_x=y", "max_shards": 3}}
    assert Loading(["a"], trust_remote_code=True).arguments() == {"model_kwargs": {"trust_remote_code": True}}


def test_every_argument_is_one_of_ensemble_load():
    asked = Loading(["a"], [1.0], ["cpu"], ["auto"], ["x"], "1GiB", "sdpa", True, True, 64, "off", True, ["token=x"])
    arguments = asked.arguments()
    assert set(arguments) == set(inspect.signature(ed.Ensemble.load).parameters) - {"models", "cache_dir"}
    assert arguments["few_rows"] is False
    assert arguments["chunk_tokens"] == 64


def test_the_defaults_of_the_commands_are_those_of_the_library():
    library = inspect.signature(ed.Ensemble.load).parameters
    for command in (generate.generate, batch.batch):
        given = inspect.signature(command).parameters
        for field in dataclasses.fields(Loading):
            assert given[field.name].default == field.default, field.name
            if field.name in ("attention", "compile", "graphs", "chunk_tokens"):
                assert field.default == library[field.name].default


def test_they_reach_the_models(run, pair, library):
    options = ["--attention", "sdpa", "--chunk-tokens", "3", "--few-rows", "off", "--memory", "64MiB"]
    code, out, err = run(
        "generate", *pair, *options, "--model-arg", "local_files_only=true", "-n", "6", "A long prompt"
    )
    assert code == 0, err
    assert out == library.generate("A long prompt", max_new_tokens=6)[0].text + "\n"
    code, _, err = run("generate", *pair, "--memory", "1KiB", "A long prompt")
    assert code != 0
    assert "memory" in err


@pytest.mark.parametrize("text", ["token", "=x", "a-b=1", ""])
def test_model_arguments_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        Loading(["a"], model_args=[text]).arguments()
