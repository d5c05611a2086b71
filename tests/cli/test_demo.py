"""`ensemble-decode demo`."""

import pytest


@pytest.mark.real
def test_demo_streams_and_ends_with_the_table(run, monkeypatch):
    monkeypatch.delenv("ENSEMBLE_DECODE_HOME")  # the demo models lie in the user's cache
    code, out, err = run("demo", "-n", "8", "Water boils at")
    assert code == 0, err
    assert out.count("Water boils at") == 3
    assert "�" not in out
    table = out[out.index("tokens/s") :]
    for line in ("UniTE, both", "demo:smollm2 alone", "demo:gemma3 alone"):
        assert line in table
    assert "100%" in table.splitlines()[-3]  # a model that writes alone always has its own choice
