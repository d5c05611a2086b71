"""Install the wheel of ``dist/`` where nothing can be compiled, and run the README's first example there.

    python buildtools/check_wheel.py [--python PYTHON] [--operators native|reference]

The environment is new: its packages come from the package index within ``constraints.txt``, the package itself from the
wheel that fits the interpreter. ``PATH`` holds no compiler, no cmake and no CUDA. The example must load the native
operators and write text; the demo models are downloaded on first use.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "nvcc")

QUICKSTART = """
import sys
import ensemble_decode as ed
from ensemble_decode import kernels

assert sys.prefix in ed.__file__, ed.__file__
chosen = kernels.status()["fuse_step"]["auto"]["cpu"]
assert chosen == EXPECTED, f"the wheel's operators on a CPU: {chosen}, expected {EXPECTED}"
ensemble = ed.Ensemble.load(["demo:smollm2", "demo:gemma3"])
done = ensemble.generate("Water boils at", method=ed.UniTE(top_k=10), max_new_tokens=16)
assert done[0].error is None and len(done[0].token_ids) == 16, done[0]
print("Water boils at" + done[0].text)
"""


def main() -> None:
    """Find the one wheel that fits, install it, run the example and the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the new environment")
    parser.add_argument("--operators", default="native", help="which implementation the wheel must choose on a CPU")
    given = parser.parse_args()
    python = given.python
    wheels = sorted((ROOT / "dist").glob("ensemble_decode-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit("dist/ holds no wheel: run `make wheel` first")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        subprocess.run([python, "-m", "venv", str(where / "venv")], check=True)
        bare = where / "bin"  # links to the few programs that pip and Python may want, and to no compiler
        bare.mkdir()
        for name in ("sh", "env", "uname", "ldconfig"):
            for place in ("/bin", "/usr/bin", "/sbin", "/usr/sbin"):
                if not (bare / name).exists() and Path(place, name).exists():
                    (bare / name).symlink_to(Path(place, name))
        environment = os.environ | {
            "PATH": f"{where / 'venv' / 'bin'}{os.pathsep}{bare}",
            "CUDA_HOME": "",
            "CC": "false",
        }
        environment.pop("PYTHONPATH", None)

        def run(*command: str) -> None:
            subprocess.run(command, check=True, cwd=where, env=environment)

        for tool in TOOLS:
            found = subprocess.run(["sh", "-c", f"command -v {tool}"], env=environment, capture_output=True, text=True)
            if found.returncode == 0:
                raise SystemExit(f"{tool} can still be found ({found.stdout.strip()}): the check would prove nothing")
        pip = (str(where / "venv" / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        limits = ("--no-compile", "-c", str(ROOT / "constraints.txt"))
        run(*pip, *limits, "torch")
        run(*pip, *limits, "--only-binary", "ensemble-decode", f"{wheels[-1]}[demo]")
        run(str(where / "venv" / "bin" / "python"), "-c", f"EXPECTED = {given.operators!r}\n{QUICKSTART}")
        run(str(where / "venv" / "bin" / "ensemble-decode"), "info")
    print(f"{wheels[-1].name} works without compiler, cmake or CUDA")


if __name__ == "__main__":
    main()
