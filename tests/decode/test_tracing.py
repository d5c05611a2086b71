"""Traces: one step per token, with the chosen candidate among the others and its probability, and with what was
written."""

import pytest
import torch
from support.ensembles import MIXED, byte_ensemble, tiny

import ensemble_decode as ed

HOT = ed.Sampling(temperature=1.5, seed=11)
WEIGHTS = (0.6, 0.4)
NONE = ed.Sharpen("none")


@pytest.fixture(scope="module")
def pair() -> ed.Ensemble:
    """Two models over single bytes, flat enough that samples fall outside of any short list."""
    return byte_ensemble(2, spread=0.5, weights=WEIGHTS)


@torch.no_grad()
def softmaxes(ensemble: ed.Ensemble, text: bytes) -> list[dict[bytes, float]]:
    """P_m of every token after a text, by the models themselves; ``b""``: END."""
    out = []
    for runner, vocab in zip(ensemble.runners, ensemble.vocab.models, strict=True):
        logits = runner.model(torch.tensor([vocab.encode(text)])).logits[0, -1].double()
        logits[~torch.from_numpy(vocab.allowed)] = -torch.inf
        p = logits.softmax(-1).tolist()
        known = {vocab.token_bytes[i]: p[i] for i in range(vocab.size) if vocab.allowed[i] and i not in vocab.eos_ids}
        out.append(known | {b"": sum(p[i] for i in vocab.eos_ids)})
    return out


def shown(step) -> float:
    """The probability that a step shows for its choice."""
    assert step.candidates.count(step.chosen) == 1
    return step.probs[step.candidates.index(step.chosen)]


@pytest.mark.parametrize(
    "method",
    [
        ed.Single(),
        ed.Single(1),
        ed.GaC(threshold=1),
        ed.GaC(threshold=0.06),
        ed.UniTE(top_k=1000, gate=ed.KL(0.45)),
        ed.UniTE(top_k=1000, gate=ed.MaxProb(0.06)),
        ed.SAFE(base=ed.GaC(threshold=1), sharpen=NONE, draft_length=2),
        ed.SAFE(base=ed.UniTE(top_k=1000), sharpen=NONE, draft_length=2, test=ed.KL(0.45)),
    ],
    ids=str,
)
def test_sampled_choices_are_shown_with_their_probability(pair, method):
    """E where the ensemble acted, the model's own probability elsewhere. Most samples are outside of the ten
    likeliest."""
    model = method.model if isinstance(method, ed.Single) else 0
    outside = kinds = 0
    for prompt in ("abcd", "xyz"):
        (row,) = pair.generate(prompt, method=method, max_new_tokens=14, sampling=HOT, trace=True)
        assert len(row.trace) == len(row.token_ids)
        text = prompt.encode()
        for step in row.trace:
            p = softmaxes(pair, text)
            if step.ensembled:
                expected = sum(w * p_m[step.chosen] for w, p_m in zip(WEIGHTS, p, strict=True))
            else:
                expected = p[model][step.chosen]
            assert shown(step) == pytest.approx(expected, abs=1e-5)
            outside += len(step.candidates) == 11
            kinds |= 1 << step.ensembled
            text += step.written
    gated = not isinstance(method, ed.Single) and method != ed.GaC(threshold=1)
    assert kinds == (3 if gated else 2 if isinstance(method, ed.GaC) else 1)
    if not isinstance(method, (ed.SAFE, ed.UniTE)):
        assert outside > 5, "no sample was outside of the ten likeliest"


@pytest.mark.parametrize(
    "method", [ed.Single(), ed.UniTE(), ed.GaC(), ed.SAFE(draft_length=1), ed.SAFE(draft_length=8)], ids=str
)
def test_behind_a_stop_string_a_step_per_token_is_left(method):
    """Stops that begin and end inside tokens, also where the text before them came from an earlier round."""
    trio = tiny("gpt2", "llama2", "gemma")
    stopped = 0
    for prompt in ("The quick brown fox", "def f(x):\n"):
        (free,) = trio.generate(prompt, method=method, max_new_tokens=20, trace=True)
        for at in range(1, len(free.data) - 4, 4):
            stop = free.data[at : at + 4]
            (row,) = trio.generate(prompt, method=method, max_new_tokens=20, stop=stop, trace=True)
            assert len(row.trace) == len(row.token_ids)
            assert [step.token_id for step in row.trace] == row.token_ids
            assert row.data.startswith(b"".join(step.written for step in row.trace))
            assert row.stats.ensembled == len(row.ensembled_at)
            stopped += row.finish_reason == "stop"
    assert stopped >= 8


@pytest.mark.parametrize("method", [ed.UniTE(), ed.GaC(threshold=1), ed.SAFE(draft_length=2)], ids=str)
def test_a_first_piece_is_shown_as_what_was_written(method):
    """The chosen candidate is the other model's token; the primary writes the first piece of it that it has."""
    ensemble = tiny("gpt2", "gemma")
    pieces = 0
    for sampling in (ed.Sampling(), HOT):
        rows = ensemble.generate(MIXED, method=method, max_new_tokens=20, sampling=sampling, trace=True)
        for row in rows:
            assert b"".join(step.written for step in row.trace) == row.data
            assert [step.token_id for step in row.trace] == row.token_ids
            for step in row.trace:
                shown(step)
                assert step.chosen.startswith(step.written)
                assert ensemble.vocab.models[0].token_bytes[step.token_id] == step.written or step.ended
                pieces += step.chosen != step.written
    assert pieces >= 4


def test_a_closed_gate_shows_the_primary_and_how_far_the_models_were_apart(pair):
    (row,) = pair.generate("abcd", method=ed.UniTE(gate=ed.KL(1e6)), max_new_tokens=4, trace=True)
    text = b"abcd"
    for step in row.trace:
        p = softmaxes(pair, text)
        assert not step.ensembled
        assert len(step.kl) == len(step.model_top) == 2
        assert step.js > 0
        assert dict(zip(step.candidates, step.probs, strict=True)) == pytest.approx(
            {c: p[0][c] for c in step.candidates}, abs=1e-5
        )
        assert step.max_prob == pytest.approx(max(p[0].values()), abs=1e-5)
        text += step.written
