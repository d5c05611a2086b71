"""`ensemble-decode generate`: what it prints, where, and with which exit code."""

import base64
import json
import shutil

import pytest

import ensemble_decode as ed
from ensemble_decode.methods import JS, SAFE, GaC, Sharpen, Single, SpecFuse, UniTE


def test_text_goes_to_standard_output_alone(run, pair, library):
    code, out, _ = run("generate", *pair, "-n", "12", "The printing press")
    assert code == 0
    assert out == library.generate("The printing press", max_new_tokens=12)[0].text + "\n"


def test_streamed_text_equals_the_text_at_once(run, pair, library):
    code, out, _ = run("generate", *pair, "-n", "12", "--stream", "The printing press")
    assert (code, out) == (0, library.generate("The printing press", max_new_tokens=12)[0].text + "\n")


def test_prompt_from_file_and_standard_input_byte_for_byte(run, pair, library, tmp_path):
    prompt = "Zwei Zeilen\n\nund  Räume "
    (tmp_path / "prompt.txt").write_text(prompt, encoding="utf-8")
    expected = library.generate(prompt, max_new_tokens=8)[0].text + "\n"
    assert run("generate", *pair, "-n", "8", "--file", str(tmp_path / "prompt.txt"))[1] == expected
    assert run("generate", *pair, "-n", "8", stdin=prompt)[1] == expected
    assert run("generate", *pair, "-n", "8", "--file", "-", stdin=prompt)[1] == expected


def test_a_byte_order_mark_is_no_part_of_the_prompt_and_line_ends_stay(run, pair, library, tmp_path):
    data = b"\xef\xbb\xbfZwei\r\nZeilen \xef\xbb\xbf\r"
    (tmp_path / "prompt.txt").write_bytes(data)
    for how in ({"stdin": data}, {"file": ["--file", tmp_path / "prompt.txt"]}):
        code, out, _ = run("generate", *pair, "-n", "2", "--json", *how.pop("file", []), **how)
        assert code == 0
        assert json.loads(out)["prompt"] == "Zwei\r\nZeilen \ufeff\r"


def test_input_that_is_not_utf8_is_refused_with_its_place(run, pair, tmp_path):
    (tmp_path / "prompt.txt").write_bytes("Räume".encode("latin-1"))
    code, _, err = run("generate", *pair, "--file", tmp_path / "prompt.txt")
    assert (code, "prompt.txt is not UTF-8: byte 1 is 0xe4" in err) == (2, True), err
    code, _, err = run("generate", *pair, stdin="Räume".encode("latin-1"))
    assert (code, "standard input is not UTF-8: byte 1 is 0xe4" in err) == (2, True), err


@pytest.fixture
def strict_pair(pair, tmp_path):
    """The two models with a chat template that refuses system messages."""
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    options = list(pair)
    for place in (1, 3):
        folder = shutil.copytree(pair[place], tmp_path / str(place))
        (folder / "chat_template.jinja").write_text(template)
        options[place] = str(folder)
    return options


def test_a_system_message_that_a_template_refuses_is_merged_on_demand(run, strict_pair, tmp_path):
    asked = ["generate", *strict_pair, "-n", "4", "--json"]
    code, _, err = run(*asked, "--system", "Be brief.", "Hello")
    assert code == 1
    assert "system" in err
    code, out, err = run(*asked, "--system", "Be brief.", "--system-role", "merge", "Hello")
    assert code == 0, err
    ensemble = ed.Ensemble.load([strict_pair[1], strict_pair[3]], device="cpu", dtype="float32", cache_dir=None)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    expected = ensemble.generate(messages, max_new_tokens=4, system="merge")[0]
    assert json.loads(out)["token_ids"] == expected.token_ids
    assert json.loads(out)["prompt"] == messages
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(messages))
    for given, stdin in ((chat, ""), ("-", json.dumps([messages]))):
        again = json.loads(run(*asked, "--messages", given, "--system-role", "merge", stdin=stdin).out)
        assert (again["prompt"], again["token_ids"]) == (messages, expected.token_ids)
    plain = ensemble.generate(messages, max_new_tokens=4, chat="plain")[0]
    code, out, _ = run(*asked, "--messages", chat, "--no-template")
    assert json.loads(out)["token_ids"] == plain.token_ids


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "expected a list"), ("[", "Expecting value"), ("[]", "a list of")]
)
def test_messages_that_are_none_are_refused(run, pair, text, message):
    code, _, err = run("generate", *pair, "--messages", "-", stdin=text)
    assert code == 2
    assert message in err


