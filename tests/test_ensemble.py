"""The decode loop: batches, ends, errors, streams, prompts."""

import dataclasses

import pytest
import torch
from support import tiny_models, tokenizers
from support.ensembles import MIXED, same, tiny

import ensemble_decode as ed
from ensemble_decode.decode.prompts import Rendering

METHODS = {
    "single": ed.Single(),
    "single of another model": ed.Single(1),
    "unite": ed.UniTE(),
    "unite, geometric, exclude": ed.UniTE(top_k=4, aggregate="geometric", oov="exclude"),
    "unite behind MaxProb": ed.UniTE(gate=ed.MaxProb(0.5)),
    "unite behind KL": ed.UniTE(gate=ed.KL(0.2)),
    "unite behind JS": ed.UniTE(gate=ed.JS(0.2)),
    "gac": ed.GaC(0.5),
    "safe": ed.SAFE(),
    "safe, auto": ed.SAFE(draft_length="auto", base=ed.GaC()),
}
SAMPLED = ed.Sampling(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, seed=11)


@pytest.fixture(scope="module")
def trio() -> ed.Ensemble:
    return tiny("gpt2", "llama2", "gemma")


@pytest.mark.parametrize("sampling", [ed.Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", METHODS)
def test_batch_equals_solo(trio, name, sampling):
    """Mixed lengths, rows that end early, refilled slots: every row as if it were alone; streams join to the same
    text."""
    options = {"method": METHODS[name], "max_new_tokens": 12, "sampling": sampling, "stop": ["ee", "\n\n"]}
    together = trio.generate(MIXED, batch_size=3, **options)
    for i, prompt in enumerate(MIXED):
        (alone,) = trio.generate(prompt, row_ids=[i], **options)
        assert same(together[i], alone), (name, prompt)
        deltas = list(trio.stream(prompt, row_ids=[i], **options))
        assert "".join(d.text for d in deltas) == alone.text
        assert [t for d in deltas for t in d.token_ids] == alone.token_ids
        assert deltas[-1].finish_reason == alone.finish_reason
        assert any(d.ensembled for d in deltas) == bool(alone.ensembled_at)


def test_rows_of_one_batch_end_at_different_times(trio):
    """Case 23: rows that accept different numbers of draft tokens, also after the first row has finished."""
    method = ed.SAFE(draft_length=4)
    rows = trio.generate(MIXED, method=method, max_new_tokens=20, stop=["e"])
    assert len({row.stats.rounds for row in rows}) > 1
    for prompt, row in zip(MIXED, rows, strict=True):
        assert same(row, trio.generate(prompt, method=method, max_new_tokens=20, stop=["e"])[0])


@pytest.mark.parametrize("method", [ed.UniTE(), ed.SpecFuse(segment_length=4)], ids=["unite", "specfuse"])
def test_a_long_row_after_a_large_batch_takes_memory_for_itself_alone(method):
    """All write what they write with fresh caches."""
    one, other = tiny.__wrapped__("gpt2", "llama2"), tiny("gpt2", "llama2")
    many, long = [*MIXED[:6]] * 6, "x9 " * 100
    options = {"method": method, "max_new_tokens": 6}
    first = one.generate(many, batch_size=36, **options)
    assert all(runner.cache.slots >= 36 and runner.cache.capacity == 256 for runner in one.runners)
    (alone,) = one.generate(long, **options)
    assert all(runner.cache.slots <= 4 and runner.cache.capacity == 512 for runner in one.runners)
    again = one.generate(many, batch_size=36, **options)
    assert all(runner.cache.slots >= 36 for runner in one.runners)
    assert same(alone, other.generate(long, **options)[0])
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


def test_slots_are_released(trio):
    for name, method in METHODS.items():
        trio.generate(MIXED, method=method, max_new_tokens=3, batch_size=2)
        stream = trio.stream(MIXED, method=method, max_new_tokens=9)
        next(stream)
        stream.close()
        assert all(runner.held == 0 for runner in trio.runners), name


@pytest.mark.parametrize("method", [ed.UniTE(), ed.GaC(1.0)], ids=["unite", "gac"])
@pytest.mark.parametrize("model", [0, 1])
def test_case_2_weights_of_one_model_alone_reproduce_it(method, model):
    weights = [0.0, 0.0]
    weights[model] = 2.0
    pair = tiny("gpt2", "llama2")
    weighted = ed.Ensemble(pair.runners, pair.tokenizers, pair.vocab, weights)
    for prompt in MIXED[:4]:
        # The primary reports its own ids; where only model 1 counts, its text is compared while the ids still agree.
        ours = weighted.generate(prompt, method=method, max_new_tokens=10)[0]
        alone = pair.generate(prompt, method=ed.Single(model), max_new_tokens=10)[0]
        if model == 0:
            assert same(dataclasses.replace(ours, ensembled_at=[]), alone)
        else:
            first = pair.vocab.models[0].encode(alone.data)[:1]
            assert ours.data.startswith(pair.vocab.models[0].decode(first)[:1])


def test_case_2_weights_are_normalised(trio):
    doubled = ed.Ensemble(trio.runners, trio.tokenizers, trio.vocab, [2, 2, 2])
    assert doubled.weights == trio.weights == [1 / 3] * 3


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ([1, -1, 1], "model 1"),
        ([0, 0, 0], "all are 0"),
        ([1, float("nan"), 1], "model 1"),
        ([1, 1], "weight: 2 values for 3 models"),
        (["1", 1, 1], "model 0"),
    ],
)
def test_case_2_bad_weights_are_refused_by_name(trio, weights, named):
    with pytest.raises(ed.InputError, match=named):
        ed.Ensemble(trio.runners, trio.tokenizers, trio.vocab, weights)


