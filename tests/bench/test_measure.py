"""Measuring: every configuration writes what it is asked for, times add up, and what is slow is seen to be slow."""

import time

import pytest
import torch
from support import bench as support_bench

import ensemble_decode as ed
from ensemble_decode.bench import baselines, measure, setup
from ensemble_decode.bench.energy import Meter
from ensemble_decode.bench.stats import bootstrap, figure, quantile, ratio
from ensemble_decode.bench.subjects import Event, MethodSubject, Spent, endless
from ensemble_decode.errors import InputError

ALL = ["single", *setup.METHODS, *setup.BASELINES]
CPU = Meter([torch.device("cpu")])
PROMPT = "The river runs slowly past the old mill"


@pytest.fixture(scope="module")
def pair():
    return support_bench.bench()


class Sleeper:
    """A subject that takes a known time: ``first`` seconds to its first token and ``step`` to every other."""

    label, kind = "sleeper", "method"

    def __init__(self, name, first, step, counted=1.0):
        self.name, self.first, self.step, self.counted = name, first, step, counted

    def refusal(self, batch):
        return None

    def start(self, prompts, tokens):
        subject = self

        class Session:
            def __iter__(self):
                for token in range(tokens):
                    time.sleep(subject.step if token else subject.first)
                    for row in range(len(prompts)):
                        yield [Event(time.perf_counter(), row, 1)]

            def spent(self):
                total = subject.first + (tokens - 1) * subject.step
                return Spent([total * subject.counted], host=0.0)

        return Session()


@pytest.mark.parametrize("name", ALL)
def test_every_configuration_writes_what_it_is_asked_for(pair, name):
    for subject in pair.subject(name):
        (sample,) = measure.measure([subject], [PROMPT], 12, rounds=1, meter=CPU, slice_tokens=5)[subject.name]
        # ways of segments end with a whole segment
        whole = 10 if name in ("segments", "specfuse", "specfuse-all") else 0
        assert 12 <= sample.tokens <= 12 + whole
        assert 0 < sample.first < sample.seconds
        assert 0 < sample.latency_median <= sample.latency_p90 <= sample.latency_p99
        assert sum(sample.forward) + sample.fusion + sample.host + sample.outside == pytest.approx(sample.seconds)
        assert sample.joules is None
        used = {"single-0": [0], "single-1": [1], "generate-0": [0], "generate-1": [1]}.get(subject.name, [0, 1])
        assert [m for m, seconds in enumerate(sample.forward) if seconds > 0] == used
        assert sample.cache_bytes > 0 or name == "segments"


@pytest.mark.parametrize("name", ["unite", "safe", "specfuse", "generate"])
def test_batches_write_in_every_row(pair, name):
    subject = pair.subject(name)[0]
    (sample,) = measure.measure([subject], [PROMPT, "a", "12 + 7 ="], 8, rounds=1, meter=CPU)[subject.name]
    assert 3 * 8 <= sample.tokens <= 3 * (8 + (10 if name == "specfuse" else 0))
    assert all(runner.held == 0 for runner in pair.ensemble.runners)  # every slot has been given back


def test_what_cannot_run_says_why(pair):
    assert "no batches" in pair.subject("dictionary")[0].refusal(2)
    assert "batch 1" in pair.subject("segments")[0].refusal(2)
    assert "batch 1 only" in pair.subject("assisted")[0].refusal(2)
    assert "two models" in baselines.AssistedGenerate(pair.loaded[:1]).refusal(1)
    assert pair.subject("assisted")[0].refusal(1) is None
    with pytest.raises(InputError, match="there are single, unite"):
        pair.subject("beam")


def test_baselines_say_what_the_models_say(pair):
    """With its own tokenizer alone a baseline must write the text that this package writes."""
    generate = pair.subject("generate")
    alone = pair.subject("single")
    for ours, theirs in zip(alone, generate, strict=True):
        texts = []
        for subject in (ours, theirs):
            session = subject.start([PROMPT], 16)
            list(session)
            texts.append(session.spent().texts[0])
        assert texts[0].strip() == texts[1].strip()
        assert texts[0].strip()


def test_assisted_generation_writes_the_large_models_text(pair):
    made = []
    for subject in (pair.subject("assisted")[0], pair.subject("generate")[1]):
        session = subject.start([PROMPT], 16)
        list(session)
        made.append(session.spent().texts[0])
    assert made[0] == made[1]


def test_the_dictionary_way_agrees_with_unite(pair):
    """Over plain text the two are one method; they part at pieces that dictionaries of strings do not tell apart."""
    texts = []
    for name in ("dictionary", "unite"):
        session = pair.subject(name)[0].start([PROMPT], 12)
        list(session)
        texts.append(session.spent().texts[0])
    common = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    assert common >= 8


def test_the_dictionary_ways_cache_changes_nothing(pair):
    subject = pair.subject("dictionary")[0]
    cached, fresh = subject.start([PROMPT], 12), subject.start([PROMPT], 12)
    list(cached)
    own = type(fresh)._logits

    def forget(m):
        if m == 0:
            fresh.cache, fresh.cached = type(fresh.cache)(), []
        return own(fresh, m)

    fresh._logits = forget
    list(fresh)
    assert cached.spent().texts == fresh.spent().texts


