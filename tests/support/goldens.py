"""The committed results of the oracle on the demo models, and the decoder against them.

Every run names all of its settings; SAFE's runs name their sharpening, so the package's default plays no part.
"""

import json
from collections import defaultdict

import ensemble_decode as ed
from support.equality import assert_equal, method_of
from support.oracle import sweep
from support.oracle.decode import Result
from support.prompts import TEXTS


def golden(part: str) -> tuple[dict, list[dict]]:
    """Header and runs of one part."""
    header, lines = sweep.read(sweep.GOLDEN / f"{part}.jsonl")
    assert all("sharpen" in line["settings"] for line in lines if line["method"] == "safe")
    return header, lines


def data_of(line: dict) -> bytes:
    return line["data"].encode("utf-8", "surrogateescape")


def result_of(line: dict) -> Result:
    """A golden run as the oracle's result (of its margins, the smallest)."""
    return Result(data_of(line), line["ids"], line["finish"], line["ensembled_at"], [line["smallest_margin"]])


def settings_of(line: dict) -> str:
    """What runs of one batch share."""
    return json.dumps([line["order"], line["settings"].get("weights"), line["method"], line["settings"]])


def check(demo: list, lines: list[dict]) -> int:
    """The decoder on golden runs, one batch for all prompts of the same settings; the number of ties that fell
    elsewhere.

    `demo`: (model, tokenizer) of both models, as `sweep.load_demo` gives them. AssertionError at the first difference.
    """
    groups = defaultdict(list)
    for line in lines:
        groups[settings_of(line)].append(line)
    ensembles: dict[str, ed.Ensemble] = {}
    exempt = 0
    for group in groups.values():
        # A model alone, too, runs beside the other one: a byte that one cannot spell is allowed in neither.
        order = [*group[0]["order"], *({0, 1} - set(group[0]["order"]))]
        weights = group[0]["settings"].get("weights")
        name = json.dumps([order, weights])
        if name not in ensembles:
            pairs = [demo[i] for i in order]
            ensembles = {name: ed.Ensemble.from_models([m for m, _ in pairs], [t for _, t in pairs], weight=weights)}
        ensemble = ensembles[name]
        texts = [TEXTS[line["prompt"]] for line in group]
        done = ensemble.generate(texts, method=method_of(group[0]), max_new_tokens=group[0]["tokens"])
        for line, completion in zip(group, done, strict=True):
            eos = ensemble.vocab.models[0].eos_ids
            exempt += not assert_equal(completion, result_of(line), eos, sweep.key(line))
    return exempt
