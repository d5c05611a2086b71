"""What all commands share: help, version, errors, exit codes, output that is redirected."""

import json
import os
import subprocess
import sys

import pytest

import ensemble_decode as ed
from ensemble_decode.cli import app

COMMANDS = ["generate", "batch", "plan", "demo", "determine", "methods", "info", "bench"]


def test_help_and_usage_errors_answer_without_torch():
    program = (
        "import sys\nfrom ensemble_decode.cli import app as cli\nsys.argv = ['ensemble-decode', {args}]\n"
        "try:\n    cli.main()\nexcept SystemExit as stop:\n    code = stop.code\n"
        "assert not {{'torch', 'transformers'}} & set(sys.modules), 'heavy imports'\nsys.exit(code)"
    )
    for args, code in (
        ("'--help'", 0),
        ("'generate', '--help'", 0),
        ("'batch', '--help'", 0),
        ("'generate', 'x'", 2),
        ("'models', 'list'", 0),
    ):
        done = subprocess.run([sys.executable, "-c", program.format(args=args)], capture_output=True, text=True)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_the_exit_codes_and_fits_80_columns(run, command):
    code, out, _ = run(command, "--help", columns=80)
    assert code == 0
    assert "Exit codes: 0 done" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out, "a name or a value is cut off"


def test_version(run):
    assert run("--version") == (0, f"ensemble-decode {ed.__version__}\n", "")


def test_failures_while_running_are_code_1_and_debug_shows_the_traceback(run, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    arguments = ["generate", "-m", str(tmp_path / "broken"), "x"]
    code, _, err = run(*arguments)
    assert code == 1
    assert "Error: model broken: cannot be loaded" in err
    monkeypatch.setattr(sys, "argv", ["ensemble-decode", "--debug", *arguments])
    with pytest.raises(ed.ModelError):
        app.main()


def test_a_reader_that_has_gone_is_no_error_message():
    program = "from ensemble_decode.cli.app import main; main()"
    command = [sys.executable, "-c", program, "methods", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("form", [[], ["--json"], ["--stream"]])
def test_redirected_output_is_utf8_whatever_the_locale_says(pair, library, form):
    prompt = "Zwölf Räume – 12 €"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "ENSEMBLE_DECODE_HOME": pair[1]}
    program = "from ensemble_decode.cli.app import main; main()"
    command = [sys.executable, "-c", program, "generate", *pair, "-n", "40", *form, prompt]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    text = library.generate(prompt, max_new_tokens=40)[0].text
    assert not text.isascii(), "this prompt must give text that ASCII cannot hold"
    if form == ["--json"]:
        told = json.loads(done.stdout.decode())
        assert (told["prompt"], told["text"]) == (prompt, text)
    else:
        assert done.stdout == f"{text}\n".encode()
