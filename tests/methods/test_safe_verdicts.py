"""SAFE's verdicts on models whose probabilities are written down: each case is worked out by hand."""

import pytest
from support.bigrams import bigram_ensemble
from support.equality import finish_of
from support.oracle.vocab import END

import ensemble_decode as ed
from ensemble_decode.methods.safe.reading import Proposal, Reading
from ensemble_decode.methods.safe.verdicts import Verdict, agree

NONE = ed.Sharpen("none")

# The primary writes " the." and ends: byte by byte.
THE = {"a": {" ": 0.9}, " ": {"t": 0.9}, "t": {"h": 0.9}, "h": {"e": 0.9}, "e": {".": 0.6, "!": 0.1}, ".": {END: 0.9}}
ABCD = {"x": {"a": 0.9}, "a": {"b": 0.9}, "b": {"c": 0.9}, "c": {"d": 0.9}, "d": {"a": 0.9}}


def run(*tables, prompt="a", tokens=8, n=5, names=None, weights=None, sharpen=NONE, **options):
    ensemble = bigram_ensemble(*tables, names=names, weights=weights)
    method = ed.SAFE(draft_length=n, sharpen=sharpen)
    (row,) = ensemble.generate(prompt, method=method, max_new_tokens=tokens, **options)
    assert row.error is None
    return row


def test_a_position_is_safe_where_every_verifier_has_a_token_edge():
    """One verifier reads " the" as one token, the other byte by byte: "t", "h", "e" stand unread, "." is judged."""
    reader = {"a": {" the": 0.9}, " the": {"!": 0.8, ".": 0.05}, "!": {END: 0.9}, ".": {END: 0.9}}
    other = THE | {"t": {"x": 0.9}, "e": {"!": 0.8, ".": 0.1}}
    # "." stands with (.6 + .05 + .1) / 3 = .25 and is nobody else's choice; E("!") = (.1 + .8 + .8) / 3.
    # "t" would be followed by "x" in the third model: "h" stands only because it is not safe.
    row = run(THE, reader, other, names=("bytes", "gpt2", "bytes"), tokens=5)
    assert row.text == " the!"
    assert (row.ensembled_at, row.finish_reason) == ([4], "length")
    assert (row.stats.rounds, row.stats.drafted, row.stats.accepted, row.stats.unsafe) == (1, 5, 4, 3)


def test_the_weighted_half():
    verifier = ABCD | {"b": {"d": 0.8, "c": 0.19}}
    # "c" after "b": (.9 + .19) / 2 = .545 stands; .2 * .9 + .8 * .19 = .33 does not.
    assert run(ABCD, verifier, prompt="x", tokens=4).ensembled_at == []
    row = run(ABCD, verifier, prompt="x", tokens=3, weights=(0.2, 0.8))
    assert (row.text, row.ensembled_at) == ("abd", [2])
    # .8 * .9 + .2 * .19 = .76 stands again, with the weights on the other side
    assert run(ABCD, verifier, prompt="x", tokens=4, weights=(0.8, 0.2)).ensembled_at == []


@pytest.mark.parametrize(("probability", "stands"), [(0.25, False), (0.25 + 1e-6, True), (0.25 - 1e-6, False)])
def test_exactly_one_half_is_not_above_one_half(probability, stands):
    draft = Proposal(row=None, model=0, start=1, ids=[7], pieces=[b"c"], probs=[0.75], safe=[0])
    draft.readings[1] = Reading(ids=[9], at={0: 0}, prob={0: probability}, is_argmax={0: False})
    assert agree([[0.5, 0.5]], [(draft, 0)]) == [Verdict(stands)]


def test_unanimity_needs_no_half_but_every_verifier():
    weak = ABCD | {"b": {"c": 0.3, "d": 0.25}}
    assert run(weak, weak, weak, prompt="x", tokens=4).ensembled_at == []
    against = ABCD | {"b": {"d": 0.9, "c": 0.05}}
    # "c": (.3 + .3 + .05) / 3, one of two verifiers agrees; E("d") = (.25 + .25 + .9) / 3
    row = run(weak, weak, against, prompt="x", tokens=3)
    assert (row.text, row.ensembled_at) == ("abd", [2])


def test_the_earliest_rejection_wins():
    primary = ABCD | {"a": {"b": 0.5, "c": 0.4}, "c": {"d": 0.5, "a": 0.4}}
    verifier = ABCD | {"a": {"d": 0.95, "b": 0.01}, "c": {"x": 0.95, "d": 0.01}}
    # The first draft is "abcd", of which "b" and "d" fall; the second is "ab".
    row = run(primary, verifier, prompt="x", tokens=4, n=4)
    assert (row.text, row.ensembled_at) == ("adad", [1, 3])
    assert (row.stats.rounds, row.stats.drafted) == (2, 4 + 2)


def test_logits_of_the_rejected_position_are_fused():
    """Neighbouring positions want other tokens: reading one place too early or too late shows."""
    primary = ABCD | {"b": {"c": 0.5, "x": 0.4}}
    verifier = {"x": {"a": 0.95}, "a": {"b": 0.95}, "b": {"!": 0.98, "c": 0.01}, "c": {"?": 0.95}}
    assert run(primary, verifier, prompt="x", tokens=3).text == "ab!"


