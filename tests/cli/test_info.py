"""`ensemble-decode info`."""

import json

import ensemble_decode as ed


def test_info_says_what_runs_and_why(run):
    code, out, _ = run("info", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["versions"]["ensemble-decode"] == ed.__version__
    assert {row["operator"] for row in facts["operators"]} == set(ed.kernels.status())
    assert {row["runs"] for row in facts["operators"]} <= {"reference", "triton", "native"}
    assert all(row["why"] for row in facts["attention"])
    code, out, _ = run("info")
    assert code == 0
    assert "topk_stats" in out
    assert facts["machine"]["torch CPU instruction set"] in out
