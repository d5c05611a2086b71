"""What a wheel, an sdist and an editable install provide: the package whole, and no top-level ``kernels``."""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURELIB = sysconfig.get_path("purelib")
# Nothing is compiled here (that takes a minute, and the environment the suite runs in was built with it): the compilers
# fail,
# and so the fallback without native operators is what is built.
NO_COMPILER = {"CC": "false", "CXX": "false", "CUDACXX": "false"}

INSPECT = """
import importlib, importlib.util, json, sys
modules = ["ensemble_decode"] + [
    "ensemble_decode." + name for name in ("kernels", "kernels.reference", "members.sources", "cli.app")
]
found = {name: importlib.import_module(name).__file__ for name in modules}
beside = ("kernels", "tests", "csrc", "benches", "buildtools")
stray = [name for name in beside if importlib.util.find_spec(name) is not None]
print(json.dumps({"found": found, "stray": stray, "path": sys.path}))
"""


def run_python(code, *, before="", env=None, cwd):
    """Run ``code`` without site, so that no ``.pth`` of the environment that runs the suite is read; its packages are
    there."""
    program = f"import site, sys\n{before}\nsys.path.append({PURELIB!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", program]
        if sys.version_info >= (3, 11)
        else [sys.executable, "-S", "-c", program],
        env=os.environ | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backend(tree, call):
    """Call a hook of the build backend in ``tree``, as an installer does; returns what it returns."""
    code = f"import ensemble_build\nprint('\\nresult:' + ensemble_build.{call})"
    out = run_python(code, before="sys.path.insert(0, 'buildtools')", env=NO_COMPILER, cwd=tree)
    return out.rsplit("result:", 1)[1].strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources: what git tracks, and what it would."""
    copy = tmp_path_factory.mktemp("source") / "repo"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/golden", "docs/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)  # what is left out of a build follows .gitignore
    return copy


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return folder / backend(tree, f"build_wheel({str(folder)!r})")


def sources(tree):
    """Every module that must be in the package, by its path there."""
    files = {path.relative_to(tree).as_posix() for path in (tree / "ensemble_decode").rglob("*.py")}
    return files | {"ensemble_decode/" + path.relative_to(tree).as_posix() for path in (tree / "kernels").rglob("*.py")}


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_without_a_compiler_is_whole_and_pure(tree, wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.endswith(".py")} == sources(tree)
    assert {name.split("/")[0] for name in names} == {"ensemble_decode", "ensemble_decode-0.1.0.dist-info"}


def test_wheel_imports_kernels_inside_the_package_alone(wheel, tmp_path):
    site = unpack(wheel, tmp_path / "site")
    seen = json.loads(run_python(INSPECT, before=f"sys.path.insert(0, {str(site)!r})", cwd=tmp_path))
    assert seen["stray"] == []
    assert Path(seen["found"]["ensemble_decode.kernels"]) == site / "ensemble_decode" / "kernels" / "__init__.py"


def test_metadata_prepared_without_compiling_is_the_wheels(tree, wheel, tmp_path):
    info = backend(tree, f"prepare_metadata_for_build_wheel({str(tmp_path)!r})")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("METADATA", "entry_points.txt"):
            assert (tmp_path / info / name).read_bytes() == archive.read(f"{info}/{name}")


def test_sdist_builds_the_same_wheel(tree, wheel, tmp_path):
    archive = tmp_path / backend(tree, f"build_sdist({str(tmp_path)!r})")
    with tarfile.open(archive) as sdist:
        # Python 3.10 and 3.11 learned of filters in a minor release
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        sdist.extractall(tmp_path / "unpacked", **filters)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "csrc").is_dir()
    assert (unpacked / "CMakeLists.txt").is_file()
    rebuilt = tmp_path / backend(unpacked, f"build_wheel({str(tmp_path)!r})")
    assert set(zipfile.ZipFile(rebuilt).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_editable_install_exposes_the_package_and_nothing_beside_it(tree, tmp_path):
    site = unpack(tmp_path / backend(tree, f"build_editable({str(tmp_path)!r})"), tmp_path / "site")
    before = f"site.addsitedir({str(site)!r})"  # reads the .pth file, as at every start of Python
    seen = json.loads(run_python(INSPECT, before=before, cwd=tmp_path))
    assert seen["stray"] == []
    assert not [entry for entry in seen["path"] if entry and Path(entry).is_relative_to(tree.parent)]
    assert Path(seen["found"]["ensemble_decode.kernels"]) == tree / "kernels" / "__init__.py"
    assert Path(seen["found"]["ensemble_decode"]) == tree / "ensemble_decode" / "__init__.py"

    late = [tree / "ensemble_decode" / "added_later.py", tree / "kernels" / "added_later.py"]
    folder = tree / "ensemble_decode" / "added_folder"
    try:
        for path in late:
            path.write_text("here = __file__\n")
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "part.py").write_text("here = __file__\n")
        code = (
            "from ensemble_decode import added_later as a\nfrom ensemble_decode.kernels import added_later as b\n"
            "from ensemble_decode.added_folder import part as c\nprint(a.here, b.here, c.here)"
        )
        out = run_python(code, before=before, cwd=tmp_path).split()
        assert out == [*map(str, late), str(folder / "part.py")]
    finally:
        for path in late:
            path.unlink()
        shutil.rmtree(folder)


def test_editable_wheel_record_matches_its_files(tree, tmp_path):
    import base64
    import hashlib

    with zipfile.ZipFile(tmp_path / backend(tree, f"build_editable({str(tmp_path)!r})")) as archive:
        (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
        lines = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
        for name, digest, size in lines:
            if name != record:
                content = archive.read(name)
                sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={sha256}", len(content)), name


def test_this_environment_has_no_top_level_kernels(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import importlib.util as u, ensemble_decode.kernels; assert u.find_spec('kernels') is None",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_python_started_in_a_checkout_works():
    """There the folder `kernels` can be imported under its own name, and transformers does so."""
    code = """
import kernels as folder
from transformers import PreTrainedModel
from ensemble_decode import Ensemble, kernels
assert kernels.topk_stats and not hasattr(folder, "topk_stats")
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_sources_are_python_3_10():
    for folder in ("ensemble_decode", "kernels", "buildtools"):
        sources = list((ROOT / folder).rglob("*.py"))
        assert sources, folder
        for path in sources:
            ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))
