"""Triton's interpreter without the work it repeats: without this, half of its time goes into patching the language."""

from __future__ import annotations

import importlib
import inspect

import pytest
from ensemble_decode.kernels import dispatch


@pytest.fixture(scope="session", autouse=True)
def patch_the_language_once_per_launch():
    """The interpreter replaces every builtin of its language at each call of a device function; once a launch is
    enough.

    What a call would replace depends only on which language modules its file imports, so a second call with the same
    ones changes nothing until the launch ends and undoes it.
    """
    if dispatch.unavailable_reason("triton", "topk_stats", "cpu") is not None:
        yield
        return
    interpreter = importlib.import_module("triton.runtime.interpreter")
    original = getattr(interpreter, "_patch_lang", None)
    scope_type = getattr(interpreter, "_LangPatchScope", None)
    if original is None or scope_type is None:  # another release: slower, otherwise the same
        yield
        return
    language = interpreter.tl
    patched: set[frozenset[str]] = set()

    class Scope:
        def __init__(self, scope):
            self.scope = scope

        def restore(self):
            patched.clear()
            self.scope.restore()

    def patch_lang(fn):
        modules = [v for v in fn.__globals__.values() if inspect.ismodule(v) and v in (language, language.core)]
        names = frozenset(m.__name__ for m in modules)
        if names in patched:
            return scope_type()
        scope = original(fn)
        patched.add(names)
        return Scope(scope)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_lang)
        yield
