"""`determine` on tiny models: what is run, kept, resumed, and recomputed from what was kept."""

import json

import numpy as np
import pytest
from support import tiny_models, tokenizers
from support.determine_figures import check, saved

import ensemble_decode as ed
from ensemble_decode.determination import running
from ensemble_decode.determination.tokens import common_words

pytest.importorskip("matplotlib")

TOKENIZERS = ("llama3", "gpt2", "gemma")
DATA = [
    {"id": f"q{i}", "prompt": prompt, "answer": "e", "grader": "regex"}
    for i, prompt in enumerate(["The printing press", "def f(x):", "Größe und", "The cat", "a b c", "12 + 7 ="])
]


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return [
        str(tiny_models.save_tiny(home / name, tiny_models.USUAL[name], name, seed=seed, noise=0.4))
        for seed, name in enumerate(TOKENIZERS)
    ]


@pytest.fixture(scope="module")
def study(specs, tmp_path_factory):
    """The report, its folder, and the arguments."""
    folder = tmp_path_factory.mktemp("study")
    arguments = {
        "data": DATA, "folder": folder, "max_new_tokens": 12, "words": 300, "batch_size": 4, "dtype": "float32",
        "device": "cpu", "resamples": 200,
    }  # fmt: skip
    return ed.determine(specs, **arguments), folder, arguments


def test_each_number_is_that_of_the_saved_responses(study, specs):
    report, folder, _ = study
    scores = [model.score.value for model in report.models]
    assert len(set(scores)) > 1
    assert all(pair.js["5"] > 0 for pair in report.pairs)
    vocabs = [ed.ModelVocab.build(tokenizers.build(name)) for name in TOKENIZERS]
    check(json.loads(report.to_json()), report.to_html(), folder, specs, vocabs, DATA, common_words(300))


def test_responses_are_each_models_own(study, specs):
    _, folder, _ = study
    for spec in specs:
        alone = ed.Ensemble.load([spec], dtype="float32", cache_dir=None)
        done = alone.generate([i["prompt"] for i in DATA], method=ed.Single(), max_new_tokens=12)
        own = saved(folder, "generations", spec)
        for item, completion in zip(DATA, done, strict=True):
            record = own[item["id"]]
            assert record["text"] == completion.text
            assert (record["token_ids"], record["finish_reason"]) == (completion.token_ids, completion.finish_reason)


def test_first_tokens_are_judged_on_the_first_models_text(study, specs):
    """JS along a model's own text, written out: both models read the same bytes."""
    _, folder, _ = study
    record = saved(folder, "first-tokens", specs[0], specs[1])["q0"]
    own = saved(folder, "generations", specs[0])["q0"]
    ensemble = ed.Ensemble.load(specs[:2], dtype="float32", cache_dir=None)
    vocab = ensemble.vocab
    for j in range(3):
        data = vocab.models[0].decode(own["token_ids"][:j])
        probs = []
        for m, runner in enumerate(ensemble.runners):
            ids = ensemble.prompt_ids(m, DATA[0]["prompt"])
            ids = ids + (own["token_ids"][:j] if m == 0 else vocab.models[m].encode(data))
            slot = runner.acquire()
            x = runner.extend([slot], [ids], "last").values[0].double().numpy()
            runner.release(slot)
            x = np.where(vocab.models[m].allowed, x, -np.inf)
            probs.append(np.exp(x - x.max()) / np.exp(x - x.max()).sum())
        union = sorted(
            {int(vocab.to_cid[m][i]) for m, p in enumerate(probs) for i in np.argsort(-p, kind="stable")[:10]}
        )
        rows = []
        for m, p in enumerate(probs):
            own_p = [
                p[list(vocab.models[m].eos_ids)].sum() if c == vocab.size - 1 else p[vocab.piece_id[m][c]]
                for c in union
            ]
            rows.append(np.array([*own_p, max(0.0, 1 - sum(own_p))]) / max(1.0, sum(own_p)))
        middle = (rows[0] + rows[1]) / 2
        js = sum(0.5 * (r[r > 0] * np.log(r[r > 0] / middle[r > 0])).sum() for r in rows)
        assert record["js"][j] == pytest.approx(js, abs=1e-4)
        mean = sum(r[:-1] / r[:-1].sum() for r in rows) / 2
        chosen = union.index(int(vocab.to_cid[0][own["token_ids"][j]]))
        assert abs(mean[chosen] - 0.5) > 1e-4
        assert record["stands"][j] == (mean[chosen] > 0.5 or record["same_top"][j])
        assert record["same_top"][j] == (
            vocab.models[0].token_bytes[probs[0].argmax()] == vocab.models[1].token_bytes[probs[1].argmax()]
        )