def test_case_16_each_model_has_its_own_prompt_ids(trio):
    """Its own tokenization, behind exactly one BOS where its tokenizer adds one."""
    text = "The quick brown fox"
    every = [trio.prompt_ids(m, text) for m in range(3)]
    assert len({len(ids) for ids in every}) > 1
    for m, (model, ids) in enumerate(zip(trio.vocab.models, every, strict=True)):
        bos = [] if model.name == "gpt2" else [model.bos_id]
        assert ids == [*bos, *trio.tokenizers[m](text, add_special_tokens=False)["input_ids"]]
        assert ids.count(model.bos_id) == len(bos)
    assert [row.request.prompt_ids for row in trio.rows(text)] == [every]


@pytest.mark.parametrize("method", [ed.UniTE(), ed.SAFE()], ids=["unite", "safe"])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_case_24_the_shortest_context_ends_the_row(trio, method, short, monkeypatch):
    """A row ends with ``length`` as soon as one model's ids fill its context, never past it, in look-ahead neither."""
    prompt = "def f(x):\n"
    free = trio.generate([prompt], method=method, max_new_tokens=40)[0]
    limit = len(trio.prompt_ids(short, prompt)) + 14
    monkeypatch.setattr(trio.runners[short], "context_length", limit)
    (row,) = trio.generate([prompt], method=method, max_new_tokens=40)
    assert row.finish_reason == "length"
    assert len(row.token_ids) < len(free.token_ids)
    model = trio.vocab.models[short]

    def held(ids: list[int]) -> int:
        """Positions that the model with the short context needs for the text of these ids of the primary."""
        data = trio.vocab.models[0].decode(ids)
        return limit - 14 + (len(ids) if short == 0 else len(model.encode(data)))

    assert held(row.token_ids) >= limit
    assert held(row.token_ids[:-1]) < limit
    if isinstance(method, ed.UniTE):
        assert free.data.startswith(row.data)