def test_json_has_the_whole_completion_and_the_trace(run, pair, library):
    code, out, _ = run("generate", *pair, "-n", "6", "--json", "--trace", "One", "Another prompt")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    done = library.generate(["One", "Another prompt"], max_new_tokens=6, trace=True)
    for line, completion, prompt in zip(lines, done, ["One", "Another prompt"], strict=True):
        assert line["prompt"] == prompt
        assert base64.b64decode(line["data_base64"]) == completion.data
        assert line["token_ids"] == completion.token_ids
        assert line["finish_reason"] == completion.finish_reason
        assert line["stats"]["agreed"] == completion.stats.agreed
        shown = [step.chosen.decode(errors="backslashreplace") for step in completion.trace]
        assert [step["chosen"] for step in line["trace"]] == shown


@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        ("gac(0.7)", GaC(0.7)),
        ("safe(draft_length=auto, base=gac(threshold=0.9), sharpen=prefix)", SAFE(GaC(0.9), "auto", Sharpen("prefix"))),
        ('{"name": "specfuse", "segment_length": 4, "trim": "none"}', SpecFuse(4, trim="none")),
        ("unite(oov=exclude, gate=js(0.05))", UniTE(oov="exclude", gate=JS(0.05))),
    ],
)
def test_every_method_runs_from_the_command_line(run, pair, library, method, chosen):
    code, out, _ = run("generate", *pair, "-n", "10", "--method", method, "--json", "--trace", "The printing press")
    assert code == 0
    assert json.loads(out)["text"] == library.generate("The printing press", method=chosen, max_new_tokens=10)[0].text


def test_options_reach_the_method_and_the_sampling(run, pair, library):
    sampled = ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.01", "--seed", "7"]
    _, out, _ = run(
        "generate", *pair, "-n", "10", "--weight", "3", "--weight", "1", *sampled, "--method", "unite(4)", "The"
    )
    weighted = ed.Ensemble(library.runners, library.tokenizers, library.vocab, [3, 1])
    settings = ed.Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, seed=7)
    assert out == weighted.generate("The", max_new_tokens=10, method=UniTE(top_k=4), sampling=settings)[0].text + "\n"
    full = library.generate("The", max_new_tokens=10, method=Single(1))[0].text
    assert run("generate", *pair, "-n", "10", "--method", "single(1)", "The")[1] == full + "\n"
    cut = full[3:5]
    code, out, _ = run("generate", *pair, "-n", "10", "--method", "single(1)", "--stop", cut, "The")
    assert (code, out) == (0, full[: full.index(cut)] + "\n")


def test_trace_table_goes_to_standard_error(run, pair):
    _, out, err = run("generate", *pair, "-n", "3", "--trace", "The")
    assert "candidates" in err
    assert "candidates" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello"], "no model given"),
        (["-m", "demo:nothing", "x"], "no such demo model"),
        (["-m", "demo:smollm2", "--method", "best", "x"], "'best' is not a method; expected single, unite"),
        (["-m", "demo:smollm2", "--method", "unite(draft_length=3)", "x"], "unite has no option 'draft_length'"),
        (["-m", "demo:smollm2", "--method", "unite(top_k=", "x"], "expected a value (character 13, at its end)"),
        (["-m", "demo:smollm2", "--json", "--stream", "x"], "cannot be combined with --json"),
        (["-m", "demo:smollm2", "--stream", "x", "y"], "one prompt"),
        (["-m", "demo:smollm2", "--system-role", "drop", "x"], "--system-role 'drop': expected error or merge"),
        (["-m", "demo:smollm2", "--few-rows", "maybe", "x"], "--few-rows 'maybe': expected auto, on or off"),
        (["-m", "demo:smollm2", "--model-arg", "token", "x"], "--model-arg 'token': expected KEY=VALUE"),
        (["-m", "demo:smollm2", "--messages", "/nonexistent/chat"], "/nonexistent/chat: No such file"),
        (["-m", "demo:smollm2", "--messages", "c.json", "x"], "one of these"),
        (["-m", "demo:smollm2", "--messages", "c.json", "--system", "s"], "--system goes with prompts"),
        (["-m", "demo:smollm2", "--temperature", "-1", "x"], "temperature must be"),
        (["-m", "demo:smollm2", "--file", "/nonexistent/prompt"], "/nonexistent/prompt"),
        (["-m", "demo:smollm2"], "the prompt on standard input is empty"),
    ],
)
def test_wrong_input_is_one_message_and_code_2(run, arguments, message):
    code, out, err = run("generate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err
    assert "Traceback" not in err


def test_a_row_that_cannot_run_is_an_error_with_its_reason(run, pair):
    code, _, err = run("generate", *pair, "word " * 600)
    assert code == 1
    assert "Error: prompt 0: " in err
    assert "512" in err
