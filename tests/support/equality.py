"""Side by side: the package's decoder and the oracle on the same models."""

from dataclasses import dataclass
from functools import cache

import ensemble_decode as ed
from support import tokenizers
from support.ensembles import ensemble_of, models
from support.oracle import decode
from support.oracle.fusion import Gate, Sharpening
from support.oracle.model import Model, align
from support.oracle.safe import safe

# Decisions closer than this may fall either way in float32.
TIE = 1e-5


@dataclass
class Pair:
    """An `Ensemble` and the oracle's models of the same weights. `options` go to `tiny_model`, one dictionary a
    model."""

    names: tuple[str, ...]
    ensemble: ed.Ensemble
    models: list[Model]


def pair_of(names: tuple[str, ...], seed: int = 0, weights: tuple[float, ...] | None = None, **options) -> Pair:
    """Tiny models of these tokenizers, each of its usual family; `options` as for `ensembles.models`."""

    def make():
        return models(names, seed=seed, padding=[3 * i for i in range(len(names))], **options)

    ensemble = ensemble_of(make(), names, names=None, weight=weights, attention="sdpa")
    tokens = [tokenizers.build(name) for name in names]
    return Pair(names, ensemble, align([Model(*pair, share=True) for pair in zip(make(), tokens, strict=True)]))


@cache
def tiny(names: tuple[str, ...], seed: int = 0, weights: tuple[float, ...] | None = None, **options) -> Pair:
    """`pair_of`, kept for the process."""
    return pair_of(names, seed, weights, **options)


def method_of(spec: dict):
    """The package's method for a run of the golden sweep (`support.oracle.sweep`)."""
    settings = {key: value for key, value in spec["settings"].items() if key != "weights"}
    if "gate" in settings:
        kind, threshold = settings["gate"]
        settings["gate"] = {"max_prob": ed.MaxProb, "kl": ed.KL, "js": ed.JS}[kind](threshold)
    if spec["method"] == "single":
        return ed.Single()
    if spec["method"] in ("unite", "gac"):
        return {"unite": ed.UniTE, "gac": ed.GaC}[spec["method"]](**settings)
    sharpen = ed.Sharpen(settings.pop("sharpen"), trigger=settings.pop("trigger", "max_prob"))
    draft_length = settings.pop("draft_length")
    base = {"unite": ed.UniTE, "gac": ed.GaC}[settings.pop("base")](**settings)
    return ed.SAFE(base=base, draft_length=draft_length, sharpen=sharpen)


def gate_of(gate):
    kinds = {ed.MaxProb: "max_prob", ed.KL: "kl", ed.JS: "js"}
    return None if gate is None else Gate(kinds[type(gate)], gate.threshold)


def base_of(method) -> dict:
    if isinstance(method, ed.GaC):
        return {"threshold": method.threshold}
    return {
        "top_k": method.top_k,
        "oov": method.oov,
        "aggregate": method.aggregate,
        "gate": gate_of(method.gate),
    }


def recall(pair: Pair, prompt, done: ed.Completion) -> None:
    """Save the oracle most of its forward passes; its decisions stay its own (`decode.recall`)."""
    if done.finish_reason != "error":
        decode.recall(pair.models, prompt, done.token_ids, done.data)


def oracle(pair: Pair, prompt, method, max_new_tokens: int, stop=None) -> decode.Result:
    """What the oracle writes for a method of the package."""
    weights = pair.ensemble.weights
    if isinstance(method, ed.Single):
        return decode.single(pair.models[method.model], prompt, max_new_tokens, stop)
    if isinstance(method, ed.UniTE):
        return decode.unite(pair.models, prompt, max_new_tokens, stop, weights, **base_of(method))
    if isinstance(method, ed.GaC):
        return decode.gac(pair.models, prompt, max_new_tokens, stop, weights, **base_of(method))
    return safe(
        pair.models,
        prompt,
        max_new_tokens,
        stop,
        weights,
        base="gac" if isinstance(method.base, ed.GaC) else "unite",
        draft_length=method.draft_length,
        test=gate_of(method.test),
        sharpening=Sharpening(
            method.sharpen.kind,
            method.sharpen.trigger,
            method.sharpen.threshold,
            method.sharpen.min_prob,
            method.sharpen.temperature,
        ),
        **base_of(method.base),
    )


def finish_of(done: ed.Completion) -> str:
    """How a row finished, in the oracle's words: "end" where END was chosen."""
    return "end" if done.ended else done.finish_reason


def assert_equal(done: ed.Completion, expected: decode.Result, eos_ids, note: str = "") -> bool:
    """The completion is the oracle's. False where it is not but the oracle's decision was a tie in float32."""
    ended = done.ended and bool(done.token_ids) and done.token_ids[-1] in eos_ids
    ids = done.token_ids[:-1] if ended else done.token_ids
    same = (
        (ids, done.data, finish_of(done)) == (expected.ids, expected.data, expected.finish)
        and done.ensembled_at == expected.ensembled_at
        and done.text == expected.text
    )
    if not same and expected.margin < TIE:
        return False
    assert same, (
        f"{note}\nexpected {expected.finish} {expected.ids} {expected.data!r} at {expected.ensembled_at}\n"
        f"got      {finish_of(done)} {ids} {done.data!r} at {done.ensembled_at} {done.error}\n"
        f"smallest margin {expected.margin:.1e}, margins {[f'{m:.1e}' for m in expected.margins]}"
    )
    return True