def test_a_prompt_that_fills_a_context_is_an_error_row(monkeypatch):
    short = tiny("gpt2", "llama2")
    monkeypatch.setattr(short.runners[0], "context_length", 16)
    bad, good = short.generate(["the cat " * 20, "a"], max_new_tokens=3)
    assert bad.finish_reason == "error"
    assert "model 0 (gpt2)" in bad.error
    assert "16" in bad.error
    assert same(good, short.generate("a", max_new_tokens=3)[0])


def _poisoned(names, bad_model, trigger):
    """A pair whose model ``bad_model`` gives NaN once its input holds the id ``trigger``."""
    models = [tiny_models.tiny_model(tiny_models.USUAL[n], n, seed=i) for i, n in enumerate(names)]
    ensemble = ed.Ensemble.from_models(models, [tokenizers.build(n) for n in names], names=list(names), cache_dir=None)
    with torch.no_grad():
        models[bad_model].get_input_embeddings().weight[trigger] = float("nan")
    return ensemble


@pytest.mark.parametrize("method", [ed.UniTE(), ed.GaC(1.0), ed.SAFE(), ed.UniTE(gate=ed.MaxProb(0.9))], ids=str)
@pytest.mark.parametrize("bad_model", [0, 1])
def test_case_27_nan_ends_its_row_alone(method, bad_model):
    names = ("gpt2", "llama2")
    good = tiny(*names)
    prompts = ["The cat", "qqq", "A dog"]
    ids = [set(good.prompt_ids(bad_model, prompt)) for prompt in prompts]
    trigger = min(ids[1] - ids[0] - ids[2])
    rows = _poisoned(names, bad_model, trigger).generate(prompts, method=method, max_new_tokens=6)
    expected = good.generate(prompts, method=method, max_new_tokens=6)
    assert rows[1].finish_reason == "error"
    assert f"model {bad_model} ({names[bad_model]})" in rows[1].error
    assert "NaN" in rows[1].error
    for i in (0, 2):
        if trigger not in good.vocab.models[bad_model].encode(expected[i].data):
            assert same(rows[i], expected[i])


def test_case_20_any_eos_id_ends_a_row():
    """EOS is the union of the tokenizer's and the generation config's ids; END comes last in ``token_ids``."""
    trio = tiny("llama3", "qwen2", "gemma")
    ends = {}
    for row in trio.generate([f"{i} the" for i in range(40)], method=ed.Single(), max_new_tokens=40):
        if row.ended:
            ends[row.token_ids[-1]] = row
    assert ends, "no text ended: the tiny models must write END now and then"
    assert set(ends) <= set(trio.vocab.models[0].eos_ids)
    for row in ends.values():
        assert trio.vocab.models[0].decode(row.token_ids[:-1]) == row.data


def test_case_19_stop_strings_across_tokens(trio):
    """A stop that starts and ends inside tokens cuts the text before it; one that never occurs changes nothing."""
    (free,) = trio.generate("The quick brown fox", max_new_tokens=24)
    for at in range(1, len(free.data) - 3, 7):
        stop = free.data[at : at + 3]
        (row,) = trio.generate("The quick brown fox", max_new_tokens=24, stop=stop)
        cut = free.data.find(stop)
        assert row.finish_reason == "stop"
        assert row.data == free.data[:cut]
        assert free.token_ids[: len(row.token_ids)] == row.token_ids
        assert trio.vocab.models[0].decode(row.token_ids) == row.data[: len(trio.vocab.models[0].decode(row.token_ids))]
    (same_row,) = trio.generate("The quick brown fox", max_new_tokens=24, stop=["\x00never\x00"])
    assert same(same_row, free)


def test_case_29_chat_ids_are_each_models_own_template(trio):
    messages = [{"role": "user", "content": "Hello there"}]
    for m, tokenizer in enumerate(trio.tokenizers):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        ours = trio.prompt_ids(m, messages)
        bos = trio.vocab.models[m].bos_id
        assert ours == expected or (bos is not None and [bos, *ours] == expected)
        assert trio.prompt_ids(m, messages, Rendering(chat="plain")) == trio.prompt_ids(m, "Hello there")
    one = trio.generate(messages, max_new_tokens=4)
    two = trio.generate([messages, messages], max_new_tokens=4)
    assert len(one) == 1
    assert same(one[0], two[1])


