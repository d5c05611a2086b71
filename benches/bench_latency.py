"""Measure everything and write docs/benchmarks/latency.md: `make bench`, a quarter of an hour on two cores.

    python benches/bench_latency.py docs/benchmarks --json run.json --html run.html
    python benches/bench_latency.py docs/benchmarks --record run.json       # writes the page of an earlier run again

Needs the extra ``plot``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from latency.page import write_page
from latency.run import SUITES, measure_all

from ensemble_decode.bench.plots import require
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.setup import load_bench, set_threads
from ensemble_decode.members.transformers.remarks import quiet_libraries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where latency.md and its plots go")
    parser.add_argument("--models", nargs="*", default=["demo:smollm2", "demo:gemma3"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="torch threads of every configuration")
    parser.add_argument("--json", type=Path, help="write the record of the run")
    parser.add_argument("--html", type=Path, help="also write everything on one self-contained page")
    parser.add_argument("--record", type=Path, help="measure nothing: write the page of a record that --json wrote")
    parser.add_argument("--skip", nargs="*", default=[], choices=SUITES, help="suites to leave out")
    parser.add_argument("--quick", action="store_true", help="smallest sizes only, to see that all of it runs")
    options = parser.parse_args()
    require()
    if options.record is not None:
        record = Record.read(options.record)
        if "minutes" not in record.parts:
            parser.error(f"{options.record}: not a record of this script")
    else:
        quiet_libraries()
        set_threads(options.threads)
        bench = load_bench(options.models, options.dtype, options.device)
        record = measure_all(bench, print, quick=options.quick, skip=options.skip, save=options.json)
    print(f"wrote {write_page(record, options.folder, options.html)}")


if __name__ == "__main__":
    main()