def test_methods_measured_are_the_methods(pair):
    """The measured session writes what ``generate`` writes on the same models."""
    session = pair.subject("safe")[0].start([PROMPT, "a"], 10)
    list(session)
    done = pair.ensemble.generate([PROMPT, "a"], method=ed.SAFE(), max_new_tokens=10)
    assert session.spent().texts == [row.text for row in done]


def test_texts_have_no_end_and_tokenizers_are_left_as_they_were():
    entries = support_bench.loaded()
    before = [entry.tokenizer.eos_token for entry in entries]
    made = endless([e.model for e in entries], [e.tokenizer for e in entries], ["a", "b"])
    assert [entry.tokenizer.eos_token for entry in entries] == before
    assert all(before)
    assert [model.eos_ids for model in made.vocab.models] == [(), ()]


@pytest.mark.slow
def test_time_split_adds_up_to_the_wall_time():
    """Forwards, fusion and host are counted by the engine round by round, the wall time outside it: within 3 %."""
    wide = {"hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 2048}  # steps of some milliseconds
    entries = support_bench.loaded({"llama3": wide, "qwen2": wide})
    made = endless([e.model for e in entries], [e.tokenizer for e in entries], ["a", "b"])
    subjects = [
        MethodSubject(name, name, made, method)
        for name, method in {
            "single": ed.Single(0),
            "unite": ed.UniTE(),
            "safe": ed.SAFE(),
            "specfuse": ed.SpecFuse(),
        }.items()
    ]
    for prompts in ([PROMPT], [PROMPT, "a", "One two three"]):
        for name, samples in measure.measure(subjects, prompts, 12, rounds=2, meter=CPU).items():
            shares = [abs(sample.outside) / sample.seconds for sample in samples]
            assert min(shares) < 0.03, (
                name,
                len(prompts),
                shares,
            )  # another process may stop this one between two rounds


def test_known_times_are_measured():
    subjects = [Sleeper("slow", 0.02, 0.004), Sleeper("fast", 0.01, 0.001)]
    samples = measure.measure(subjects, ["p", "q"], 10, rounds=3, meter=CPU, slice_tokens=2)
    for subject in subjects:
        for sample in samples[subject.name]:
            assert sample.tokens == 20
            assert subject.first <= sample.first < subject.first + 0.01
            assert subject.step <= sample.latency_median < subject.step + 0.003
            total = subject.first + 9 * subject.step
            assert total <= sample.seconds < total + 0.03  # the other subject's time is not in it


def test_uncounted_time_shows_as_outside():
    (sample,) = measure.measure([Sleeper("half", 0.01, 0.01, counted=0.5)], ["p"], 5, rounds=1, meter=CPU)["half"]
    assert 0.4 < sample.outside / sample.seconds < 0.6


def test_subjects_alternate_and_rounds_begin_in_turn():
    order = []

    class Noting(Sleeper):
        def start(self, prompts, tokens):
            order.append(self.name)
            return super().start(prompts, tokens)

    subjects = [Noting(name, 0.0, 0.0) for name in "abc"]
    measure.measure(subjects, ["p"], 4, rounds=3, meter=CPU)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_the_same_configuration_twice_differs_by_less_than_its_spread(pair):
    one, other = pair.subject("unite")[0], pair.subject("unite")[0]
    other.name = "again"
    for _ in range(2):  # a second try: with quartiles one of some hundred runs may fall outside
        samples = measure.measure([one, other], [PROMPT], 6, rounds=15, meter=CPU, slice_tokens=3)
        a, b = (figure([s.per_token for s in samples[name]]) for name in ("unite", "again"))
        if abs(a.median - b.median) <= max(a.spread, b.spread):
            return
    pytest.fail(f"{a} and {b} are of one configuration")


def test_prompts_differ_and_have_the_length_asked_for(pair):
    model = pair.ensemble.vocab.models[0]
    made = setup.prompts(pair.ensemble, 40, 16)
    assert len(set(made)) == 16
    assert all(38 <= len(model.encode(text.encode())) <= 42 for text in made)
    (long,) = setup.prompts(pair.ensemble, 20000, 1)
    assert 19900 <= len(model.encode(long.encode())) <= 20100


def test_statistics():
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert figure([1, 2, 3, 4, 5]) == (3, 2, 4, 5)
    assert ratio([2, 6, 12], [1, 2, 3]).median == 3
    low, high = bootstrap([0, 1] * 50, lambda v: sum(v) / len(v))
    assert 0.38 < low < 0.43
    assert 0.57 < high < 0.62
    assert bootstrap([0, 1] * 50, sum, seed=3) == bootstrap([0, 1] * 50, sum, seed=3)


def test_energy_is_read_from_nvml(monkeypatch):
    import sys
    import types

    counter = iter([0, 1500, 4500])
    fake = types.SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counter),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1-2"))
    meter = Meter([torch.device("cuda", 0), torch.device("cuda", 0)])
    assert meter.reports
    assert (meter.read(), meter.read()) == (1.5, 4.5)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    without = Meter([torch.device("cuda", 0)])
    assert not without.reports
    assert "ensemble-decode[energy]" in without.reason
    assert CPU.read() == 0.0
    assert "only CUDA" in CPU.reason
