"""Naming models, and where and how they are loaded."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from support import tiny_models, tokenizers

from ensemble_decode.cost.capacity import shape_of
from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.sources.specs import ModelSpec, parse_spec
from ensemble_decode.members.transformers import loading


def test_every_kind_of_name(tmp_path):
    folder, file = tmp_path / "model", tmp_path / "m.gguf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    file.write_bytes(b"")
    assert parse_spec("demo:smollm2") == ModelSpec("demo", "smollm2")
    assert parse_spec(str(folder)) == parse_spec(folder) == ModelSpec("folder", str(folder))
    assert parse_spec(file) == ModelSpec("gguf", str(file))
    assert parse_spec("owner/name-1.5") == ModelSpec("hub", "owner/name-1.5")
    assert parse_spec("gpt2@v1.0") == parse_spec("gpt2", "v1.0") == ModelSpec("hub", "gpt2", "v1.0")


def test_a_folder_that_exists_is_taken_before_a_hub_id(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert parse_spec("owner/name").kind == "folder"


@pytest.mark.parametrize(
    ("spec", "revision", "message"),
    [
        ("demo:other", None, "no such demo model; there are demo:smollm2, demo:gemma3"),
        ("missing.gguf", None, "no such GGUF file"),
        ("a/b/c", None, "neither an existing folder"),
        ("", None, "neither an existing folder"),
        ("demo:smollm2", "main", "a revision .* is for a hub id"),
        ("owner/name@a", "b", "two revisions"),
    ],
)
def test_names_that_fit_nothing_are_refused(spec, revision, message):
    with pytest.raises(InputError, match=message):
        parse_spec(spec, revision)


def test_folder_without_a_config_and_other_files_are_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"no config\.json"):
        parse_spec(tmp_path)
    with pytest.raises(InputError, match=r"not a \.gguf one"):
        parse_spec(tmp_path / "weights.bin")


def test_devices_one_for_all_or_one_each_and_auto_spreads_over_gpus(monkeypatch):
    assert loading.resolve_devices("cpu", 2) == [torch.device("cpu")] * 2
    assert loading.resolve_devices(["cpu"], 2) == [torch.device("cpu")] * 2  # as a command line gives one
    with pytest.raises(InputError, match="device: 2 values for 3 models; give one for all or one per model"):
        loading.resolve_devices(["cpu", "cpu"], 3)
    with pytest.raises(InputError, match="device 'gpu' of model 0"):
        loading.resolve_devices("gpu", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [d.index for d in loading.resolve_devices("auto", 3)] == [0, 1, 0]
    assert loading.resolve_devices(["cpu", "auto"], 2) == [torch.device("cpu"), torch.device("cuda", 1)]


@pytest.mark.parametrize(
    ("checkpoint", "device", "native", "expected"),
    [
        (torch.bfloat16, "cpu", False, torch.float32),
        (torch.bfloat16, "cpu", True, torch.bfloat16),
        (torch.float16, "cpu", True, torch.float32),
        (torch.bfloat16, "cuda", False, torch.bfloat16),
        (torch.float16, "cuda", False, torch.float16),
        (None, "cuda", False, "auto"),
    ],
)
def test_automatic_dtype(monkeypatch, checkpoint, device, native, expected):
    monkeypatch.setattr(loading, "bfloat16_products", lambda: "instructions" if native else "float32 vectors")
    assert loading._dtype_for(None, checkpoint, torch.device(device)) == expected


def test_dtype_names():
    assert loading.resolve_dtype("bf16", "m") == loading.resolve_dtype(torch.bfloat16, "m") == torch.bfloat16
    for wrong in ("int8", torch.int8, 32):
        with pytest.raises(InputError, match="model m: dtype"):
            loading.resolve_dtype(wrong, "m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.save_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", "llama3", seed=1)


def test_a_folder_loads_with_its_dtype_and_ends(folder):
    loaded = loading.load(folder, device="cpu", dtype="bfloat16")
    assert loaded.model.dtype == loaded.dtype == torch.bfloat16
    assert (loaded.name, loaded.device) == ("llama", torch.device("cpu"))
    assert set(loaded.eos_ids) == {*tokenizers.eos_ids("llama3"), loaded.tokenizer.eos_token_id}
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_end_ids_are_the_union_of_tokenizer_and_generation_config():
    """Field case 20."""
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[5, 3]))
    assert loading._eos_ids(model, SimpleNamespace(eos_token_id=7), "m") == (3, 5, 7)
    model.generation_config.eos_token_id = None
    with pytest.warns(UserWarning, match="model m: .* end token"):
        assert loading._eos_ids(model, SimpleNamespace(eos_token_id=None), "m") == ()


def test_several_models_each_with_its_own_dtype_and_a_name_of_its_own(folder):
    one, two = loading.load_all([folder, folder], device="cpu", dtype=["float32", "bfloat16"])
    assert (one.dtype, two.dtype) == (torch.float32, torch.bfloat16)
    assert (one.name, two.name) == ("llama (model 0)", "llama (model 1)")
    with pytest.raises(InputError, match="at least one model"):
        loading.load_all([])


CUSTOM = """
import transformers


