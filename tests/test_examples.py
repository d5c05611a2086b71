"""The examples run as they stand and do what they say."""

import ast
import math
import re
import runpy
from pathlib import Path

import pytest

import ensemble_decode as ed

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_plain_logits_are_fused_without_a_decoder(capsys):
    runpy.run_path(str(EXAMPLES / "fuse_plain_logits.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"row {row}" for row in range(4)]
    found = [
        re.fullmatch(r"row \d: +(\S+) +primary id +(\d+)  E max (\S+)  JS (\S+) nats  (.+)", line) for line in lines
    ]
    for shown, primary, most, js, how in (match.groups() for match in found):
        assert shown == "END" or ast.literal_eval(shown)
        assert 0 <= int(primary) < 256 + 3
        assert 0 < float(most) <= 1
        assert 0 <= float(js) <= math.log(2) + 1e-3
        assert how == ("fused" if float(js) > 0.05 else "the primary alone")


@pytest.mark.real
@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_hand_written_loop_writes_what_the_decoder_writes():
    prompt = "The three primary colours are"
    text = runpy.run_path(str(EXAMPLES / "two_model_loop.py"))["main"](prompt, 16)
    ensemble = ed.Ensemble.load(["demo:smollm2", "demo:gemma3"])
    (row,) = ensemble.generate(prompt, method=ed.UniTE(top_k=10), max_new_tokens=16)
    assert text == row.text
    assert len(row.token_ids) == 16
