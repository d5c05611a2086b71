"""SAFE: what it promises about tokens, work, caches and traces."""

import threading

import pytest
import torch
from support.ensembles import MIXED, byte_ensemble, ensemble_of, models, next_distribution, prompt_ids, same, tiny

import ensemble_decode as ed
from ensemble_decode.methods.safe.draft_lengths import LONGEST, AutoLength

NONE = ed.Sharpen("none")
EVERYWHERE = ed.GaC(threshold=1)


@pytest.mark.parametrize("weights", [None, (0.8, 0.1, 0.1), (0.1, 0.6, 0.3), (0.0, 1.0, 0.0)])
@pytest.mark.parametrize("draft_length", [1, 4, "auto"])
def test_theorem_1(draft_length, weights):
    """One tokenizer, whole vocabularies, no sharpening: SAFE equals ensembling at every token (paper, theorem 1)."""
    ensemble = byte_ensemble(3, spread=1.0, weights=weights)
    every = ensemble.generate(MIXED, method=EVERYWHERE, max_new_tokens=24)
    safe = ensemble.generate(
        MIXED, method=ed.SAFE(base=EVERYWHERE, draft_length=draft_length, sharpen=NONE), max_new_tokens=24
    )
    for one, other in zip(every, safe, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
    assert sum(len(row.ensembled_at) for row in safe) < sum(len(row.ensembled_at) for row in every)


def test_twins_accept_every_draft_and_forward_every_token_once():
    """Verifiers that agree: no ensembling; each model forwards the prompt and then every token it reads, once."""
    ensemble = byte_ensemble(3, twins=True)
    (row,) = ensemble.generate("abcd", method=ed.SAFE(draft_length=5, sharpen=NONE), max_new_tokens=20)
    alone = ensemble.generate("abcd", method=ed.Single(), max_new_tokens=20)[0]
    assert row.token_ids == alone.token_ids
    assert len(row.token_ids) == 20
    assert (row.stats.rounds, row.stats.drafted, row.stats.accepted, row.stats.ensembled) == (4, 20, 20, 0)
    assert row.stats.unsafe == 0
    # The last token is never read by anybody; a verifier needs no token after the last one it judged.
    assert row.stats.forwarded == [4 + 19] * 3
    assert row.stats.agreed == [20] * 3


def test_a_rejection_reuses_the_logits_that_are_there():
    """No forward of its own for the union step: per round one pass per verifier and one step per draft token."""
    ensemble = byte_ensemble(2, spread=0.5)
    before = [runner.stats.forwards for runner in ensemble.runners]
    (row,) = ensemble.generate("abcd", method=ed.SAFE(draft_length=4, sharpen=NONE), max_new_tokens=16)
    drafts, passes = (runner.stats.forwards - b for runner, b in zip(ensemble.runners, before, strict=True))
    assert row.stats.ensembled > 0
    assert passes <= row.stats.rounds
    assert drafts == row.stats.drafted


@pytest.mark.parametrize("draft_length", [1, 5])
def test_caches_are_rolled_back_not_recomputed(draft_length):
    """The primary forwards its prompt and, each round, the token that the ensemble chose and its draft less the last
    token.

    That is one forward per drafted token: nothing that stands is run twice.
    """
    trio = tiny("gpt2", "llama2", "gemma")
    method = ed.SAFE(draft_length=draft_length)
    rows = trio.generate(MIXED, method=method, max_new_tokens=24)
    for prompt, row in zip(MIXED, rows, strict=True):
        whole = len(prompt_ids(trio, 0, prompt))
        assert row.stats.rounds > 3
        # A round whose draft stood whole leaves its last token to the next, which drafts as many more: still one for
        # one. A fused token that is the rejected draft's own (a gate that closed) is in the cache already.
        assert whole - 1 + row.stats.drafted - row.stats.rounds <= row.stats.forwarded[0]
        assert row.stats.forwarded[0] <= whole - 1 + row.stats.drafted


@pytest.mark.parametrize("test", [ed.MaxProb(0.6), ed.KL(0.1), ed.JS(0.05)], ids=str)
def test_gates_as_the_test_of_disagreement(test):
    """The gate rejects exactly the safe positions where it is open: thresholds that never open leave the primary
    alone."""
    ensemble = byte_ensemble(2, spread=0.7)
    never = type(test)(0.0) if isinstance(test, ed.MaxProb) else type(test)(1e6)
    alone = ensemble.generate(MIXED, method=ed.Single(), max_new_tokens=16)
    closed = ensemble.generate(MIXED, method=ed.SAFE(test=never), max_new_tokens=16)
    for one, other in zip(alone, closed, strict=True):
        assert (one.token_ids, other.ensembled_at) == (other.token_ids, [])
    base = ed.UniTE(gate=test)
    gated = ensemble.generate(MIXED, method=base, max_new_tokens=16)
    tested = ensemble.generate(MIXED, method=ed.SAFE(base=ed.UniTE(), test=test, sharpen=NONE), max_new_tokens=16)
    for one, other in zip(gated, tested, strict=True):
        assert one.token_ids == other.token_ids
        assert one.ensembled_at == other.ensembled_at
    assert any(row.ensembled_at for row in tested)


def test_end_inside_a_draft():
    """A draft stops after END; END stands or falls like any token."""
    trio = tiny("gpt2", "llama2", "gemma")
    ended = 0
    for i in range(6):
        prompt = f"{i} is a number. The end"
        (row,) = trio.generate(prompt, method=ed.SAFE(draft_length=8), max_new_tokens=40)
        assert row.stats.accepted + row.stats.ensembled == len(row.token_ids)
        if row.ended:
            ended += 1
            assert row.token_ids[-1] in trio.vocab.models[0].eos_ids
            assert not set(row.token_ids[:-1]) & set(trio.vocab.models[0].eos_ids)
    assert ended, "no text ended: the tiny models must write END now and then"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_max_new_tokens_inside_a_draft(limit):
    trio = tiny("gpt2", "llama2", "gemma")
    long = trio.generate(MIXED, method=ed.SAFE(draft_length=3), max_new_tokens=limit + 9)
    for row, full in zip(trio.generate(MIXED, method=ed.SAFE(draft_length=3), max_new_tokens=limit), long, strict=True):
        assert len(row.token_ids) <= limit
        if row.finish_reason == "length":
            assert len(row.token_ids) == limit
        assert full.token_ids[: min(limit, 1)] == row.token_ids[: min(limit, 1)]


def test_stop_inside_a_draft():
    trio = tiny("gpt2", "llama2", "gemma")
    method = ed.SAFE(draft_length=8)
    (free,) = trio.generate("The quick brown fox", method=method, max_new_tokens=24)
    assert len(free.data) > 8
    for at in range(2, len(free.data) - 2, 5):
        stop = free.data[at : at + 2]
        (row,) = trio.generate("The quick brown fox", method=method, max_new_tokens=24, stop=stop)
        assert row.finish_reason == "stop"
        assert row.data == free.data[: free.data.find(stop)]


@pytest.mark.parametrize("prompt", ["Größe", "12 + 7 ="])
def test_streams_never_show_what_may_be_taken_back(prompt):
    """Every delta is a prefix of the final text when it appears: nothing of a draft is shown before it stands."""
    trio = tiny("gpt2", "llama2", "gemma")
    (row,) = trio.generate(prompt, method=ed.SAFE(draft_length=8), max_new_tokens=24)
    shown, ids = "", []
    for delta in trio.stream(prompt, method=ed.SAFE(draft_length=8), max_new_tokens=24):
        shown, ids = shown + delta.text, ids + delta.token_ids
        assert row.text.startswith(shown)
        assert row.token_ids[: len(ids)] == ids
    assert (shown, ids) == (row.text, row.token_ids)
    assert 0 < row.stats.accepted < row.stats.drafted


def test_auto_lengths_follow_the_row():
    start = AutoLength()
    assert start.trust == 1.25
    assert start.goes_on([0.9, 0.9, 0.9, 0.9])
    assert start.goes_on([0.5, 0.8])
    assert not start.goes_on([0.3])
    assert not start.goes_on([0.5, 0.5])  # 0.625 each: together less likely than 0.4
    assert start.goes_on([1.0] * (LONGEST - 1))
    assert not start.goes_on([1.0] * LONGEST)
    # Tokens of probability 0.5 that all stood: the primary is surer than it says. One more after 0.3 is worth it now.
    trusted = start.after([0.5] * 16, 16)
    assert trusted.trust == (20 + 16) / (16 + 8)
    assert trusted.goes_on([0.3])
    assert trusted.goes_on([0.5, 0.5])
    # Sure tokens of which the third was rejected, again and again; what follows a rejection counts for nothing.
    doubted = start
    for _ in range(10):
        doubted = doubted.after([0.9] * 8, 2)
    assert doubted.trust == pytest.approx((20 + 20) / (16 + 10 * 3 * 0.9))
    assert not doubted.goes_on([0.9] * 6)
    assert start.goes_on([0.9] * 6)


@pytest.mark.parametrize("sampling", [ed.Sampling(), ed.Sampling(temperature=0.8, seed=4)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_length", [3, "auto"])
def test_overlap_gives_the_same_tokens(draft_length, sampling):
    trio = tiny("gpt2", "llama2", "gemma")
    method = ed.SAFE(draft_length=draft_length, overlap=False)
    plain = trio.generate(MIXED, method=method, max_new_tokens=16, sampling=sampling, batch_size=3)
    method = ed.SAFE(draft_length=draft_length, overlap=True)
    ahead = trio.generate(MIXED, method=method, max_new_tokens=16, sampling=sampling, batch_size=3)
    assert all(same(one, other) for one, other in zip(plain, ahead, strict=True))
    assert [row.stats.drafted for row in plain] == [row.stats.drafted for row in ahead]


def test_overlap_drafts_while_the_verifier_reads(monkeypatch):
    """A verifier that does not return before the primary has taken the next draft's first step."""
    ensemble = byte_ensemble(2, twins=True)
    primary, verifier = ensemble.runners
    steps, moved, entered, met = 0, threading.Condition(), [], []
    draft, read = primary.extend, verifier.extend

    def drafting(*args):
        nonlocal steps
        out = draft(*args)
        with moved:
            steps += 1
            moved.notify_all()
        return out

    def reading(*args):
        if overlap and len(met) < len(alone) - 1:  # behind the last draft nothing is written
            with moved:
                met.append(moved.wait_for(lambda: steps > alone[len(met)], timeout=20))
        entered.append(steps)
        return read(*args)

    monkeypatch.setattr(primary, "extend", drafting)
    monkeypatch.setattr(verifier, "extend", reading)
    alone = []
    for overlap in (False, True):
        steps = 0
        entered.clear()
        (row,) = ensemble.generate("abcd", method=ed.SAFE(draft_length=4, overlap=overlap), max_new_tokens=32)
        assert row.stats.accepted == 32
        alone = alone or list(entered)  # the primary's steps before each reading, one draft at a time
    assert len(alone) >= 8
    assert all(met)
    assert len(met) == len(alone) - 1


def test_auto_throws_away_less_work():
    ensemble = byte_ensemble(2, spread=0.7)
    fixed = ensemble.generate(MIXED, method=ed.SAFE(draft_length=8, sharpen=NONE), max_new_tokens=32)
    auto = ensemble.generate(MIXED, method=ed.SAFE(draft_length="auto", sharpen=NONE), max_new_tokens=32)

    def wasted(rows):
        return sum(row.stats.drafted - row.stats.accepted for row in rows)

    assert wasted(auto) < 0.7 * wasted(fixed)


def test_case_26_draft_and_verify_is_greedy_decoding():
    """Models that agree write their greedy text; in bfloat16 each token is the argmax of one pass over all of it, or
    two roundings off."""
    method = ed.SAFE(draft_length=4, sharpen=NONE)
    exact = byte_ensemble(2, twins=True)
    for one, other in zip(
        exact.generate(MIXED, method=ed.Single(), max_new_tokens=20),
        exact.generate(MIXED, method=method, max_new_tokens=20),
        strict=True,
    ):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
    names = ["bytes"] * 2
    half = [model.to(torch.bfloat16) for model in models(names, families=["llama"] * 2, seed=[0, 0])]
    rough = ensemble_of(half, names)
    allowed = torch.from_numpy(rough.vocab.models[0].allowed)
    for prompt, row in zip(MIXED, rough.generate(MIXED, method=method, max_new_tokens=20), strict=True):
        start = rough.vocab.models[0].encode(prompt.encode())
        with torch.no_grad():
            logits = half[0](torch.tensor([start + row.token_ids])).logits[0, len(start) - 1 : -1].float()
        logits[:, ~allowed] = -torch.inf
        best = logits.max(-1).values
        gap = best - logits.gather(1, torch.tensor(row.token_ids).unsqueeze(1)).squeeze(1)
        assert bool((gap <= 2 * 2**-8 * best.abs().clamp_min(1)).all()), prompt


@pytest.mark.parametrize("draft_length", [1, 4, "auto"])
def test_trace_tells_what_stood_and_what_the_ensemble_chose(draft_length):
    """A step per token: a drafted one with the primary's probability, a fused one with E there, each as decoding to it
    gives them."""
    ensemble = byte_ensemble(2, spread=0.6)
    seen = {True: 0, False: 0}
    for prompt in ("abcd", "xyz"):
        method = ed.SAFE(base=ed.UniTE(top_k=8), draft_length=draft_length, sharpen=NONE)
        (row,) = ensemble.generate(prompt, method=method, max_new_tokens=16, trace=True)
        assert len(row.trace) == len(row.token_ids)
        assert b"".join(step.chosen for step in row.trace if not step.ended) == row.data
        assert [i for i, step in enumerate(row.trace) if step.ensembled] == row.ensembled_at
        assert [step.ended for step in row.trace[:-1]] == [False] * (len(row.trace) - 1)
        assert row.trace[-1].ended == (row.ended)
        text = prompt.encode()
        for step in row.trace:
            if all(byte < 128 for byte in text):
                there = next_distribution(ensemble, ed.UniTE(top_k=8) if step.ensembled else ed.Single(), text.decode())
                assert there[step.chosen] == pytest.approx(step.probs[step.candidates.index(step.chosen)], abs=1e-5)
                if step.ensembled:
                    kept = {c: p for c, p in zip(step.candidates, step.probs, strict=True) if p > 0}
                    assert kept == pytest.approx(there, abs=1e-5)
                seen[step.ensembled] += 1
            text += step.written
    assert min(seen.values()) > 3, seen
