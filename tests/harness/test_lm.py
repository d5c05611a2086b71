"""lm-evaluation-harness: its own `hf` model beside `Single`, ensembles beside the chain written out, its command
line."""

import math
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from support import tiny_models
from support.harness_samples import likelihoods, lines

import ensemble_decode as ed

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from ensemble_decode.errors import InputError
from ensemble_decode.harness import EnsembleLM

PAIRS = [
    ("The quick brown fox", " jumps over the lazy dog"),
    ("The printing press was", " invented"),
    ("The printing press was ", "invented in Mainz."),  # the harness moves the space
    ("", "Printing is an art"),
    ("Größe und", " Länge"),
    ("def f(x):\n", "    return x"),
    ("a " * 60, "b"),
]
SPANNING = [("The printing pr", "ess"), ("inter", "nation"), ("Gr", "öße"), ("12", "34")]
SPECIAL = "<|end_of_text|> and <eos> and </s> are tokens of some."
TEXTS = ["The quick brown fox jumps over the lazy dog.", "Größe, 你好 and 😀.", "a b c " * 60]


def instances(kind, many):
    return [Instance(kind, {}, arguments, i) for i, arguments in enumerate(many)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    for name, seed in (("llama3", 1), ("gpt2", 2), ("gemma", 3), ("llama2", 4)):
        tiny_models.save_tiny(home / name, tiny_models.USUAL[name], name, seed=seed, max_position_embeddings=128)
    return home


@pytest.fixture(scope="module")
def together(folders):
    return ed.Ensemble.load([str(folders / n) for n in ("llama3", "gpt2", "gemma")], dtype="float32", cache_dir=None)


@pytest.mark.parametrize("name", ["llama3", "gpt2", "gemma", "llama2"])
def test_single_gives_the_numbers_of_the_harness_own_model(folders, name):
    from lm_eval.models.huggingface import HFLM

    hf = HFLM(pretrained=str(folders / name), dtype="float32", device="cpu", batch_size=1, max_length=128)
    kinds = {
        "loglikelihood": [p for p in [*PAIRS, *SPANNING] if not p[0] or hf._encode_pair(*p)[1]],
        "loglikelihood_rolling": [(text,) for text in TEXTS],
    }
    assert len(kinds["loglikelihood"]) >= len(PAIRS)
    for kind, many in kinds.items():
        expected = getattr(hf, kind)(instances(kind, many), disable_tqdm=True)
        for batch in (1, 4):
            own = EnsembleLM(str(folders / name), "single", dtype="float32", batch_size=batch)
            got = getattr(own, kind)(instances(kind, many), disable_tqdm=True)
            # the harness sums in float32, which a long text's total of thousands of nats shows in its last digits
            np.testing.assert_allclose(np.array(got, float), np.array(expected, float), rtol=2e-7, atol=1e-4)


def chain(ensemble, method, lm, context, continuation):
    """The chain of E, with no cache: every model reads its whole text again at each of the primary's tokens."""
    before, after = lm._encode_pair(context, continuation)
    scored = lm._scored((context, continuation), before, after)
    vocab, total = ensemble.vocab, 0.0
    for j, token in enumerate(scored.targets):
        data = scored.lead + vocab.models[0].decode(scored.targets[:j])
        logits = []
        for m, runner in enumerate(ensemble.runners):
            ids = scored.contexts[m] + (scored.targets[:j] if m == 0 else vocab.models[m].encode(data))
            slot = runner.acquire()
            values = runner.extend([slot], [ids], "last").values[0].double().numpy()
            runner.release(slot)
            logits.append(np.where(vocab.models[m].allowed, values, -np.inf))
        probs = [np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in logits]
        asked = int(vocab.to_cid[0][token])
        if isinstance(method, ed.GaC):
            e = {
                asked: sum(
                    w * p[vocab.exact_id[m][asked]] * (vocab.exact_id[m][asked] >= 0)
                    for m, (w, p) in enumerate(zip(ensemble.weights, probs, strict=True))
                )
            }
            opened = probs[0].max() < method.threshold
        else:
            tops = [np.argsort(-x, kind="stable")[: method.top_k] for x in logits]
            union = sorted({int(vocab.to_cid[m][i]) for m, top in enumerate(tops) for i in top})
            joined = sorted({*union, asked})
            e, opened = dict.fromkeys(joined, 0.0), True
            for m, w in enumerate(ensemble.weights):
                scores = {
                    c: np.log(np.exp(logits[m][list(vocab.models[m].eos_ids)]).sum())
                    if c == vocab.size - 1
                    else logits[m][vocab.piece_id[m][c]]
                    for c in joined
                }
                norm = sum(math.exp(s) for s in scores.values())
                for c in joined:
                    e[c] += w * math.exp(scores[c]) / norm
        total += math.log(e[asked] if opened else probs[0][token])
    return total


@pytest.mark.parametrize("method", [ed.UniTE(top_k=5), ed.GaC(threshold=1.0), ed.GaC(threshold=0.5)], ids=str)
def test_an_ensembles_chain_is_that_written_out(together, method):
    lm = EnsembleLM(ensemble=together, method="unite", batch_size=4)
    lm.method = method
    pairs = [p for p in [*PAIRS[:6], *SPANNING] if p[0]]
    got = lm.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    for pair, (value, _) in zip(pairs, got, strict=True):
        assert value == pytest.approx(chain(together, method, lm, *pair), abs=2e-4), pair


def test_safe_takes_the_chain_of_its_base_whatever_the_batch(together):
    requests = instances("loglikelihood", [*PAIRS, *SPANNING, ("The", SPECIAL)])
    wanted = EnsembleLM(ensemble=together, method="unite(top_k=7)").loglikelihood(requests, disable_tqdm=True)
    for batch in (1, 4):
        lm = EnsembleLM(ensemble=together, method="safe(base=unite(top_k=7))", batch_size=batch)
        got = lm.loglikelihood(requests, disable_tqdm=True)
        assert [g for _, g in got] == [g for _, g in wanted]
        np.testing.assert_allclose([v for v, _ in got], [v for v, _ in wanted], atol=1e-4)


@pytest.mark.parametrize("order", [("llama3", "gpt2"), ("gpt2", "gemma"), ("gemma", "llama2"), ("llama2", "llama3")])
@pytest.mark.parametrize("join", ["harness", "bytes"])
def test_case_31_finite_where_a_token_spans_the_join(folders, order, join):
    lm = EnsembleLM(models=[str(folders / n) for n in order], method="unite", dtype="float32", join=join)
    spanning = [pair for pair in SPANNING if lm.tok_encode("".join(pair))[: len(b := lm.tok_encode(pair[0]))] != b]
    got = lm.loglikelihood(instances("loglikelihood", [*SPANNING, *PAIRS]), disable_tqdm=True)
    assert all(math.isfinite(value) and value < 0 for value, _ in got)
    for before, after in spanning if join == "bytes" else ():
        context, targets = lm._encode_pair(before, after)
        assert (context, lm._vocab.decode(targets)) == (lm.tok_encode(before), after.encode())


def test_the_join_is_spanned_somewhere(folders):
    """Else the test above would show nothing."""
    lm = EnsembleLM(models=str(folders / "llama3"), method="single")
    assert any(lm.tok_encode("".join(p))[: len(b := lm.tok_encode(p[0]))] != b for p in SPANNING)


def test_twins_and_weights_give_the_single_models_numbers(folders):
    """Over whole vocabularies E of a model with itself is that model, over the tokens that a model may write."""
    one = str(folders / "llama3")
    single = ed.Ensemble.load([one], dtype="float32", cache_dir=None)
    requests = instances("loglikelihood", PAIRS)
    alone = EnsembleLM(ensemble=single, method="gac(threshold=1.0)", join="bytes").loglikelihood(
        requests, disable_tqdm=True
    )
    twins = EnsembleLM(models=f"{one};{one}", method="gac(threshold=1.0)", dtype="float32", join="bytes")
    weighted = EnsembleLM(
        models=[one, str(folders / "gpt2")], method="gac(threshold=1.0)", weight="1;0", dtype="float32", join="bytes"
    )
    for lm in (twins, weighted):
        got = lm.loglikelihood(requests, disable_tqdm=True)
        np.testing.assert_allclose([v for v, _ in got], [v for v, _ in alone], atol=1e-4)


def test_greedy_says_whether_decoding_writes_it(together):
    lm = EnsembleLM(ensemble=together, method="unite", batch_size=3)
    prompts = ["The printing press", "def f(x):", "Größe"]
    written = together.generate(prompts, method=ed.UniTE(), max_new_tokens=4)
    asked = [(p, done.text) for p, done in zip(prompts, written, strict=True)]
    before = [
        lm._scored(pair, lm.tok_encode(pair[0]), done.token_ids) for pair, done in zip(asked, written, strict=True)
    ]
    from ensemble_decode.harness.likelihood import score

    assert [same for _, same in score(together, lm.method, before)] == [True] * 3
    other = [type(one)(one.contexts, [*one.targets[:-1], (one.targets[-1] + 1) % 50 + 10], one.lead) for one in before]
    assert not any(same for _, same in score(together, lm.method, other))


def test_rolling_windows_of_an_ensemble_are_finite_and_independent_of_the_batch(folders):
    totals = []
    for batch in (1, 4):
        lm = EnsembleLM([str(folders / "llama3"), str(folders / "gemma")], "unite", dtype="float32", batch_size=batch)
        totals.append(
            lm.loglikelihood_rolling(
                instances("loglikelihood_rolling", [(t,) for t in [*TEXTS, SPECIAL]]), disable_tqdm=True
            )
        )
    assert all(math.isfinite(value) and value < 0 for value in totals[0])
    np.testing.assert_allclose(totals[0], totals[1], atol=1e-3)
    assert len(lm.tok_encode(TEXTS[2])) > lm.max_length  # several windows


def test_stops_and_lengths_are_each_requests_own(together):
    kwargs = [
        {"until": ["e"], "max_gen_toks": 24},
        {"until": " ", "max_gen_toks": 24},
        {"until": [], "max_gen_toks": 3, "do_sample": False, "temperature": 0.0},
        {"until": ["\n\n"], "max_gen_toks": 16},
    ]
    prompts = ["The printing press", "def f(x):", "Größe", "The cat"]
    asked = instances("generate_until", list(zip(prompts, kwargs, strict=True)))
    for batch in (1, 4):
        got = EnsembleLM(ensemble=together, method="safe", batch_size=batch).generate_until(asked, disable_tqdm=True)
        for prompt, how, text in zip(prompts, kwargs, got, strict=True):
            done = together.generate(prompt, method=ed.SAFE(), max_new_tokens=how["max_gen_toks"], stop=how["until"])[0]
            assert text == done.text
    assert "e" not in got[0]
    assert " " not in got[1]


def test_requests_none_of_which_can_be_run_are_an_error(together):
    lm = EnsembleLM(ensemble=together, method="unite")
    with pytest.raises(InputError, match="none of 2 requests"):
        lm.generate_until(instances("generate_until", [("word " * 400, {})] * 2), disable_tqdm=True)
    with pytest.raises(InputError, match="max_new_tokens"):
        lm.generate_until(instances("generate_until", [("x", {"max_gen_toks": 0})]), disable_tqdm=True)


def test_what_cannot_be_is_refused_by_name(folders, together):
    one = str(folders / "gpt2")
    for arguments, word in (
        ({"models": one, "drafts": 3}, "drafts"),
        ({"models": one, "join": "tokens"}, "join"),
        ({}, "models"),
        ({"models": one, "method": "unite(threshold=0.5)"}, "threshold"),
        ({"models": one, "draft_length": 3}, r"method=safe\(draft_length=5\)"),
        ({"pretrained": one}, "models="),
        ({"models": one, "weight": "heavy"}, "weight"),
        ({"ensemble": together, "dtype": "float32"}, "loaded already"),
        ({"models": one, "batch_size": "many"}, "batch_size"),
    ):
        with pytest.raises(InputError, match=word):
            EnsembleLM(**arguments)
    lm = EnsembleLM(ensemble=together, method="specfuse")
    with pytest.raises(InputError, match="SpecFuse"):
        lm.loglikelihood(instances("loglikelihood", PAIRS[:1]), disable_tqdm=True)
    with pytest.raises(InputError, match="geometric"):
        EnsembleLM(ensemble=together, method="unite(aggregate=geometric, oov=exclude)").loglikelihood(
            instances("loglikelihood", PAIRS[:1]), disable_tqdm=True
        )
    with pytest.raises(InputError, match="beams"):
        lm.generate_until(instances("generate_until", [("x", {"beams": 2})]), disable_tqdm=True)


def test_the_package_offers_its_model_as_a_plugin():
    """Releases of the harness that read entry points find it by name; the registry takes entry points as they are."""
    from lm_eval.api.model import LM
    from lm_eval.api.registry import Registry

    found = {one.name: one for one in metadata.entry_points(group="lm_eval.models")}
    registry = Registry("model", base_cls=LM)
    for name in ("ensemble_decode", "ensemble-decode"):
        registry.register(name, target=found[name])
        assert registry.get(name) is EnsembleLM
        assert found[name].value == f"{EnsembleLM.__module__}:{EnsembleLM.__name__}"


def test_the_harness_keeps_its_own_models():
    """In a process of its own: here other tests have imported them."""
    asked = "import ensemble_decode.harness, lm_eval.api.registry as r; print(*r.model_registry.keys())"
    names = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    assert {"ensemble_decode", "hf", "vllm", "dummy"} <= set(names)


# -- the harness's own command line
# --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_its_command_line_runs_local_tasks_and_determine_reads_what_it_leaves(lm_eval, folders, tmp_path):
    pick = ("--tasks", "local_pick,local_write,local_read", "--device", "cpu")
    args = f"pretrained={folders / 'gpt2'},dtype=float32"
    hf, hf_samples = lm_eval("--model", "hf", "--model_args", args, *pick, "--batch_size", "1")
    for batch in ("1", "4"):
        own, samples = lm_eval(
            "--model", "ensemble_decode", "--model_args",
            f"models={folders / 'gpt2'},method=single,dtype=float32", *pick,
            "--batch_size", batch,
        )  # fmt: skip
        assert own["local_pick"]["acc,none"] == hf["local_pick"]["acc,none"]
        assert own["local_read"]["byte_perplexity,none"] == pytest.approx(
            hf["local_read"]["byte_perplexity,none"], abs=1e-4
        )
        assert [likelihoods(line) for line in lines(samples["local_pick"])] == [
            pytest.approx(likelihoods(line), abs=1e-4) for line in lines(hf_samples["local_pick"])
        ]
    both, samples_both = lm_eval(
        "--model", "ensemble_decode", "--model_args",
        f"models={folders / 'gpt2'};{folders / 'llama3'},method=safe(draft_length=3),dtype=float32",
        *pick, "--batch_size", "4",
    )  # fmt: skip
    assert 0 <= both["local_pick"]["acc,none"] <= 1
    assert all("e" not in line["resps"][0][0] for line in lines(samples_both["local_write"]))
    report = ed.determine(
        ["single", "both"],
        harness={"single": samples["local_pick"], "both": samples_both["local_pick"]},
        texts_only=True,
        folder=tmp_path / "determine",
    )
    assert [m.score.value for m in report.models] == pytest.approx(
        [own["local_pick"]["acc,none"], both["local_pick"]["acc,none"]]
    )
    written = ed.determine(["a"], harness={"a": samples_both["local_write"]}, texts_only=True, folder=tmp_path / "d2")
    assert [one.text for one in written.responses[0]] == [
        line["resps"][0][0] for line in lines(samples_both["local_write"])
    ]


def test_simple_evaluate_finds_the_model(folders, tasks, monkeypatch, tmp_path):
    import lm_eval as harness
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    done = harness.simple_evaluate(
        model="ensemble_decode",
        model_args={"models": [str(folders / "gpt2"), str(folders / "gemma")], "method": "unite", "dtype": "float32"},
        tasks=["local_pick"],
        task_manager=TaskManager(include_path=str(tasks)),
        batch_size=2,
        bootstrap_iters=0,
    )
    assert 0 <= done["results"]["local_pick"]["acc,none"] <= 1


def test_the_command_of_the_docs_runs_on_a_machine_without_cuda(lm_eval, folders):
    """Without --device the harness passes cuda:0; options of the method stand in its parentheses."""
    args = f"models={folders / 'gpt2'};{folders / 'gemma'},method=safe(draft_length=3,sharpen=geometric),dtype=float32"
    results, samples = lm_eval(
        "--model", "ensemble_decode", "--model_args", args, "--tasks", "local_write", "--batch_size", "2"
    )
    assert "local_write" in results
    texts = [line["resps"][0][0] for line in lines(samples["local_write"])]
    both = ed.Ensemble.load([str(folders / n) for n in ("gpt2", "gemma")], dtype="float32", cache_dir=None)
    method = ed.SAFE(draft_length=3, sharpen=ed.Sharpen("geometric"))
    prompts = [line["doc"]["question"] for line in lines(samples["local_write"])]
    assert texts == [one.text for one in both.generate(prompts, method=method, max_new_tokens=12, stop=["e"])]


def test_simple_evaluate_takes_model_args_as_one_text(folders, tasks, monkeypatch, tmp_path):
    import lm_eval as harness
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    done = harness.simple_evaluate(
        model="ensemble_decode",
        model_args=f"models={folders / 'gpt2'};{folders / 'gemma'},"
        "method=safe(draft_length=3,sharpen=none),batch_size=2",
        tasks=["local_pick"],
        task_manager=TaskManager(include_path=str(tasks)),
        device="cuda:0",
        bootstrap_iters=0,
    )
    assert 0 <= done["results"]["local_pick"]["acc,none"] <= 1
