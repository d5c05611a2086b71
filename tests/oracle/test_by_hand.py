"""The oracle on examples small enough to compute by hand (numbers in the comments are worked out on paper)."""

import math

import pytest
from support.hand_models import HandModel
from support.oracle.decode import gac, single, unite
from support.oracle.fusion import Gate, Sharpening, divergences, unite_step
from support.oracle.gac import gac_step
from support.oracle.safe import safe
from support.oracle.vocab import END

ABC = ["a", "b", "c", "d"]
HALVES = [0.5, 0.5]


def pair(p: dict, q: dict, tokens=ABC, other=None, eos=1):
    models = [HandModel(tokens, {"": p}, eos), HandModel(other or tokens, {"": q}, eos)]
    return models, [model.logits([]) for model in models]


def step(p, q, weights=HALVES, tokens=ABC, other=None, **settings):
    models, logits = pair(p, q, tokens, other)
    return unite_step(models, logits, weights, **settings)


def close(probs: dict, expected: dict):
    assert probs.keys() == expected.keys()
    assert all(probs[u] == pytest.approx(p, abs=5e-4) for u, p in expected.items())


def test_mean_of_two_distributions():
    made = step({"a": 0.6, "b": 0.4}, {"a": 0.1, "b": 0.8, "c": 0.1}, top_k=3)
    close(made.probs, {b"a": 0.35, b"b": 0.6, b"c": 0.05})
    assert made.chosen == b"b"
    assert made.token == 1
    assert made.margin == pytest.approx(0.25)