def test_case_30_a_refused_system_message(trio):
    """The error names the model; ``system='merge'`` puts the message in front of the first user message."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (refused,) = trio.generate([messages], max_new_tokens=3)
    assert refused.finish_reason == "error"
    assert "model" in refused.error
    assert "system='merge'" in refused.error
    (merged,) = trio.generate([messages], max_new_tokens=3, system="merge")
    assert merged.finish_reason != "error"
    culprit = next(m for m in range(3) if f"model {m} (" in refused.error)
    joined = [{"role": "user", "content": "Be brief.\n\nHi"}]
    assert trio.prompt_ids(culprit, messages, Rendering(system="merge")) == trio.prompt_ids(culprit, joined)


@pytest.mark.parametrize(
    "prompt", [3, b"bytes", [], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 3}], None]
)
def test_a_bad_prompt_fails_alone(trio, prompt):
    good, bad = trio.generate(["a", prompt], max_new_tokens=2)
    assert bad.finish_reason == "error"
    assert bad.error
    assert bad.token_ids == []
    assert same(good, trio.generate("a", max_new_tokens=2)[0])


def test_an_empty_prompt_needs_a_bos():
    with_bos, without = tiny("llama2", "gemma"), tiny("gpt2", "gemma")
    assert with_bos.generate("", max_new_tokens=2)[0].finish_reason != "error"
    (row,) = without.generate("", max_new_tokens=2)
    assert row.finish_reason == "error"
    assert "gpt2" in row.error
    assert "BOS" in row.error


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"chat": "none"}, "chat"),
        ({"system": "drop"}, "system"),
        ({"row_ids": [1, 2]}, "row_ids"),
        ({"stop": [""]}, "stop"),
        ({"method": ed.Single(7)}, "Single: model"),
    ],
)
def test_arguments_that_no_row_can_use_are_refused(trio, options, named):
    with pytest.raises(ed.InputError, match=named):
        trio.generate("a", **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ed.UniTE(top_k=0), "top_k"),
        (lambda: ed.UniTE(top_k=1025), "top_k must be an integer from 1 to 1024"),
        (lambda: ed.UniTE(oov="drop"), "oov"),
        (lambda: ed.UniTE(aggregate="median"), "aggregate"),
        (lambda: ed.UniTE(gate=0.5), "gate"),
        (lambda: ed.GaC(1.5), "threshold"),
        (lambda: ed.SAFE(base=ed.Single()), "base"),
        (lambda: ed.SAFE(draft_length=0), "draft_length"),
        (lambda: ed.SAFE(sharpen="soft"), "sharpen"),
        (lambda: ed.SAFE(test="mood"), "max_prob, kl, js"),
        (lambda: ed.Sharpen("soft"), "kind"),
        (lambda: ed.Sharpen(trigger="mood"), "trigger"),
        (lambda: ed.Sharpen(threshold=2), "threshold"),
        (lambda: ed.Sharpen(temperature=0), "temperature"),
        (lambda: ed.KL(-1), "KL"),
        (lambda: ed.MaxProb(2), "MaxProb"),
        (lambda: ed.Sampling(temperature=-1), "temperature"),
        (lambda: ed.Sampling(temperature=float("nan")), "temperature"),
        (lambda: ed.Sampling(top_p=0), "top_p"),
        (lambda: ed.Sampling(top_k=-1), "top_k"),
        (lambda: ed.Sampling(min_p=2), "min_p"),
        (lambda: ed.Sampling(seed=-1), "seed"),
    ],
)
def test_bad_settings_name_what_was_wrong(make, named):
    with pytest.raises(ed.InputError, match=named):
        make()


def test_trace_and_stats_of_unite(trio):
    (row,) = trio.generate("The quick", max_new_tokens=8, trace=True)
    assert len(row.trace) == len(row.token_ids)
    for i, step in enumerate(row.trace):
        assert step.chosen in step.candidates
        assert step.probs[step.candidates.index(step.chosen)] == pytest.approx(max(step.probs))
        assert sum(step.probs) == pytest.approx(1, abs=1e-5)
        assert step.ensembled == (i in row.ensembled_at)
        assert len(step.model_top) == 3
    text = b"".join(step.chosen for step in row.trace if not step.ended)
    assert text == row.data or len(text) > len(row.data)  # a first piece adds less than the candidate it stands for
    agreed = [sum(step.model_top[m] == step.chosen for step in row.trace) for m in range(3)]
    assert row.stats.agreed == agreed
    assert row.stats.rounds == len(row.token_ids)
    assert row.stats.ensembled == len(row.ensembled_at)


def test_forwarded_counts_every_token_once(trio):
    """UniTE forwards each model's prompt, and then only what changed in its ids."""
    (row,) = trio.generate("The quick", max_new_tokens=10)
    prompt = len(trio.prompt_ids(0, "The quick"))
    tokens = [t for t in row.token_ids if t not in trio.vocab.models[0].eos_ids]
    read = len(tokens) - (not row.ended)
    assert row.stats.forwarded[0] == prompt + read