def test_end_in_a_draft_stands_or_falls_like_any_token():
    ends = {"x": {"a": 0.9}, "a": {END: 0.7, "b": 0.2}, "b": {END: 0.9}}
    row = run(ends, {"x": {"a": 0.9}, "a": {"b": 0.6, END: 0.35}}, prompt="x")  # (.7 + .35) / 2
    assert (row.text, finish_of(row), row.ensembled_at, row.stats.drafted) == ("a", "end", [], 2)
    row = run(ends, {"x": {"a": 0.9}, "a": {"b": 0.9, END: 0.05}, "b": {END: 0.9}}, prompt="x")
    # (.7 + .05) / 2 falls; E("b") = .55, then END by both
    assert (row.text, finish_of(row), row.ensembled_at) == ("ab", "end", [1])
    agreed = {"x": {"a": 0.9}, "a": {END: 0.3, "b": 0.2}}
    row = run(agreed, agreed, prompt="x")  # unanimous, though .3
    assert (row.text, finish_of(row), row.ensembled_at) == ("a", "end", [])


def test_a_stop_string_inside_a_draft_cuts_text_ids_and_counts():
    row = run(ABCD, ABCD, prompt="x", tokens=20, n=8, stop="cd")
    assert (row.text, row.finish_reason) == ("ab", "stop")
    assert len(row.token_ids) == 2
    assert (row.stats.rounds, row.stats.drafted, row.stats.accepted) == (1, 8, 2)
    assert row.stats.agreed == [2, 2]


@pytest.mark.parametrize("limit", [1, 3, 5, 7])
def test_a_draft_is_no_longer_than_max_new_tokens(limit):
    row = run(ABCD, ABCD, prompt="x", tokens=limit, n=5)
    assert (len(row.token_ids), row.finish_reason) == (limit, "length")
    assert (row.stats.drafted, row.stats.accepted) == (limit, limit)


@pytest.mark.parametrize("model", [0, 1])
def test_a_draft_is_clipped_to_the_shortest_context(model, monkeypatch):
    ensemble = bigram_ensemble(ABCD, ABCD)
    monkeypatch.setattr(ensemble.runners[model], "context_length", 7)
    (row,) = ensemble.generate("x", method=ed.SAFE(draft_length=5, sharpen=NONE), max_new_tokens=40)
    assert (row.text, row.finish_reason) == ("abcdab", "length")  # 1 + 6 tokens fill 7 positions
    assert (row.stats.drafted, row.stats.accepted) == (6, 6)
    assert max(row.stats.forwarded) <= 7


def test_a_draft_that_a_verifier_cannot_hold_loses_its_last_tokens(monkeypatch):
    """One token of the primary is four of the verifier: the context overflows within a single draft token."""
    primary = {"a": {" the": 0.9}, " the": {" the": 0.9}}
    verifier = {"a": {" ": 0.9}, " ": {"t": 0.9}, "t": {"h": 0.9}, "h": {"e": 0.9}, "e": {" ": 0.9}}
    ensemble = bigram_ensemble(primary, verifier, names=("gpt2", "bytes"))
    monkeypatch.setattr(ensemble.runners[1], "context_length", 12)
    (row,) = ensemble.generate("a", method=ed.SAFE(draft_length=5, sharpen=NONE), max_new_tokens=40)
    assert (row.text, row.finish_reason, row.error) == (" the the the", "length", None)
    # The first draft is cut to the two tokens that fit with 1 + 8 positions; the third, alone, fills the context.
    assert (row.stats.rounds, row.stats.drafted, row.stats.accepted) == (2, 3, 3)
    assert row.stats.forwarded[1] <= 12


def test_every_token_is_forwarded_once_but_those_of_dropped_drafts():
    verifier = ABCD | {"b": {"!": 0.98, "c": 0.01}, "!": {"a": 0.9}}
    primary = ABCD | {"b": {"c": 0.5, "x": 0.4}, "!": {"a": 0.9}}
    row = run(primary, verifier, prompt="x", tokens=12, n=4)
    assert row.text == "ab!" * 4
    # Rounds draft "abcd" and keep "ab!": the primary reads x, a, b, c, then !, a, b, c ...
    assert (row.stats.rounds, row.stats.drafted) == (4, 4 + 4 + 4 + 3)
    assert row.stats.forwarded[0] == 4 + 4 + 4 + 3
    # The verifier reads x, a, b, c for the four places of the first draft, then ! and three more each round.
    assert row.stats.forwarded[1] == 4 + 4 + 4 + 3
    assert (row.stats.accepted, row.stats.ensembled) == (8, 4)


def test_sharpening_acts_at_the_rejected_position():
    """At "a": E(c) = .3, E(b) = .25, E(bc) = .2. "b" gains what continues it."""
    primary = {"x": {"a": 0.95}, "a": {" the": 0.34, " ": 0.28, "t": 0.3}}
    verifier = {"x": {"a": 0.95}, "a": {"t": 0.36, " the": 0.15, " ": 0.3}}
    plain = run(primary, verifier, names=("gpt2", "gpt2"), prompt="x", tokens=2)
    sharp = run(primary, verifier, names=("gpt2", "gpt2"), prompt="x", tokens=2, sharpen=ed.Sharpen("prefix"))
    assert (plain.text, plain.ensembled_at, plain.stats.sharpened) == ("at", [1], 0)
    assert sharp.stats.sharpened == 1
