"""SpecFuse with caches, shared forwards and batches equals the oracle on tiny models of different tokenizers."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.ensembles import prompt_ids
from support.equality import TIE, Pair, finish_of, pair_of, recall, tiny
from support.oracle.specfuse import specfuse

import ensemble_decode as ed

GROUPS = {
    "two": lambda: tiny(("gpt2", "gemma")),
    "three": lambda: tiny(("llama2", "llama3", "unigram")),
    "nasty": lambda: tiny(("added", "lowercase", "metaspace", "qwen2"), weights=(0.4, 0.3, 0.2, 0.1)),
    "confident": lambda: tiny(("llama3", "unigram", "gemma"), weights=(0.6, 0.3, 0.1), spread=3.0, noise=0.3),
}
METHODS = [
    ed.SpecFuse(),
    ed.SpecFuse(segment_length=1),
    ed.SpecFuse(segment_length=4, exit_threshold=0.95),
    ed.SpecFuse(segment_length=5, exit_threshold=0.9, feedback=2.0),
    ed.SpecFuse(segment_length=3, exit_threshold=0.0, temperature=0.1, trim="none"),
    ed.SpecFuse(segment_length=6, literals=(" the", b"\n")),
]
PROMPTS = ["The river ", "def f(n):\n", "Hello 😀", "从前有", "  x", "Die Brücke fu\u0308hrt"]


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads only hinder each other on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(pair: Pair, texts, method: ed.SpecFuse, max_new_tokens: int, stop=None):
    done = pair.ensemble.generate(texts, method=method, max_new_tokens=max_new_tokens, stop=stop)
    left = 0
    for text, completion in zip(texts, done, strict=True):
        recall(pair, text, completion)
        expected, rounds = specfuse(
            pair.models,
            text,
            max_new_tokens,
            stop,
            pair.ensemble.weights,
            segment_length=method.segment_length,
            exit_threshold=method.exit_threshold,
            temperature=method.temperature,
            rate=method.feedback,
            words=method.trim == "word",
            literals=tuple(x.encode() if isinstance(x, str) else x for x in method.literals),
        )
        ids = [t for t in completion.token_ids if t not in pair.models[0].vocab.eos_ids]
        got = (completion.data, ids, finish_of(completion), completion.stats.rounds)
        note = f"{pair.names}, {method}, {text!r}, margins {[f'{r.margin:.1e}' for r in rounds]}"
        assert got == (expected.data, expected.ids, expected.finish, expected.rounds), note
        assert expected.margin > TIE, note
        left += len(rounds[-1].active) < len(pair.models)
    return left


@pytest.mark.parametrize("number", range(2 * len(METHODS)))
def test_batch_equals_oracle(number):
    """Every method on two groups, every group with three methods."""
    group = list(GROUPS)[(number + number // len(METHODS)) % len(GROUPS)]
    check(GROUPS[group](), PROMPTS[:3], METHODS[number % len(METHODS)], 16)


def test_models_leave():
    assert check(GROUPS["three"](), PROMPTS, ed.SpecFuse(segment_length=4, exit_threshold=0.97), 24) > 0


def test_ends_stops_and_contexts():
    check(tiny(("llama3", "qwen2"), seed=11, end=12.0), PROMPTS[:4], ed.SpecFuse(segment_length=4), 30)
    check(GROUPS["two"](), PROMPTS[:4], ed.SpecFuse(segment_length=4), 20, stop=[" ", "e"])
    limited = tiny(("llama3", "gemma", "metaspace"), seed=2, max_position_embeddings=30)
    check(limited, PROMPTS[:4], ed.SpecFuse(segment_length=4, exit_threshold=0.0), 40)


@pytest.mark.parametrize(("leaver", "context"), [(0, 20), (2, 8)])
def test_a_context_that_is_full_when_its_model_leaves_ends_nothing(leaver, context):
    """After "Hello 😀" the segment that fills the context of a model is the one before it leaves; the others go on."""
    lengths = [context if m == leaver else 512 for m in range(3)]
    pair = pair_of(("llama3", "gemma", "qwen2"), max_position_embeddings=lengths)
    ensemble = pair.ensemble
    method = ed.SpecFuse(segment_length=4, exit_threshold=0.97)
    assert check(pair, ["Hello 😀"], method, 24) == 1
    (done,) = ensemble.generate("Hello 😀", method=method, max_new_tokens=24, trace=True)
    rounds = [step.segment for step in done.trace]
    last = next(i for i, made in enumerate(rounds) if leaver in made.left)
    written = b"".join(step.chosen for step in done.trace[: last + 1])
    model = ensemble.vocab.models[leaver]
    held = len(prompt_ids(ensemble, leaver, "Hello 😀")) + len(model.encode(written))
    assert held == context
    assert last + 1 < len(rounds)


text = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(list(" \n.eé▁<>你😀\u0301"))), min_size=1, max_size=20
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    group=st.sampled_from(sorted(GROUPS)),
    method=st.sampled_from(METHODS),
    texts=st.lists(text, min_size=1, max_size=3),
    length=st.integers(1, 14),
)
def test_any_prompt(group, method, texts, length):
    check(GROUPS[group](), texts, method, length)