def test_seconds_add_up(trio):
    import time

    began = time.perf_counter()
    rows = trio.generate(MIXED, max_new_tokens=10)
    wall = time.perf_counter() - began
    told = sum(sum(r.stats.forward_seconds) + r.stats.fusion_seconds + r.stats.host_seconds for r in rows)
    assert 0 < told <= wall


def test_sampling_depends_on_seed_and_row(trio):
    prompts = ["The"] * 4
    options = {"max_new_tokens": 10, "sampling": ed.Sampling(temperature=1.0, seed=5)}
    rows = trio.generate(prompts, **options)
    assert len({row.data for row in rows}) > 1
    again = trio.generate(prompts[:2], row_ids=[2, 3], **options)
    assert [r.data for r in again] == [r.data for r in rows[2:]]
    other = trio.generate(prompts, max_new_tokens=10, sampling=ed.Sampling(temperature=1.0, seed=6))
    assert [r.data for r in other] != [r.data for r in rows]


def test_one_model_alone_is_an_ensemble_too():
    one = tiny("gpt2")
    for method in (ed.UniTE(), ed.GaC(1.0), ed.SAFE(), ed.SAFE(draft_length="auto")):
        for prompt in MIXED[:4]:
            ours = one.generate(prompt, method=method, max_new_tokens=12)[0]
            alone = one.generate(prompt, method=ed.Single(), max_new_tokens=12)[0]
            assert (ours.token_ids, ours.data, ours.finish_reason) == (
                alone.token_ids,
                alone.data,
                alone.finish_reason,
            )


def test_case_13_padded_heads_share_a_vocabulary():
    """One tokenizer, heads padded differently: allowed, and the padding is never chosen."""
    models = [tiny_models.tiny_model("llama", "llama3", seed=i, padding=p) for i, p in enumerate((0, 40))]
    pair = ed.Ensemble.from_models(models, [tokenizers.build("llama3")] * 2, cache_dir=None)
    assert pair.vocab.exact_id[0].tolist() == pair.vocab.exact_id[1].tolist()
    limit = len(tokenizers.build("llama3"))
    for row in pair.generate(MIXED[:4], max_new_tokens=10):
        assert row.finish_reason != "error"
        assert all(token < limit for token in row.token_ids)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device beside the CPU")
@pytest.mark.parametrize("method", [ed.UniTE(), ed.SAFE(), ed.GaC()], ids=["unite", "safe", "gac"])
def test_case_25_models_on_different_devices_give_the_same_tokens(method):
    names = ("gpt2", "llama2")
    made = [tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=i) for i, name in enumerate(names)]
    made[1] = made[1].to("cuda")
    apart = ed.Ensemble.from_models(made, [tokenizers.build(name) for name in names], names=list(names), cache_dir=None)
    together = tiny(*names)
    for one, other in zip(
        apart.generate(MIXED, method=method, max_new_tokens=12),
        together.generate(MIXED, method=method, max_new_tokens=12),
        strict=True,
    ):
        assert same(one, other)


