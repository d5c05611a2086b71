"""Tiny models as the benchmark loads them, and cells whose times are written down."""

from functools import cache

import torch

from ensemble_decode.bench.baselines.common import prepare
from ensemble_decode.bench.energy import Meter
from ensemble_decode.bench.measure import Cell, Sample
from ensemble_decode.bench.setup import Bench
from ensemble_decode.bench.subjects import load_endless
from ensemble_decode.members.transformers.loading import LoadedModel
from support import tiny_models, tokenizers

MODELS = ["first", "second"]
SIZES = {"llama3": {}, "gemma": {"hidden_size": 128, "num_hidden_layers": 4}}  # the second is the larger one


def loaded(layers: dict[str, dict] = SIZES) -> list[LoadedModel]:
    made = []
    for seed, (name, config) in enumerate(layers.items()):
        if "num_hidden_layers" in config and tiny_models.USUAL[name] == "gemma3":
            config = config | {
                "layer_types": ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2)
            }
        model = tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=seed, **config)
        made.append(LoadedModel(model, tokenizers.build(name), name, torch.device("cpu"), model.dtype, ()))
    return made


@cache
def bench() -> Bench:
    """A pair of tiny models; built once, do not change it."""
    again = loaded()
    prepare(again)
    return Bench(load_endless(loaded()), again, Meter([torch.device("cpu")]))


def sample(per_token: float, tokens: int = 10, **fields: object) -> Sample:
    """A generation of which every token took ``per_token`` seconds."""
    seconds = per_token * tokens
    made = {
        "tokens": tokens, "seconds": seconds, "first": per_token, "latency_mean": per_token,
        "latency_median": per_token,
        "latency_p90": 2 * per_token, "latency_p99": 3 * per_token, "forward": [0.6 * seconds,
        0.2 * seconds], "fusion": 0.1 * seconds,
        "host": 0.09 * seconds, "outside": 0.01 * seconds, "cache_bytes": 2_000_000, "drafted": 0,
        "accepted": 0, "ensembled": 0,
        "joules": None,
    }  # fmt: skip
    return Sample(**(made | fields))


def cell(
    subject: str,
    per_tokens: list[float],
    *,
    suite: str = "asked",
    batch: int = 1,
    prompt: int = 32,
    kind: str = "method",
    models: list[str] = MODELS,
    **fields: object,
) -> Cell:
    """A cell with one sample per time given."""
    return Cell(
        suite,
        subject,
        f"label of {subject}",
        kind,
        models,
        batch,
        prompt,
        10,
        [sample(p, **fields) for p in per_tokens],
    )
