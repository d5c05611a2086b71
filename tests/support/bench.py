"""Tiny models as the benchmark loads them: twice, once for the package and once for the baselines."""

from functools import cache

import torch

from ensemble_decode.bench.baselines.common import prepare
from ensemble_decode.bench.energy import Meter
from ensemble_decode.bench.setup import Bench
from ensemble_decode.bench.subjects import load_endless
from ensemble_decode.members.transformers.loading import LoadedModel, parse_spec
from support import tiny_models, tokenizers

SIZES = {"llama3": {}, "gemma": {"hidden_size": 128, "num_hidden_layers": 4}}  # the second is the larger one


def loaded(layers: dict[str, dict] = SIZES) -> list[LoadedModel]:
    made = []
    for seed, (name, config) in enumerate(layers.items()):
        if "num_hidden_layers" in config and tiny_models.USUAL[name] == "gemma3":
            config = config | {
                "layer_types": ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2)
            }
        model = tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=seed, **config)
        made.append(
            LoadedModel(
                model,
                tokenizers.build(name),
                parse_spec("demo:smollm2"),
                name,
                torch.device("cpu"),
                model.dtype,
                (),
                512,
                None,
            )
        )
    return made


@cache
def bench() -> Bench:
    """A pair of tiny models; built once, do not change it."""
    again = loaded()
    prepare(again)
    return Bench(load_endless(loaded()), again, Meter([torch.device("cpu")]))
