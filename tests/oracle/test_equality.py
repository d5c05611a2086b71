"""The decoder with caches and batches equals the oracle token for token, on tiny models of every tokenizer family."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import equality, prompts, tokenizers
from support.equality import Pair, assert_equal, oracle, recall, tiny

import ensemble_decode as ed

# Every family leads once and follows once. Random models rarely agree; those with little noise, much spread and uneven
# weights do, so that SAFE's drafts are accepted in part.
GROUPS = {
    "two": lambda: tiny(("gpt2", "gemma")),
    "two_metaspace": lambda: tiny(("gemma", "llama2")),
    "three": lambda: tiny(("llama2", "llama3", "unigram")),
    "three_nasty": lambda: tiny(("lowercase", "qwen2", "added")),
    "nasty_first": lambda: tiny(("added", "metaspace")),
    "nfc_first": lambda: tiny(("qwen2", "lowercase", "gpt2"), seed=5),
    "confident": lambda: tiny(("llama3", "unigram", "gemma"), weights=(0.6, 0.3, 0.1), spread=3.0, noise=0.3),
    "metaspace_first": lambda: tiny(("metaspace", "gpt2"), weights=(0.8, 0.2), spread=2.0, noise=0.4),
    "unigram_first": lambda: tiny(("unigram", "llama3"), weights=(1.0, 0.0)),
}

METHODS = {
    "single": ed.Single(),
    "single_second": ed.Single(1),
    "unite": ed.UniTE(),
    "unite_k": ed.UniTE(top_k=2),
    "unite_all": ed.UniTE(top_k=1000),
    "unite_exclude": ed.UniTE(oov="exclude"),
    "unite_geometric": ed.UniTE(aggregate="geometric"),
    "unite_geometric_exclude": ed.UniTE(aggregate="geometric", oov="exclude", top_k=4),
    "unite_max_prob": ed.UniTE(gate=ed.MaxProb(0.3)),
    "unite_kl": ed.UniTE(gate=ed.KL(0.6)),
    "unite_js": ed.UniTE(gate=ed.JS(0.3)),
    "gac": ed.GaC(),
    "gac_always": ed.GaC(threshold=1.0),
    "safe": ed.SAFE(),
    "safe_prefix": ed.SAFE(sharpen=ed.Sharpen("prefix")),
    "safe_long": ed.SAFE(draft_length=8, sharpen=ed.Sharpen("none")),
    "safe_one": ed.SAFE(draft_length=1, sharpen=ed.Sharpen("geometric", threshold=0.6)),
    "safe_entropy": ed.SAFE(draft_length=3, sharpen=ed.Sharpen("prefix", trigger="entropy", min_prob=0.05)),
    "safe_temperature": ed.SAFE(draft_length=4, sharpen=ed.Sharpen("temperature")),
    "safe_gac": ed.SAFE(base=ed.GaC(), draft_length=4),
    "safe_gac_prefix": ed.SAFE(base=ed.GaC(), draft_length=4, sharpen=ed.Sharpen("prefix")),
    "safe_gac_geometric": ed.SAFE(base=ed.GaC(threshold=1.0), sharpen=ed.Sharpen("geometric", threshold=0.6)),
    "safe_gate": ed.SAFE(base=ed.UniTE(gate=ed.JS(0.3)), draft_length=6),
    "safe_test": ed.SAFE(test=ed.KL(1.0)),
}

PROMPTS = [
    "The river ",
    "def f(n):\n",
    "Hello 😀",
    "从前有",
    "  x",
    "Die Brücke fu\u0308hrt",
    "a\n\n\n    b\tc",
    "<s> </s><|endoftext|>word <strip> x",
    "12, 13, 14",
]


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads only hinder each other on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(pair: Pair, texts, method, max_new_tokens: int, stop=None, **options) -> list[ed.Completion]:
    """All texts in one batch, each against the oracle. No decision of the oracle may be a tie in float32."""
    done = pair.ensemble.generate(texts, method=method, max_new_tokens=max_new_tokens, stop=stop, **options)
    eos = pair.models[method.model if isinstance(method, ed.Single) else 0].vocab.eos_ids
    for text, completion in zip(texts, done, strict=True):
        if not isinstance(method, ed.Single):
            recall(pair, text, completion)
        expected = oracle(pair, text, method, max_new_tokens, stop)
        equal = assert_equal(completion, expected, eos, f"{pair.names}, {method}, {text!r}, stop {stop}")
        assert equal, f"exempt as a tie: margin {expected.margin}"
    return done


def _combinations():
    # Each method runs on two groups, each group with about five methods.
    groups = list(GROUPS)
    for i, method in enumerate(METHODS):
        for j in range(2):
            yield groups[(2 * i + 5 * j + i // 9) % len(groups)], method, i


@pytest.mark.parametrize(("group", "method", "number"), list(_combinations()))
def test_batch_equals_oracle(group, method, number):
    texts = [PROMPTS[(number + n) % len(PROMPTS)] for n in range(3)]
    check(GROUPS[group](), texts, METHODS[method], 16)


def test_all_families_lead_and_follow():
    names = [GROUPS[group]().names for group in GROUPS]
    assert {name[0] for name in names} == set(tokenizers.NAMES)
    assert {follower for name in names for follower in name[1:]} == set(tokenizers.NAMES)


def test_rows_of_one_batch_accept_different_numbers_of_tokens():
    """The SAFE cases above are not all rejection or all acceptance, and unsafe positions occur."""
    pair = GROUPS["confident"]()
    done = check(pair, PROMPTS[:6], ed.SAFE(draft_length=4), 24)
    shares = {round(c.stats.accepted / c.stats.drafted, 2) for c in done}
    assert len(shares) > 3
    assert min(shares) < 0.5 < max(shares)
    assert sum(c.stats.unsafe for c in done) > 0
    assert any(c.ensembled_at for c in done)


@pytest.mark.parametrize("method", ["unite", "gac", "safe", "safe_gac"])
def test_stop_strings(method):
    pair = GROUPS["two"]()
    free = pair.ensemble.generate(PROMPTS[:4], method=METHODS[method], max_new_tokens=18)
    # Stops that start and end inside tokens: from the middle of what each row writes.
    stops = [c.data[len(c.data) // 2 :][1:4] for c in free]
    done = check(pair, PROMPTS[:4], METHODS[method], 18, stop=[stops[0], stops[2]])
    assert sum(c.finish_reason == "stop" for c in done) >= 2
    check(pair, PROMPTS[:4], METHODS[method], 18, stop=[" ", "e", b"\xe4"])


@pytest.mark.parametrize("method", ["unite", "gac", "safe", "safe_long"])
def test_rows_end_by_themselves(method):
    """Models that end early: rows leave the batch at different steps, some by END inside a draft."""
    pair = tiny(("llama3", "qwen2"), seed=11, end=12.0)
    done = check(pair, PROMPTS, METHODS[method], 30, batch_size=4)
    assert sum(c.ended for c in done) >= 3
    assert len({len(c.token_ids) for c in done}) > 2


@pytest.mark.parametrize("method", ["single", "unite", "gac_always", "safe", "safe_long"])
def test_context_limits(method):
    pair = tiny(("llama3", "gemma", "metaspace"), seed=2, max_position_embeddings=30)
    done = check(pair, PROMPTS[:6], METHODS[method], 40)
    assert any(len(c.token_ids) < 40 and c.finish_reason == "length" for c in done)


@pytest.mark.parametrize("names", [("llama3", "gemma"), ("qwen2", "llama2"), ("gpt2", "metaspace", "unigram")])
def test_chat_messages(names):
    check(tiny(names), list(prompts.CHATS.values()), ed.UniTE(), 12)


text = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(list(" \n\t.eaé0▁Ġ<>|s/你😀\u0301")),
    ),
    min_size=1,
    max_size=30,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    group=st.sampled_from(sorted(GROUPS)),
    method=st.sampled_from(sorted(METHODS)),
    texts=st.lists(text, min_size=1, max_size=3),
    length=st.integers(1, 14),
    stop=st.one_of(st.none(), st.lists(st.text(" .esnt\n", min_size=1, max_size=2), min_size=1, max_size=2)),
)
def test_any_prompt(group, method, texts, length, stop):
    check(GROUPS[group](), texts, METHODS[method], length, stop)


def test_a_wrong_decoder_is_noticed():
    """The comparison itself: another method, another length or one other id is not equal."""
    pair = GROUPS["two"]()
    done = pair.ensemble.generate(PROMPTS[:1], method=ed.UniTE(), max_new_tokens=10)[0]
    for method, length in ((ed.UniTE(aggregate="geometric"), 10), (ed.UniTE(), 9)):
        with pytest.raises(AssertionError, match="expected"):
            assert_equal(done, oracle(pair, PROMPTS[0], method, length), pair.models[0].vocab.eos_ids)
    expected = oracle(pair, PROMPTS[0], ed.UniTE(), 10)
    assert assert_equal(done, expected, pair.models[0].vocab.eos_ids)
    done.token_ids[4] += 1
    with pytest.raises(AssertionError, match="expected"):
        assert_equal(done, expected, pair.models[0].vocab.eos_ids)
    assert expected.margin > equality.TIE
