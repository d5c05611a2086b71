"""`ensemble-decode models`."""


def test_models_list_and_remove_on_an_empty_cache(run):
    code, out, _ = run("models", "list")
    assert code == 0
    assert out.count("not downloaded") == 2
    assert "Gemma Terms of Use" in out
    assert "demo:smollm2: was not in the cache" in run("models", "remove", "smollm2")[2]
    assert run("models", "remove")[0] == 2
    assert run("models", "fetch", "other")[0] == 2
