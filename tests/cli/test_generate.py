"""The command line: what it prints, where, and with which exit code."""

import base64
import io
import json
import subprocess
import sys

import pytest
from support import tiny_models

import ensemble_decode as ed
from ensemble_decode.cli import app as cli
from ensemble_decode.errors import InputError
from ensemble_decode.methods import JS, KL, SAFE, GaC, MaxProb, Sharpen, Single, SpecFuse, UniTE
from ensemble_decode.methods import flags as cli_options


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The options that name two tiny models with different tokenizers."""
    home = tmp_path_factory.mktemp("tiny")
    first = tiny_models.save_tiny(home / "first", "llama", "llama3", seed=1)
    second = tiny_models.save_tiny(home / "second", "gpt2", "gpt2", seed=2)
    return ["--model", str(first), "--model", str(second), "--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="module")
def library(pair):
    """The same two models through the library."""
    return ed.Ensemble.load([pair[1], pair[3]], device="cpu", dtype="float32", cache_dir=None)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run a command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["ensemble-decode", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


def test_help_and_usage_errors_answer_without_torch():
    program = (
        "import sys\nfrom ensemble_decode.cli import app as cli\nsys.argv = ['ensemble-decode', {args}]\n"
        "try:\n    cli.main()\nexcept SystemExit as stop:\n    code = stop.code\n"
        "assert not {{'torch', 'transformers'}} & set(sys.modules), 'heavy imports'\nsys.exit(code)"
    )
    for args, code in (("'--help'", 0), ("'generate', '--help'", 0), ("'generate', 'x'", 2), ("'models', 'list'", 0)):
        done = subprocess.run([sys.executable, "-c", program.format(args=args)], capture_output=True, text=True)
        assert done.returncode == code, done.stderr


def test_version(run):
    assert run("--version") == (0, f"ensemble-decode {ed.__version__}\n", "")


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


@pytest.mark.parametrize("method", ["gac", "safe", "specfuse"])
def test_every_method_runs_from_the_command_line(run, pair, library, method):
    chosen = {"gac": GaC(), "safe": SAFE(), "specfuse": SpecFuse()}[method]
    code, out, _ = run("generate", *pair, "-n", "10", "--method", method, "--json", "--trace", "The printing press")
    assert code == 0
    assert json.loads(out)["text"] == library.generate("The printing press", method=chosen, max_new_tokens=10)[0].text


def test_options_reach_the_method_and_the_sampling(run, pair, library):
    sampled = ["--temperature", "0.8", "--top-p", "0.9", "--sample-top-k", "20", "--min-p", "0.01", "--seed", "7"]
    _, out, _ = run("generate", *pair, "-n", "10", "--weight", "3", "--weight", "1", *sampled, "--top-k", "4", "The")
    weighted = ed.Ensemble(library.runners, library.tokenizers, library.vocab, [3, 1])
    settings = ed.Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, seed=7)
    assert out == weighted.generate("The", max_new_tokens=10, method=UniTE(top_k=4), sampling=settings)[0].text + "\n"
    full = library.generate("The", max_new_tokens=10, method=Single(1))[0].text
    assert run("generate", *pair, "-n", "10", "--method", "single", "--single-model", "1", "The")[1] == full + "\n"
    cut = full[3:5]
    code, out, _ = run("generate", *pair, "-n", "10", "--method", "single", "--single-model", "1", "--stop", cut, "The")
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
        (["-m", "demo:smollm2", "--method", "best", "x"], "--method 'best': there are unite"),
        (
            ["-m", "demo:smollm2", "--draft-length", "3", "x"],
            "--draft-length is an option of --method safe, not of unite",
        ),
        (["-m", "demo:smollm2", "--json", "--stream", "x"], "cannot be combined with --json"),
        (["-m", "demo:smollm2", "--stream", "x", "y"], "one prompt"),
        (["-m", "demo:smollm2", "--system", "s", "x"], "--system needs --chat"),
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


def test_failures_while_running_are_code_1_and_debug_shows_the_traceback(run, tmp_path, monkeypatch, pair):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    arguments = ["generate", "-m", str(tmp_path / "broken"), "x"]
    code, _, err = run(*arguments)
    assert code == 1
    assert "Error: model broken: cannot be loaded" in err
    monkeypatch.setattr(sys, "argv", ["ensemble-decode", "--debug", *arguments])
    with pytest.raises(ed.ModelError):
        cli.main()


def test_a_row_that_cannot_run_is_an_error_with_its_reason(run, pair):
    code, _, err = run("generate", *pair, "word " * 600)
    assert code == 1
    assert "Error: prompt 0: " in err
    assert "512" in err


def test_every_method_option_builds_what_it_says():
    build = cli_options.build_method
    assert build("unite", {}) == UniTE()
    given = {"top-k": 3, "oov": "exclude", "aggregate": "geometric", "gate": "js:0.3"}
    assert build("unite", given) == UniTE(3, "exclude", "geometric", JS(0.3))
    assert build("gac", {"threshold": 0.7}) == GaC(0.7)
    assert build("single", {"single-model": 1}) == Single(1)
    assert build("safe", {"draft-length": "auto", "sharpen": "none"}) == SAFE(
        draft_length="auto", sharpen=Sharpen("none")
    )
    sharp = {"sharpen": "temperature", "trigger": "entropy", "sharpen-threshold": 0.6, "sharpen-min-prob": 0.2}
    assert build("safe", {"draft-length": "3", "top-k": 4, "sharpen-temperature": 0.4} | sharp) == SAFE(
        UniTE(4), 3, Sharpen("temperature", "entropy", 0.6, 0.2, 0.4)
    )
    assert build("safe", {"base": "gac", "threshold": 0.6}) == SAFE(GaC(0.6))
    assert build("safe", {"test": "js:0.2"}) == SAFE(test=JS(0.2))
    spec = {"segment-length": 4, "exit-threshold": 0.3, "exit-temperature": 0.2, "feedback": 0.5}
    assert build("specfuse", spec | {"trim": "none", "literal": (" so",)}) == SpecFuse(
        4, 0.3, 0.2, 0.5, "none", (" so",)
    )
    assert cli_options.parse_gate("kl") == KL()
    assert cli_options.parse_gate("max_prob:0.4") == MaxProb(0.4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("safe", {"base": "gac", "top-k": 3}, "--top-k is not an option of --method safe --base gac"),
        ("safe", {"threshold": 0.5}, "--threshold is not an option of --method safe --base unite"),
        ("safe", {"base": "single"}, "--base 'single'"),
        ("safe", {"draft-length": "some"}, "positive integer or auto"),
        ("unite", {"gate": "max"}, "there are max_prob, kl, js"),
        ("unite", {"gate": "kl:x"}, "not a number"),
        ("unite", {"gate": "kl:-1"}, "threshold must be"),
    ],
)
def test_options_that_do_not_fit_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        cli_options.build_method(name, options)


def test_info_says_what_runs_and_why(run):
    code, out, _ = run("info", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["versions"]["ensemble-decode"] == ed.__version__
    assert {row["operator"] for row in facts["operators"]} == set(ed.kernels.status())
    assert {row["runs"] for row in facts["operators"]} <= {"reference", "triton", "native"}
    assert all(row["why"] for row in facts["attention"])
    code, out, _ = run("info")
    assert code == 0
    assert "topk_stats" in out
    assert facts["machine"]["torch CPU instruction set"] in out


def test_models_list_and_remove_on_an_empty_cache(run):
    code, out, _ = run("models", "list")
    assert code == 0
    assert out.count("not downloaded") == 2
    assert "Gemma Terms of Use" in out
    assert "demo:smollm2: was not in the cache" in run("models", "remove", "smollm2")[2]
    assert run("models", "remove")[0] == 2
    assert run("models", "fetch", "other")[0] == 2


@pytest.mark.real
def test_demo_streams_and_ends_with_the_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["ensemble-decode", "demo", "-n", "8", "Water boils at"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    out = capsys.readouterr().out
    assert out.count("Water boils at") == 3
    assert "�" not in out
    table = out[out.index("tokens/s") :]
    for line in ("UniTE, both", "demo:smollm2 alone", "demo:gemma3 alone"):
        assert line in table
    assert "100%" in table.splitlines()[-3]  # a model that writes alone always has its own choice