class OwnConfig(transformers.LlamaConfig):
    model_type = "own"
"""


def test_code_of_a_repository_runs_only_where_it_is_trusted_and_nobody_is_asked(folder, tmp_path, monkeypatch):
    def asked(*_):
        raise AssertionError("a prompt was opened")

    monkeypatch.setattr("builtins.input", asked)
    made = shutil.copytree(folder, tmp_path / "own")
    config = json.loads((made / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (made / "config.json").write_text(json.dumps(config))
    (made / "own.py").write_text(CUSTOM)
    with pytest.raises(ModelError, match=r"model own: cannot be loaded: .*trust_remote_code"):
        loading.load(made, device="cpu")
    with pytest.raises(ModelError, match=r"own: its config cannot be read: .*custom code"):
        shape_of(str(made), "float32")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(ModelError, match="OwnConfig"):  # its code ran: no class of models belongs to it
        loading.load(made, device="cpu", model_kwargs={"trust_remote_code": True})


def test_model_kwargs_reach_what_they_are_for(folder, monkeypatch):
    """What finds files goes to configuration, tokenizer and weights; the rest to the weights; one mapping or one per
    model."""
    seen = []
    for name in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM"):
        kind = getattr(transformers, name)
        real = kind.from_pretrained

        def record(source, *, name=name, real=real, **options):
            if "_from_auto" not in options:  # transformers' own calls
                seen.append((name, {k: v for k, v in options.items() if k not in ("config", "dtype")}))
            return real(source, **options)

        monkeypatch.setattr(kind, "from_pretrained", record)
    plain = {"trust_remote_code": False}
    found = plain | {"token": "secret", "local_files_only": True}
    own = {"token": "secret", "local_files_only": True, "use_safetensors": True}
    loading.load_all([folder, folder], device="cpu", model_kwargs=[None, own])
    assert seen[:3] == [(name, plain) for name in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM")]
    assert seen[3:5] == [("AutoConfig", found), ("AutoTokenizer", found)]
    assert seen[5] == ("AutoModelForCausalLM", found | {"use_safetensors": True})
    del seen[:]
    loading.load_all([folder, folder], device="cpu", model_kwargs={"local_files_only": True})
    assert [options["local_files_only"] for _, options in seen] == [True] * 6


def test_a_quantised_model_is_made_where_it_stays(folder, monkeypatch):
    """Its weights cannot be moved: the device goes along as a map, and ``to`` is not called."""
    real = transformers.AutoModelForCausalLM.from_pretrained
    seen = []

    def record(source, *, quantization_config, device_map, **options):
        seen.append((quantization_config, device_map))
        model = real(source, **options)
        monkeypatch.setattr(type(model), "to", None)
        return model

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", record)
    loaded = loading.load(folder, device="cpu", model_kwargs={"quantization_config": "four bits"})
    assert seen == [("four bits", {"": "cpu"})]
    assert loaded.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("model_kwargs", "message"),
    [
        ({"torch_dtype": "bfloat16"}, "model llama: model_kwargs has 'torch_dtype'; use the argument 'dtype'"),
        ({"device_map": "auto"}, "use the argument 'device'"),
        ({"revision": "main"}, "use the argument 'revision'"),
        ({"attn_implementation": "eager"}, "use the argument 'attention'"),
        ({"trust_remote_code": None}, "model llama: trust_remote_code must be True or False, got None"),
        ({"flavour": "sweet"}, "model llama: model_kwargs flavour: .*unexpected keyword argument 'flavour'"),
        ("trust_remote_code", "model llama: model_kwargs must be a mapping, got 'trust_remote_code'"),
    ],
)
def test_model_kwargs_that_fit_nothing_are_refused(folder, model_kwargs, message):
    with pytest.raises(InputError, match=message):
        loading.load(folder, device="cpu", model_kwargs=model_kwargs)


def test_broken_folders_and_absent_devices_name_the_model(folder, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match=rf"model {tmp_path.name}: cannot be loaded"):
        loading.load(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match=r"model llama: cannot be put on cuda:0"):
            loading.load(folder, device="cuda:0")


REVISIONS = """
import json, sys
from ensemble_decode.members.transformers import loading
loaded = loading.load_all(["owner/name@old", "owner/name"], device="cpu", revision=[None, "new"])
print(json.dumps([[len(m.tokenizer), m.model.get_input_embeddings().weight.shape[0]] for m in loaded]))
"""


def test_case_12_each_tokenizer_is_loaded_at_its_models_revision(tmp_path):
    """Field case 12, on a hub cache as huggingface_hub lays it out, offline."""
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    sizes = []
    for revision, tokenizer, commit in (("old", "gpt2", "a" * 40), ("new", "llama3", "b" * 40)):
        tiny_models.save_tiny(repository / "snapshots" / commit, "llama", tokenizer)
        (repository / "refs" / revision).write_text(commit)
        sizes.append([len(tokenizers.build(tokenizer))] * 2)
    env = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", REVISIONS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sizes
    assert sizes[0] != sizes[1]
