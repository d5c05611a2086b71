"""The demo models: golden results of the oracle against the decoder, and a sample of them recomputed by the oracle."""

import pytest
from support.equality import TIE
from support.goldens import check, golden
from support.oracle import sweep
from support.oracle.model import Model, align

KEPT = ("unite",)  # parts of the sweep whose results are committed


@pytest.mark.parametrize("part", KEPT)
def test_goldens_are_whole_and_hold_no_ties(part):
    _, lines = golden(part)
    assert {sweep.key(line) for line in lines} == {sweep.key(spec) for spec in sweep.runs_of(part)}
    ties = [sweep.key(line) for line in lines if line["smallest_margin"] < TIE]
    assert not ties, f"{len(ties)} runs hold a decision that float32 may take either way: {ties}"


def test_unite_goldens_cover_both_orders_and_many_prompts():
    _, lines = golden("unite")
    for order in ([0, 1], [1, 0]):
        runs = [line for line in lines if line["order"] == order]
        assert len({line["prompt"] for line in runs}) >= 12
        assert all(len(line["ids"]) == 40 or line["finish"] == "end" for line in runs)


def test_golden_texts_are_clean():
    """Scripts that join decoded token strings print U+FFFD over and over on these prompts; no text here holds one."""
    _, lines = golden("unite")
    assert len([line for line in lines if line["prompt"] == "word_problem"]) == 2
    for line in lines:
        assert "\ufffd" not in line["data"], sweep.key(line)


@pytest.fixture(scope="module")
def demo():
    loaded = sweep.load_demo()
    made_from = {"models": dict(zip(sweep.MODELS, (sweep.fingerprint(*pair) for pair in loaded), strict=True))}
    for part in KEPT:
        assert golden(part)[0] == made_from, f"{part}: made from other weights or tokenizers; run `make oracle`"
    return loaded


@pytest.mark.real
def test_decoder_equals_all_unite_goldens(demo):
    assert check(demo, golden("unite")[1]) == 0


@pytest.mark.real
def test_oracle_still_makes_its_goldens(demo):
    """The first tokens of two runs of UniTE, every forward pass made anew."""
    models = align([Model(*pair) for pair in demo])
    _, lines = golden("unite")
    for line in (lines[4], lines[-1]):
        short = sweep.run(models, line | {"tokens": 6})
        assert short.ids == line["ids"][:6]
        assert short.margins == pytest.approx(line["margins"][:6], rel=0.1)
