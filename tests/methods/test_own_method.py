"""A method of one's own, defined from the page of the docs alone."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.ensembles import MIXED, byte_ensemble, same, tiny

import ensemble_decode as ed
from ensemble_decode.decode.requests import BatchRequest
from ensemble_decode.members.protocol import Capabilities
from ensemble_decode.methods import BaseMethod, Method

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.fixture(scope="module")
def own() -> dict:
    """The names that the page's examples define; ``ensemble`` is a pair of byte models."""
    section = PAGE.read_text().split("## A method of your own")[1]
    names = {"ensemble": byte_ensemble(2, spread=0.6, weights=(0.7, 0.3))}
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    return names


def test_the_examples_of_the_docs_run(own):
    for name in ("done", "drafted"):
        (row,) = own[name]
        assert row.error is None
        assert row.data
        assert row.ensembled_at


def probabilities(ensemble: ed.Ensemble, text: bytes) -> list[torch.Tensor]:
    """Each model's float64 softmax after a text, over its allowed ids."""
    out = []
    for runner, vocab in zip(ensemble.runners, ensemble.vocab.models, strict=True):
        ids = torch.tensor([vocab.encode(text)])
        logits = runner.model(ids).logits[0, -1].double()
        logits[~torch.from_numpy(vocab.allowed)] = -torch.inf
        out.append(logits.softmax(-1))
    return out


@torch.no_grad()
def test_weights_of_a_step_are_the_methods_own(own):
    ensemble = own["ensemble"]
    (row,) = ensemble.generate("abcd", method=own["Confident"](top_k=1000), max_new_tokens=3, trace=True)
    text = b"abcd"
    for step in row.trace:
        p = probabilities(ensemble, text)
        weights = torch.tensor([w * float(x.max()) for w, x in zip((0.7, 0.3), p, strict=True)])
        expected = sum(w * x for w, x in zip(weights / weights.sum(), p, strict=True))
        for candidate, prob in zip(step.candidates, step.probs, strict=True):
            if candidate:
                assert prob == pytest.approx(float(expected[ensemble.vocab.models[0].encode(candidate)[0]]), abs=1e-5)
        text += step.chosen


def test_safe_takes_it_as_its_base(own):
    """Where SAFE's ensemble acts, its distribution is the base's at that place."""
    ensemble, base = own["ensemble"], own["Confident"](top_k=8)
    method = ed.SAFE(base=base, sharpen=ed.Sharpen("none"))
    (row,) = ensemble.generate("abcd", method=method, max_new_tokens=16, trace=True)
    text, fused = "abcd", 0
    for step in row.trace:
        if step.ensembled and text.isascii():
            (there,) = ensemble.generate(text, method=base, max_new_tokens=1, trace=True)
            assert there.trace[0].chosen == step.chosen
            assert there.trace[0].probs == pytest.approx(step.probs, abs=1e-5)
            fused += 1
        text += step.written.decode("latin-1")
    assert fused > 2
    sampled = ed.Sampling(temperature=1.0, seed=3)
    assert ensemble.generate("abcd", method=method, max_new_tokens=8, sampling=sampled)[0].error is None


@torch.no_grad()
def test_models_in_turn_write_in_turn(own):
    ensemble = own["ensemble"]
    (row,) = ensemble.generate("abcd", method=own["InTurn"](), max_new_tokens=9)
    text = b"abcd"
    for i, token in enumerate(row.token_ids):
        assert token == int(probabilities(ensemble, text)[i % 2].argmax())
        text += ensemble.vocab.models[0].token_bytes[token]
    assert len(row.token_ids) == 9 or row.ended


def test_rows_of_it_do_not_depend_on_their_batch(own):
    ensemble = tiny("gpt2", "llama2")
    for method in (own["InTurn"](), own["Confident"]()):
        together = ensemble.generate(MIXED, method=method, max_new_tokens=8, batch_size=3)
        for prompt, row in zip(MIXED, together, strict=True):
            assert same(row, ensemble.generate(prompt, method=method, max_new_tokens=8)[0]), prompt


@dataclass(frozen=True)
class Idle(Method):
    """Looks at the logits and does nothing."""

    def round(self, context, rows):
        context.next_logits(0, rows)


def test_a_round_that_does_nothing_is_an_error_at_once(own):
    with pytest.raises(ed.EnsembleError, match=r"Idle\.round neither added a byte to row 0 nor ended it"):
        own["ensemble"].generate("abcd", method=Idle())
    assert all(runner.held == 0 for runner in own["ensemble"].runners)


def test_parts_that_are_required():
    class NoRound(Method):
        pass

    class NoFuse(BaseMethod):
        pass

    with pytest.raises(TypeError, match="round"):
        NoRound()
    with pytest.raises(TypeError, match="fuse"):
        NoFuse()
    with pytest.raises(ed.InputError, match=r"another BaseMethod.*got Idle"):
        ed.SAFE(base=Idle())


def test_a_method_that_needs_what_a_model_cannot_do_is_refused_by_name(monkeypatch):
    ensemble = tiny("gpt2", "llama2")
    monkeypatch.setattr(ensemble.runners[1], "capabilities", Capabilities(token_trees=False))
    with pytest.raises(
        ed.InputError, match=r"SpecFuse: the method needs models that read .*token trees.*llama2 cannot"
    ):
        ensemble.generate("a", method=ed.SpecFuse())
    refused, fine = ensemble.generate_batch(
        [BatchRequest("a", method=ed.SpecFuse()), BatchRequest("a", method=ed.SAFE())], max_new_tokens=2
    )
    assert refused.error_kind == "field"
    assert "the method needs models that read" in refused.completion.error
    assert fine.error_kind is None


@pytest.mark.parametrize("method", ["unite", ed.UniTE, 3])
def test_what_is_no_method_is_refused(method):
    with pytest.raises(ed.InputError, match="method must be a Method"):
        tiny("gpt2", "llama2").generate("a", method=method)