def test_probability_mean_and_log_mean():
    p, q = {"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.8}
    close(step(p, q, aggregate="arithmetic").probs, {b"a": 0.55, b"b": 0.45})
    close(step(p, q, aggregate="geometric").probs, {b"a": 0.6, b"b": 0.4})


def test_candidate_outside_a_models_top_k_keeps_its_probability_there():
    p, q = {"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.1}, {"b": 0.6, "c": 0.2, "a": 0.05, "d": 0.15}
    made = step(p, q, top_k=2)
    # (.5/.9 + .05/.85)/2, (.3/.9 + .6/.85)/2, (.1/.9 + .2/.85)/2
    close(made.probs, {b"a": 0.307, b"b": 0.520, b"c": 0.173})
    assert made.chosen == b"b"


def test_candidate_that_the_primary_must_spell_in_two():
    p, q = {"x": 0.7, "y": 0.3}, {"xy": 0.6, "x": 0.4}
    models, logits = pair(p, q, ["x", "y"], ["x", "y", "xy"])
    made = unite_step(models, logits, HALVES, top_k=1)
    # the primary gives "x" and "xy" the same score: (.5, .5); the other (.4, .6)
    close(made.probs, {b"x": 0.45, b"xy": 0.55})
    assert made.chosen == b"xy"
    assert models[0].vocab.token_bytes[made.token] == b"x"
    excluded = unite_step(models, logits, HALVES, top_k=1, oov="exclude")
    close(excluded.probs, {b"x": 0.7, b"xy": 0.3})


def test_all_of_one_weight_is_that_model():
    p, q = {"a": 0.6, "b": 0.4}, {"b": 0.9, "c": 0.1}
    close(step(p, q, [1.0, 0.0]).probs, {b"a": 0.6, b"b": 0.4, b"c": 0.0})


def test_ties_go_to_the_smaller_candidate_and_end_is_last():
    made = step({"b": 0.5, END: 0.5}, {"b": 0.5, END: 0.5})
    assert made.chosen == b"b"
    assert step({"b": 0.5, "a": 0.5}, {"b": 0.5, "a": 0.5}).chosen == b"a"


def test_end_gathers_all_eos_ids_in_the_union_but_not_where_a_model_chooses_alone():
    # each of the two EOS ids has .3: alone "a" (.4) wins, together END (.6)
    probs = {"a": 0.4, END: 0.6}
    models, logits = pair(probs, probs, eos=2)
    close(unite_step(models, logits, HALVES).probs, {b"a": 0.4, END: 0.6})
    assert unite_step(models, logits, HALVES).token is END
    assert unite_step(models, logits, HALVES, gate=Gate("max_prob", 0.39)).chosen == b"a"


def test_divergences_over_the_union_and_the_rest():
    kl, js = divergences(HALVES, [{b"a": 0.5, b"b": 0.5}, {b"a": 0.9, b"b": 0.1}])
    # from (.7, .3): .5 ln(5/7) + .5 ln(5/3); .9 ln(9/7) + .1 ln(1/3)
    assert kl == pytest.approx([0.08718, 0.11632], abs=1e-5)
    assert js == pytest.approx(0.10175, abs=1e-5)
    kl, _ = divergences(HALVES, [{b"a": 0.5}, {b"a": 0.9}])  # the same numbers with half of b in the rest
    assert kl == pytest.approx([0.08718, 0.11632], abs=1e-5)


@pytest.mark.parametrize(
    ("gate", "opened"),
    [
        (Gate("max_prob", 0.51), True),
        (Gate("max_prob", 0.5), False),
        (Gate("kl", 0.116), True),
        (Gate("kl", 0.117), False),
        (Gate("js", 0.101), True),
        (Gate("js", 0.102), False),
    ],
)
def test_gates(gate, opened):
    made = step({"a": 0.5, "b": 0.5}, {"a": 0.1, "b": 0.9}, gate=gate)
    assert made.ensembled is opened
    assert made.chosen == (b"b" if opened else b"a")


TOKENS = ["a", "ab", "abc", "c", " ", " x"]
FLAT = {"a": 0.3, "ab": 0.22, "abc": 0.1, "c": 0.35, " ": 0.02, END: 0.01}


def test_prefix_sharpening_adds_what_continues_a_candidate():
    made = step(FLAT, FLAT, tokens=TOKENS, sharpening=Sharpening("prefix"))
    assert made.sharpened
    assert made.chosen == b"a"
    # before normalising: a .3 + .22 + .1, ab .22 + .1, abc .1 (not above .1), c .35
    total = 0.62 + 0.32 + 0.1 + 0.35 + 0.02 + 0.01
    expected = {b"a": 0.62, b"ab": 0.32, b"abc": 0.1, b"c": 0.35, b" ": 0.02, END: 0.01}
    close(made.probs, {u: p / total for u, p in expected.items()})
    assert step(FLAT, FLAT, tokens=TOKENS).chosen == b"c"


@pytest.mark.parametrize(
    ("sharpening", "chosen"),
    [
        (Sharpening("prefix", threshold=0.35), b"c"),  # .35 is not below .35
        (Sharpening("prefix", threshold=0.36), b"a"),
        (Sharpening("prefix", min_prob=0.3), b"c"),  # E(a) = .3 is not above .3
        (Sharpening("prefix", "entropy", threshold=0.78), b"a"),  # entropy 1.416 / ln 6 = .790
        (Sharpening("prefix", "entropy", threshold=0.8), b"c"),
    ],
)
def test_where_sharpening_acts(sharpening, chosen):
    assert step(FLAT, FLAT, tokens=TOKENS, sharpening=sharpening).chosen == chosen


def test_a_space_is_not_sharpened_nor_what_the_primary_does_not_propose():
    probs = {" ": 0.3, " x": 0.25, "c": 0.45}
    assert step(probs, probs, tokens=TOKENS, sharpening=Sharpening("prefix")).chosen == b"c"
    # "a" is the other model's candidate alone
    p, q = {"c": 0.7, "ab": 0.3}, {"a": 0.8, "ab": 0.2}
    assert step(p, q, tokens=TOKENS, top_k=1, sharpening=Sharpening("prefix")).chosen == b"a"
    p, q = {"c": 0.6, "ab": 0.4}, {"a": 0.5, "abc": 0.5}
    made = step(p, q, tokens=TOKENS, top_k=2, sharpening=Sharpening("prefix"))
    # E: a .25, ab .2, abc .25, c .3; only "ab" of the primary's gains: .2 + .25
    assert made.chosen == b"ab"


def test_geometric_and_temperature_sharpening():
    p, q = {"a": 0.8, "b": 0.2}, {"a": 0.1, "b": 0.5, "c": 0.4}
    sharp = Sharpening("geometric", threshold=0.9)
    made = step(p, q, sharpening=sharp)
    a, b = math.sqrt(0.08), math.sqrt(0.1)
    close(made.probs, {b"a": a / (a + b), b"b": b / (a + b), b"c": 0.0})
    assert made.chosen == b"b"
    made = step(p, q, sharpening=Sharpening("temperature", threshold=0.9, temperature=0.5))
    total = 0.45**2 + 0.35**2 + 0.2**2
    close(made.probs, {b"a": 0.45**2 / total, b"b": 0.35**2 / total, b"c": 0.2**2 / total})


def test_gac_counts_zero_where_a_model_lacks_the_candidate():
    p, q = {"a": 0.45, "b": 0.35, "c": 0.2}, {"b": 0.1, "cc": 0.8, "c": 0.1}
    models, logits = pair(p, q, ["a", "b", "c"], ["b", "c", "cc"])
    made = gac_step(models, logits, HALVES, threshold=0.5)
    assert made.chosen == b"cc"  # .4; a .225, b .225, c .15
    assert made.token == models[0].vocab.exact(b"c")
    assert made.margin == pytest.approx(0.05)  # the gate: .5 - .45
    made = gac_step(models, logits, [0.7, 0.3], threshold=1.0)
    assert made.chosen == b"a"  # .315; cc .24
    assert made.margin == pytest.approx(0.04)  # the runner-up is b, .275
    assert not gac_step(models, logits, HALVES, threshold=0.45).ensembled


def test_gac_sharpening():
    models, logits = pair(FLAT, FLAT, TOKENS)
    assert gac_step(models, logits, HALVES, threshold=1.0).chosen == b"c"
    assert gac_step(models, logits, HALVES, threshold=1.0, sharpening=Sharpening("prefix")).chosen == b"a"


ONE = {"": {"a": 1.0}, "a": {"b": 1.0}, "ab": {"c": 1.0}, "abc": {END: 1.0}}


def test_stop_strings_length_and_context():
    model = HandModel(ABC, ONE)
    assert (single(model, "", 10).data, single(model, "", 10).finish) == (b"abc", "end")
    assert (single(model, "", 2).ids, single(model, "", 2).finish) == ([0, 1], "length")
    assert (single(model, "", 3).ids, single(model, "", 3).finish) == ([0, 1, 2], "length")
    made = single(model, "", 10, stop=["bc"])
    assert (made.data, made.ids, made.finish) == (b"a", [0], "stop")
    model.context_length = 2
    assert (single(model, "", 10).data, single(model, "", 10).finish) == (b"ab", "length")


def test_stop_inside_a_token_and_which_of_two_counts():
    model = HandModel(["wxyz"], {"": {"wxyz": 1.0}, "wxyz": {END: 1.0}})
    assert single(model, "", 5, stop=["y"]).data == b"wx"
    assert single(model, "", 5, stop=["wxyz", "x"]).data == b"w"  # x is complete first
    assert single(model, "", 5, stop=["y", "xy"]).data == b"w"  # complete at the same byte: the one that starts first
    assert single(model, "", 5, stop=["zz"]).finish == "end"
    assert single(model, "", 5, stop=["y"]).ids == []


# SAFE: the verifier reads "ab" as one token.
WRITER = {
    "": {"a": 0.9, "b": 0.1},
    "a": {"b": 0.8, "c": 0.2},
    "ab": {"c": 0.6, "d": 0.4},
    "abc": {END: 0.9, "a": 0.1},
    "abd": {END: 0.9, "a": 0.1},
}
TOKENS_V = ["a", "b", "c", "d", "ab"]


def verifier(after_ab: dict, last=None):
    last = last or {END: 1.0}
    table = {"": {"ab": 0.6, "a": 0.4}, "a": {"c": 1.0}, "ab": after_ab, "abc": last, "abd": last}
    return HandModel(TOKENS_V, table)


def test_safe_rejects_at_a_safe_position_and_ensembles_there():
    models = [HandModel(ABC, WRITER), verifier({"d": 0.9, "c": 0.1})]
    made = safe(models, "", 10, draft_length=5)
    # Position 1 starts inside the verifier's "ab": unsafe, though it would have written "c" after "a".
    # Position 2: .5 * .6 + .5 * .1 = .35 and the argmax is d: rejected; E(d) = .65.
    assert made.data == b"abd"
    assert (made.finish, made.ensembled_at) == ("end", [2])
    assert (made.rounds, made.drafted, made.unsafe) == (2, 5, 1)


def test_safe_half_rule_and_its_weights():
    writer = WRITER | {"ab": {"c": 0.9, "d": 0.1}}
    models = [HandModel(ABC, writer), verifier({"d": 0.8, "c": 0.2})]
    assert safe(models, "", 10).data == b"abc"  # .45 + .1 = .55 > .5, though the verifier wants d
    assert safe(models, "", 10).ensembled_at == []
    weighted = safe(models, "", 10, weights=[0.3, 0.7])  # .27 + .14 = .41; E(d) = .03 + .56
    assert (weighted.data, weighted.ensembled_at) == (b"abd", [2])
    exactly = [HandModel(ABC, WRITER | {"ab": {"c": 0.75, "d": 0.25}}), verifier({"d": 0.75, "c": 0.25})]
    assert safe(exactly, "", 10).rounds == 2  # .5 is not above .5


def test_safe_unanimity_needs_no_half():
    writer = WRITER | {"ab": {"c": 0.3, "d": 0.25, "a": 0.25, "b": 0.2}}
    models = [HandModel(ABC, writer), verifier({"c": 0.3, "d": 0.2, "a": 0.25, "b": 0.25})]
    assert safe(models, "", 10).ensembled_at == []
    assert safe(models, "", 10).rounds == 1


def test_safe_end_inside_a_draft():
    models = [HandModel(ABC, WRITER), verifier({"c": 1.0}, last={END: 0.4, "a": 0.6})]
    made = safe(models, "", 10)  # END: .45 + .2 > .5
    assert (made.data, made.finish, made.rounds) == (b"abc", "end", 1)
    table = {"a": {END: 1.0}} | {text: WRITER[text] for text in ("", "ab")} | {"abc": {END: 0.6, "a": 0.4}}
    models = [HandModel(ABC, WRITER | table | {"a": {"b": 1.0}, "abca": {END: 1.0}})]
    models.append(verifier({"c": 1.0}, last={END: 0.1, "a": 0.9}))
    models[1].table["abca"] = {END: 1.0}
    made = safe(models, "", 10)  # END: .3 + .05; E(a) = .65
    assert (made.data, made.ensembled_at, made.finish) == (b"abca", [3], "end")


def test_safe_limits_inside_a_draft():
    models = [HandModel(ABC, WRITER), verifier({"c": 1.0})]
    made = safe(models, "", 2)
    assert (made.data, made.finish, made.drafted) == (b"ab", "length", 2)
    assert safe(models, "", 10, stop=["b"]).data == b"a"
    models[0].context_length = 3
    made = safe(models, "", 10)
    assert (made.data, made.finish, made.drafted) == (b"abc", "length", 3)


def test_safe_with_gac_and_sharpening():
    models = [HandModel(ABC, WRITER), verifier({"d": 0.9, "c": 0.1})]
    # GaC leaves the primary alone where it is sure: c has .6
    assert safe(models, "", 10, base="gac", threshold=0.5).data == b"abc"
    assert safe(models, "", 10, base="gac", threshold=0.5).ensembled_at == []
    assert safe(models, "", 10, base="gac", threshold=1.0).data == b"abd"


def test_safe_test_by_gate():
    models = [HandModel(ABC, WRITER), verifier({"d": 0.9, "c": 0.1})]
    assert safe(models, "", 10, test=Gate("kl", 5.0)).data == b"abc"  # never open
    assert safe(models, "", 10, test=Gate("max_prob", 0.7)).ensembled_at == [2]  # .9, unsafe, .6


def test_unite_and_gac_write_texts():
    models = [HandModel(ABC, WRITER), verifier({"d": 0.9, "c": 0.1})]
    # step 1: "a" .9/.1 as first piece of "ab" too: E(a) = .5*(.9/1.9) + .5*.4, E(ab) = .5*(.9/1.9) + .5*.6: writes "a"
    # step 2: the other model has "c" after "a": E(b) = .4, E(c) = .6
    table = {"ac": {END: 1.0}}
    for model in models:
        model.table = model.table | table
    made = unite(models, "", 10)
    assert (made.data, made.finish, made.ensembled_at) == (b"ac", "end", [0, 1, 2])
    assert gac(models, "", 10).data == b"abc"  # the primary's .9, .8, .6, .9 are all sure