def test_stop_reason_says_what_ended_a_row(trio):
    """ "stop" for END and stop strings alike: the string as it was given, or the primary's EOS id."""
    (free,) = trio.generate("The quick brown fox", max_new_tokens=24)
    assert (free.finish_reason, free.stop_reason) == ("length", None)
    for stop in (free.text[4:7], free.text[4:7].encode()):
        (row,) = trio.generate("The quick brown fox", max_new_tokens=24, stop=["never \u2020", stop])
        assert (row.finish_reason, row.stop_reason, row.ended) == ("stop", stop, False)
        *_, last = trio.stream("The quick brown fox", max_new_tokens=24, stop=["never \u2020", stop])
        assert (last.finish_reason, last.stop_reason) == ("stop", stop)
    ended = [row for row in trio.generate([f"{i} the" for i in range(40)], method=ed.Single()) if row.ended]
    assert ended, "no text ended: the tiny models must write END now and then"
    assert all(row.stop_reason == row.token_ids[-1] in trio.vocab.models[0].eos_ids for row in ended)


def test_completions_name_their_prompt_and_raise_their_error(trio):
    """``index`` and ``prompt`` of every row, of failed ones too; ``errors='raise'`` raises what ``raise_for_error``
    would."""
    prompts = ["good", "x" * 5000, "fine"]
    rows = trio.generate(prompts, max_new_tokens=2)
    assert [(row.index, row.prompt) for row in rows] == list(enumerate(prompts))
    assert rows[0].raise_for_error() is rows[0]
    assert rows[1].error_kind == "too_long"
    with pytest.raises(ed.ContextError, match="prompt 1: "):
        rows[1].raise_for_error()
    with pytest.raises(ed.ContextError, match="prompt 1: "):
        trio.generate(prompts, max_new_tokens=2, errors="raise")
    with pytest.raises(ed.InputError, match="errors must be 'return' or 'raise', got 'ignore'"):
        trio.generate(prompts, errors="ignore")


def test_options_of_the_members_are_reachable_by_one_name_each():
    """One value for all models or one per model; memory in every spelling, shared out over the models' caches."""
    names = ("gpt2", "llama2")
    models = [tiny_models.tiny_model(tiny_models.USUAL[n], n, seed=i) for i, n in enumerate(names)]
    tokens = [tokenizers.build(n) for n in names]

    def made(**options):
        return ed.Ensemble.from_models(models, tokens, cache_dir=None, **options)

    free = made()
    assert [runner.memory for runner in free.runners] == [None, None]
    assert free.weights == made(weight=3).weights == made(weight=[2]).weights == [0.5, 0.5]
    assert made(weight=[1, 3]).weights == [0.25, 0.75]
    bound = made(memory=2**20, chunk_tokens=7, few_rows=False)
    one, two = bound.runners
    assert 0.75 * 2**20 < one.memory + two.memory <= 2**20
    assert one.memory / one.bytes_per_token == pytest.approx(two.memory / two.bytes_per_token, rel=0.02)
    assert [runner.memory for runner in made(memory="1MiB").runners] == [one.memory, two.memory]
    assert one.chunk_tokens == two.chunk_tokens == 7
    (row,) = bound.generate("the cat " * 6, max_new_tokens=5)
    assert same(row, free.generate("the cat " * 6, max_new_tokens=5)[0])
    with pytest.raises(ed.InputError, match="memory '1 mile'"):
        made(memory="1 mile")
    with pytest.raises(ed.ModelError, match="graphs=True needs a CUDA device"):
        made(graphs=True)
    with pytest.raises(ed.InputError, match="chunk_tokens must be at least 1"):
        made(chunk_tokens=0)
