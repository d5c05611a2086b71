"""Fields of a line: every sort of bad line by its kind and reason, every override, every field carried through."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import batches

import ensemble_decode as ed
from ensemble_decode.batch.fields import BadField, Wanted, as_request, encode_result, error_result
from ensemble_decode.batch.lines import Line, parse_line
from ensemble_decode.outputs import TraceStep

PROMPT = {"prompt": "a"}
GREEDY = ed.Sampling()


@pytest.mark.parametrize(
    ("raw", "kind", "reason"),
    [
        (b"{broken", "line", "not JSON"),
        (b"", "line", "empty"),
        (b"[1]", "line", "not a JSON object but list"),
        (b'{"prompt": "a", "score": 1e999}', "line", "inf is not a JSON value"),
        (b"{}", "prompt", "neither"),
        (b'{"prompt": "a", "messages": []}', "prompt", "both"),
        (b'{"prompt": ""}', "prompt", "empty"),
        (b'{"prompt": 3}', "prompt", "must be a string, got int"),
        (b'{"prompt": null}', "prompt", "neither"),
        (b'{"prompt": "\\ud800"}', "prompt", "lone surrogate"),
        (b'{"messages": "hi"}', "prompt", "list of chat messages"),
        (b'{"messages": []}', "prompt", "non-empty list"),
        (b'{"messages": [{"role": "user"}]}', "prompt", "'content'"),
        (b'{"messages": ["hi"]}', "prompt", "message 0"),
        (b'{"prompt": "a", "max_new_tokens": 0}', "field", "max_new_tokens must be an integer of at least 1, got 0"),
        (b'{"prompt": "a", "max_new_tokens": "5"}', "field", "max_new_tokens"),
        (b'{"prompt": "a", "max_new_tokens": 1.5}', "field", "max_new_tokens"),
        (b'{"prompt": "a", "max_new_tokens": true}', "field", "max_new_tokens"),
        (b'{"prompt": "a", "stop": 5}', "field", "stop must be"),
        (b'{"prompt": "a", "stop": [""]}', "field", "stop must be"),
        (b'{"prompt": "a", "stop": "\\ud83d"}', "field", "half a surrogate pair"),
        (b'{"prompt": "a", "seed": 1.5}', "field", "seed must be"),
        (b'{"prompt": "a", "seed": -1}', "field", "seed must be"),
        (b'{"prompt": "a", "temperature": "hot"}', "field", "temperature must be a number"),
        (b'{"prompt": "a", "temperature": -1}', "field", "temperature"),
        (b'{"prompt": "a", "top_p": 2}', "field", "top_p"),
        (b'{"prompt": "a", "top_k": 99999999999999999999}', "field", "top_k must be an integer"),
        (b'{"prompt": "a", "method": "best"}', "field", "'best' is not a method; expected single, unite"),
        (b'{"prompt": "a", "method": 3}', "field", "a method is text or an object"),
        (b'{"prompt": "a", "method": "safe("}', "field", "expected a value"),
        (b'{"prompt": "a", "method": {"name": "unite", "speed": 3}}', "field", "speed"),
        (b'{"prompt": "a", "method": {"name": "unite", "threshold": 0.5}}', "field", "threshold"),
        (b'{"prompt": "a", "method": {"name": "unite", "top_k": "x"}}', "field", "top_k"),
        (b'{"prompt": "a", "method": {"name": "unite", "gate": 5}}', "field", "gate"),
        (b'{"prompt": "a", "method": {"name": "safe", "draft_length": 0}}', "field", "draft_length"),
        (b'{"prompt": "a", "method": {"name": "single", "model": "1"}}', "field", "model must be an integer"),
        (b'{"prompt": "a", "method": {"name": "specfuse", "literals": ["\\ud83d"]}}', "field", "surrogate"),
        (b'{"prompt": "a", "text": 1, "input_text": 2}', "field", "rename one"),
    ],
)
def test_bad_lines_by_kind_and_reason(raw, kind, reason):
    line = parse_line(7, raw)
    with pytest.raises(BadField) as bad:
        as_request(line, GREEDY)
    assert bad.value.kind == kind
    assert reason in str(bad.value)
    told = strict_json(error_result(line, bad.value, 2, Wanted(ids=True)))
    assert told["line"] == 7
    assert told["finish_reason"] == "error"
    assert told["error_kind"] == kind
    assert told["error"] == str(bad.value)
    assert told["text"] == ""


def strict_json(data: bytes):
    return json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_overrides_change_the_run_s_settings_and_nothing_else():
    run = ed.Sampling(temperature=0.5, top_p=0.9, seed=1)
    plain = as_request(Line(3, PROMPT), run)
    assert (plain.method, plain.sampling, plain.seed, plain.row_id) == (None, None, None, 2)
    assert (plain.max_new_tokens, plain.stop, plain.trace) == (None, None, False)
    own = as_request(Line(3, PROMPT | {"method": "safe(draft_length=2)", "top_p": 0.5, "seed": 8, "stop": "x"}), run)
    assert own.method == ed.SAFE(draft_length=2)
    assert own.sampling == ed.Sampling(temperature=0.5, top_p=0.5)
    assert (own.seed, own.stop) == (8, ("x",))
    other = as_request(Line(3, PROMPT | {"method": {"name": "specfuse", "literals": ["yes"], "trim": "none"}}), run)
    assert other.method == ed.SpecFuse(literals=("yes",), trim="none")
    assert as_request(Line(1, PROMPT | {"top_k": 5, "min_p": 0.1}), GREEDY).sampling == ed.Sampling(top_k=5, min_p=0.1)
    assert as_request(Line(1, PROMPT), run, trace=True).trace


def test_null_means_absent_and_an_integral_float_is_an_integer():
    nulls = dict.fromkeys(("messages", "max_new_tokens", "stop", "seed", "temperature", "top_k", "method"))
    assert as_request(Line(1, PROMPT | nulls), GREEDY) == as_request(Line(1, PROMPT), GREEDY).__class__(
        "a", row_id=0, tag=Line(1, PROMPT | nulls)
    )
    floats = as_request(
        Line(
            1, PROMPT | {"max_new_tokens": 24.0, "seed": 3.0, "top_k": 5.0, "method": {"name": "single", "model": 1.0}}
        ),
        GREEDY,
    )
    assert (floats.max_new_tokens, floats.seed, floats.sampling.top_k) == (24, 3, 5)
    assert type(floats.max_new_tokens) is int
    assert floats.method == ed.Single(1)
    table = {"name": "safe", "draft_length": 3.0, "base": {"name": "gac", "threshold": 0.4, "top_k": None}}
    assert as_request(Line(1, PROMPT | {"method": table}), GREEDY).method == ed.SAFE(
        base=ed.GaC(threshold=0.4), draft_length=3
    )


def test_every_field_is_carried_through():
    fields = {
        "prompt": "a",
        "id": 7,
        "nested": {"x": [1, None, "ü"]},
        "gone": None,
        "text": "mine",
        "error": "mine too",
        "odd": "\ud800",
    }
    done = ed.Completion("out", b"out", [3, 4], "stop", 4)
    told = json.loads(encode_result(Line(2, fields), done, None, Wanted(ids=True)))
    carried = {k: v for k, v in fields.items() if k not in ("text", "error")}
    assert {k: v for k, v in told.items() if k in carried} == carried
    assert (told["input_text"], told["input_error"], told["text"], told["error"]) == ("mine", "mine too", "out", None)
    assert told["token_ids"] == [3, 4]
    assert not {"token_ids", "logprobs", "trace"} & set(
        json.loads(encode_result(Line(2, fields), done, None, Wanted()))
    )
    assert not {"forward_seconds", "forwarded", "host_seconds"} & set(told["stats"])  # would differ after a restart


@pytest.mark.parametrize("method", [ed.UniTE(), ed.SAFE(draft_length=3), ed.Single(), ed.SpecFuse(segment_length=3)])
def test_logprobs_are_those_of_the_trace(method):
    (done,) = batches.pair().generate(["The quick"], method=method, max_new_tokens=8, trace=True)
    told = strict_json(encode_result(Line(1, PROMPT), done, None, Wanted(logprobs=True, trace=True)))
    assert len(told["logprobs"]) == len(told["trace"]) == len(done.trace) > 0
    for logprob, step, own in zip(told["logprobs"], told["trace"], done.trace, strict=True):
        place = own.candidates.index(own.chosen)
        assert logprob == pytest.approx(math.log(own.probs[place]))
        assert step["candidates"][place] == step["chosen"] == own.chosen.decode("utf-8", "backslashreplace")
        assert step["ensembled"] == own.ensembled


def test_a_step_without_a_probability_has_no_logprob_and_infinities_become_null():
    step = TraceStep([b"\xff"], [0.0], b"\xff", False, True, False, 1.0, 0.0, [math.inf], math.nan, [b"x"], 1, b"\xff")
    done = ed.Completion("", b"", [1], "length", trace=[step])
    told = strict_json(encode_result(Line(1, PROMPT), done, None, Wanted(logprobs=True, trace=True)))
    assert told["logprobs"] == [None]
    assert (told["trace"][0]["kl"], told["trace"][0]["js"], told["trace"][0]["chosen"]) == ([None], None, "\\xff")


# -- whatever a line holds -------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.integers(-2, 3),
    st.floats(),
    TEXT,
    st.sampled_from(["\ud83d", "auto", "unite", "safe(draft_length=2)", "single(1)", "kl(0.2)", "", "1", 1e300]),
)
ANY = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
OPTIONS = [
    "top_k",
    "oov",
    "aggregate",
    "gate",
    "threshold",
    "base",
    "draft_length",
    "sharpen",
    "test",
    "model",
    "literals",
    "segment_length",
    "trim",
    "feedback",
    "exit_threshold",
    "exit_temperature",
    "overlap",
    "temperature",
    "kind",
    "speed",
]
METHOD = st.fixed_dictionaries(
    {"name": st.sampled_from(["unite", "gac", "safe", "specfuse", "single"])},
    optional=dict.fromkeys(OPTIONS, ANY),
)
LINE = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.sampled_from(["a", "ab", ""]) | ANY,
        "messages": ANY | st.just([{"role": "user", "content": "a"}]),
        "max_new_tokens": st.integers(1, 4) | ANY,
        "stop": st.lists(TEXT, max_size=2) | ANY,
        "seed": st.integers(0, 5) | ANY,
        "temperature": st.floats(0, 2) | ANY,
        "top_p": st.floats(0.1, 1) | ANY,
        "top_k": st.integers(0, 9) | ANY,
        "min_p": st.floats(0, 1) | ANY,
        "method": METHOD | ANY,
        "text": ANY,
        "score": ANY,
    },
)


def attempt(number: int, fields: dict):
    """The line, and what it is: a request, or why it is none."""
    line = parse_line(number, json.dumps(fields).encode())
    try:
        return line, as_request(line, GREEDY)
    except BadField as error:
        return line, error


@settings(max_examples=300, deadline=None)
@given(LINE)
def test_a_line_is_a_request_or_a_bad_field_and_its_result_is_json(fields):
    line, found = attempt(1, fields)
    if isinstance(found, BadField):
        told = strict_json(error_result(line, found, 2, Wanted(ids=True)))
        assert told["error_kind"] == found.kind
        assert told["error"]
    else:
        assert isinstance(found.max_new_tokens, int | None)
        for stop in found.stop or ():
            stop.encode()


@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, min_size=2, max_size=4))
def test_no_line_stops_the_others(lines):
    """Whatever lies beside it, a good row ends as it does alone."""
    ensemble = batches.pair()
    found = [attempt(number, fields)[1] for number, fields in enumerate(lines, 1)]
    requests = [one for one in found if not isinstance(one, BadField)]
    good = as_request(Line(99, {"prompt": "The quick", "max_new_tokens": 3}), GREEDY)
    done = list(ensemble.generate_batch([*requests, good], max_new_tokens=3, batch_size=3))
    assert len(done) == len(requests) + 1
    (alone,) = ensemble.generate(["The quick"], max_new_tokens=3)
    assert done[-1].completion.text == alone.text
    for result in done:
        strict_json(encode_result(result.request.tag, result.completion, result.error_kind, Wanted(ids=True)))
