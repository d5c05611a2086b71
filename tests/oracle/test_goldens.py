"""The demo models: golden results of the oracle against the decoder, and a sample of them recomputed by the oracle."""

import pytest
from support.equality import TIE
from support.goldens import check, data_of, golden, settings_of
from support.oracle import sweep
from support.oracle.decode import recall
from support.prompts import TEXTS

PRESENT = tuple(part for part in sweep.PARTS if (sweep.GOLDEN / f"{part}.jsonl").exists())


def test_the_parts_that_issues_are_judged_by_are_present():
    assert {"unite", "safe"} <= set(PRESENT)


@pytest.mark.parametrize("part", PRESENT)
def test_goldens_are_whole(part):
    """Every run of the part is there, once; a decision within float32's rounding is a rare thing."""
    _, lines = golden(part)
    keys = [sweep.key(line) for line in lines]
    assert sorted(keys) == sorted(sweep.key(spec) for spec in sweep.runs_of(part))
    ties = [sweep.key(line) for line in lines if line["smallest_margin"] < TIE]
    assert len(ties) <= 0.1 * len(lines), ties


def test_no_unite_golden_holds_a_tie():
    assert min(line["smallest_margin"] for line in golden("unite")[1]) > TIE


def test_goldens_cover_both_orders_and_many_prompts():
    for part in ("unite", "safe"):
        for order in ([0, 1], [1, 0]):
            runs = [line for line in golden(part)[1] if line["order"] == order]
            assert len({line["prompt"] for line in runs}) >= 12
            assert all(len(line["ids"]) == 40 or line["finish"] == "end" for line in runs)
    settings = [line["settings"] for line in golden("safe")[1]]
    assert {s["draft_length"] for s in settings} == {1, 3, 5, 8}
    assert {s["sharpen"] for s in settings} == {"none", "prefix", "geometric", "temperature"}
    assert {s["base"] for s in settings} == {"unite", "gac"}


@pytest.mark.parametrize("part", PRESENT)
def test_golden_texts_are_clean(part):
    """Scripts that join decoded token strings print U+FFFD over and over on these prompts; no text here holds one."""
    _, lines = golden(part)
    assert [line for line in lines if line["prompt"] == "word_problem"]
    for line in lines:
        assert "\ufffd" not in line["data"], sweep.key(line)


@pytest.mark.parametrize("part", PRESENT)
def test_no_golden_holds_a_run_of_spaces_that_gemma_cuts_otherwise_since(part):
    """Runs of 32 and more: what `sweep.SAME_ON_GOLDENS` rests on."""
    for line in golden(part)[1]:
        assert " " * 32 not in TEXTS[line["prompt"]] + line["data"]


@pytest.fixture(scope="module")
def demo(demo_models):
    for part in PRESENT:
        assert golden(part)[0] == sweep.header_of(demo_models), (
            f"{part}: made from other weights or tokenizers; run `make oracle`"
        )
    return demo_models


@pytest.mark.real
def test_decoder_equals_all_unite_goldens(demo):
    assert check(demo, golden("unite")[1]) == 0


@pytest.mark.real
@pytest.mark.parametrize("part", [part for part in PRESENT if part != "unite"])
def test_decoder_equals_a_sample_of_the_other_goldens(part, demo):
    """Two settings, spread over the part and both orders, two prompts each. `sweep.py --check` runs everything."""
    _, lines = golden(part)
    settings = sorted({settings_of(line) for line in lines})
    chosen = {settings[7 * len(settings) // 16], settings[-len(settings) // 4]}
    prompts = list(dict.fromkeys(line["prompt"] for line in lines))[2::5][:2]
    sample = [line for line in lines if settings_of(line) in chosen and line["prompt"] in prompts]
    assert len(sample) == 4
    assert check(demo, sample) == sum(line["smallest_margin"] < TIE for line in sample) == 0


@pytest.mark.real
@pytest.mark.usefixtures("demo")
def test_oracle_still_makes_its_goldens(demo_oracle):
    """The first tokens of two runs of UniTE, every forward pass made anew, and one whole run of SAFE."""
    _, lines = golden("unite")
    for line in (lines[4], lines[-1]):
        short = sweep.run(demo_oracle, line | {"tokens": 6})
        assert short.ids == line["ids"][:6]
        assert short.margins == pytest.approx(line["margins"][:6], rel=0.1)
    _, lines = golden("safe")
    line = next(x for x in lines if 3 < len(x["ensembled_at"]) < 10 and x["settings"]["draft_length"] == 3)
    recall([demo_oracle[i] for i in line["order"]], TEXTS[line["prompt"]], line["ids"], data_of(line))
    again = sweep.run(demo_oracle, line)
    assert (again.ids, again.finish, again.ensembled_at) == (line["ids"], line["finish"], line["ensembled_at"])
    assert again.margin == pytest.approx(line["smallest_margin"], rel=0.2)
