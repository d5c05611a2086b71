"""Which implementation runs: asked for by name, by context, or chosen; and every branch is seen to run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from ensemble_decode.kernels import dispatch

from ensemble_decode import kernels

LOGITS = torch.tensor([[0.0, 2.0, 1.0]])


def stats(**options):
    return kernels.topk_stats(LOGITS, 1, **options)


@pytest.fixture
def backends(monkeypatch):
    """Replaceable backends: each records its calls and answers with the reference."""
    from ensemble_decode.kernels import reference

    real, fakes = dispatch._backend, {}

    def add(name: str, reason=None, operators=("topk_stats",), on_cuda=(), limit=None):
        fakes[name] = SimpleNamespace(
            implements=frozenset(operators),
            implements_cuda=frozenset(on_cuda),
            unavailable_reason=lambda: reason,
            topk_stats=reference.topk_stats,
            limit_reason=limit or (lambda operator, args: None),
        )

    monkeypatch.setattr(dispatch, "_backend", lambda name: fakes.get(name) or real(name))
    return add


def ran(**options) -> set[str]:
    """The implementations that one call went through."""
    with kernels.trace_calls() as calls:
        stats(**options)
    return {name for operator, name, branch in calls if branch == ""}


def test_auto_on_a_cpu_prefers_native_then_reference(backends):
    backends("native")
    assert ran() == {"native"}
    backends("native", reason="no compiler was found")
    assert ran() == {"reference"}
    backends("native", operators=())
    assert ran() == {"reference"}


def test_auto_on_a_cpu_never_interprets(backends, monkeypatch):
    """Triton's interpreter is for tests: only a request by name uses it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backends("triton")
    backends("native", reason="not built")
    assert ran() == {"reference"}
    assert ran(implementation="triton") == {"triton"}


@pytest.mark.parametrize(
    ("triton", "native", "expected"),
    [(None, None, "triton"), ("no", None, "native"), ("no", "no", "reference")],
)
def test_auto_on_cuda_prefers_triton_then_native_then_reference(backends, triton, native, expected):
    backends("triton", reason=triton)
    backends("native", reason=native, operators=(), on_cuda=("topk_stats",))
    name, function = dispatch.resolve("topk_stats", "cuda", ())
    assert name == expected
    assert callable(function)


def test_auto_elsewhere_is_the_reference():
    assert dispatch.resolve("topk_stats", "mps", ())[0] == "reference"


def test_auto_passes_over_an_implementation_that_cannot_take_the_arguments(backends):
    backends("native", limit=lambda operator, args: "k is too large" if args[1] > 0 else None)
    assert ran() == {"reference"}
    with pytest.raises(kernels.ImplementationError, match=r"native implementation of topk_stats.*k is too large"):
        stats(implementation="native")


@pytest.mark.parametrize(
    ("name", "setup", "reason"),
    [
        ("native", {"reason": "the extension was not built"}, "the extension was not built"),
        ("native", {"operators": ()}, "no topk_stats for cpu"),
        ("triton", {"reason": "triton is not installed"}, "triton is not installed"),
        ("triton", {}, "Triton needs CUDA tensors"),
    ],
)
def test_what_is_asked_for_and_cannot_run_is_an_error(backends, monkeypatch, name, setup, reason):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    backends(name, **setup)
    for call in (lambda: stats(implementation=name), lambda: within(name)):
        with pytest.raises(kernels.ImplementationError, match=f"the {name} implementation of topk_stats.*{reason}"):
            call()


def within(name: str):
    with kernels.use(name):
        return stats()


def test_a_backend_that_cannot_be_imported_is_a_reason(monkeypatch):
    monkeypatch.setitem(dispatch._MODULES, "native", "no_such_module")
    dispatch._backend.cache_clear()
    try:
        with pytest.raises(kernels.ImplementationError, match=r"cannot import it.*no_such_module"):
            stats(implementation="native")
        assert ran() == {"reference"}
        assert "no_such_module" in kernels.status()["topk_stats"]["native"]["reason"]
    finally:
        monkeypatch.undo()
        dispatch._backend.cache_clear()


def test_use_holds_inside_the_block_and_nests(backends):
    backends("native")
    assert dispatch.requested() == "auto"
    with kernels.use("reference"):
        assert ran() == {"reference"}
        with kernels.use("native"):
            assert ran() == {"native"}
            assert ran(implementation="reference") == {"reference"}
        assert ran() == {"reference"}
    assert dispatch.requested() == "auto"


def test_use_called_plainly_holds_from_there_on(backends):
    backends("native")
    try:
        kernels.use("reference")
        assert ran() == {"reference"}
    finally:
        kernels.use("auto")
    assert ran() == {"native"}


def test_use_restores_after_an_error():
    with pytest.raises(ZeroDivisionError), kernels.use("reference"):
        raise ZeroDivisionError
    assert dispatch.requested() == "auto"


def test_threads_do_not_see_each_other():
    seen, inside, leave = {}, threading.Event(), threading.Event()

    def other():
        with kernels.use("reference"):
            inside.set()
            leave.wait(10)
            seen["other"] = dispatch.requested()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    seen["main"] = dispatch.requested()
    leave.set()
    thread.join()
    assert seen == {"main": "auto", "other": "reference"}


def test_tasks_do_not_see_each_other():
    async def run(name: str) -> str:
        with kernels.use(name):
            await asyncio.sleep(0)
            return dispatch.requested()

    async def both():
        return await asyncio.gather(run("reference"), run("auto"))

    assert asyncio.run(both()) == ["reference", "auto"]


@pytest.mark.parametrize("call", [lambda: kernels.use("fast"), lambda: stats(implementation="fast")])
def test_unknown_names_are_refused(call):
    with pytest.raises(ValueError, match="no implementation 'fast'; there are: auto, reference, triton, native"):
        call()
    assert dispatch.requested() == "auto"


def test_status_names_every_operator_and_why():
    status = kernels.status()
    assert set(status) == set(dispatch.OPERATORS)
    for operator, entry in status.items():
        assert entry["reference"] == {"available": True, "reason": None, "devices": ["cpu"]} or "cuda" in entry["auto"]
        for name in dispatch.IMPLEMENTATIONS:
            assert entry[name]["available"] == bool(entry[name]["devices"])
            assert entry[name]["devices"] == list(entry["auto"]) or entry[name]["reason"], (operator, name)
        assert entry["auto"]["cpu"] in ("native", "reference")
        assert "cpu" in entry[entry["auto"]["cpu"]]["devices"]


def test_status_agrees_with_what_runs():
    assert ran() == {kernels.status()["topk_stats"]["auto"]["cpu"]}


def test_every_operator_is_public():
    for operator in dispatch.OPERATORS:
        assert callable(getattr(kernels, operator))
        assert callable(getattr(dispatch._backend("reference"), operator))


def test_the_operators_import_neither_transformers_nor_tokenizers():
    program = "import sys, ensemble_decode.kernels; print(*sorted({'transformers', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