def test_nothing_is_run_twice(study, specs, monkeypatch):
    report, _, arguments = study

    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(running.Ensemble, "load", load)
    assert ed.determine(specs, **arguments).to_json() == report.to_json()
    again = ed.determine(specs, **{**arguments, "data": DATA[:3]})  # other data, the same prompts
    assert again.models[0].characters.most <= report.models[0].characters.most


def test_a_stopped_run_resumes_with_what_is_missing(specs, tmp_path, monkeypatch):
    arguments = {
        "data": DATA,
        "folder": tmp_path,
        "max_new_tokens": 8,
        "dtype": "float32",
        "words": 50,
        "resamples": 50,
    }
    stopped = []

    def progress(what, done, total):
        if "responses" in what and done == 2 and not stopped:
            stopped.append(what)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ed.determine(specs[:2], batch_size=1, progress=progress, **arguments)
    (file,) = (tmp_path / "generations").glob("*.jsonl")
    assert len(file.read_text().splitlines()) == 3  # its header and two responses
    with file.open("a") as torn:
        torn.write('{"key": "cut off')
    ran = []
    real = running._generate
    monkeypatch.setattr(running, "_generate", lambda e, items, s: ran.append(len(items)) or real(e, items, s))
    resumed = ed.determine(specs[:2], **arguments)
    assert ran == [4, 6]
    assert resumed.to_dict() == ed.determine(specs[:2], **{**arguments, "folder": tmp_path / "fresh"}).to_dict()


def test_saved_generations_are_used_and_the_rest_is_run(study, specs, tmp_path):
    _, _, arguments = study
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps({"id": i["id"], "text": "eee"}) + "\n" for i in DATA[:4]))
    report = ed.determine(specs[:1], generations={specs[0]: given}, **arguments)
    assert [r.text for r in report.responses[0][:4]] == ["eee"] * 4
    assert [r.text for r in report.responses[0][4:]] == [r.text for r in study[0].responses[0][4:]]


def test_a_prompt_that_fails_counts_as_wrong_and_is_counted(specs, tmp_path):
    data = [DATA[0], {"id": "long", "prompt": "word " * 4000, "answer": "e", "grader": "regex"}]
    report = ed.determine(specs[:2], data, folder=tmp_path, max_new_tokens=4, words=20, dtype="float32", resamples=20)
    assert report.models[0].failed == 1
    assert report.responses[0][1].score == 0
    assert report.responses[0][1].error


def test_the_command_line(run, study, specs, tmp_path):
    report, folder, _ = study
    data = tmp_path / "dev.jsonl"
    data.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in DATA), encoding="utf-8")
    options = [
        "--data",
        str(data),
        "-n",
        "12",
        "--words",
        "300",
        "--dtype",
        "float32",
        "--resamples",
        "200",
        "-o",
        str(folder),
    ]
    models = [part for spec in specs for part in ("-m", spec)]

    def call(*arguments):
        return run("determine", *arguments, columns=240)

    code, out, err = call(*models, *options)
    assert code == 0, err
    assert f"{report.models[0].score.value:.1%}" in out
    assert "common words cut alike" in out
    assert f"{report.pairs[0].js['5']:.3f}" in out
    page = (folder / "report.html").read_text()
    assert page.count("<figure>") == 5
    code, out, err = call(*models, *options, "--json")
    whole = json.loads(out)
    assert json.loads((folder / "report.json").read_text()) == whole
    whole["settings"]["data"]["source"] = "given in memory"
    assert whole == json.loads(report.to_json())
    for wrong, word in (
        ([*options], "no model given"),
        (["--demo", *models], "its own models"),
        (["--demo", *options], "its own models"),
        ([*models, "--generations", "abc", *options], "MODEL=FILE"),
        ([*models, "--rules", "max_gap=-1", *options], "max_gap"),
        ([*models, "--cost-device", "abacus", *options], "abacus"),
    ):
        code, _, err = call(*wrong)
        assert (code, word in err) == (2, True), err
