"""What `draft_length="auto"` gains over fixed lengths: work thrown away and time per token, on three kinds of text.

    python benches/safe_lengths.py

Counts are those of real runs of SAFE. Time is theirs priced at batch 1: drafted tokens times the primary's step, rounds
times the verifier's forward of the mean draft, both measured here in the same process; `bench_decode.py --method safe`
has the clock's word on it. The prompts are none of those that the rule was tuned on.
"""

from __future__ import annotations

import argparse
import time

import torch
from decode_pace import middle

import ensemble_decode as ed
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.methods.safe.draft_lengths import LONGEST

KINDS = {
    "English": [
        "Dear Mrs Brown,\n\nThank you for your letter of the",
        "Photosynthesis is the process by which plants",
        "My grandmother always told me that the secret of a good soup",
    ],
    "code": [
        "import os\n\ndef list_files(folder):\n",
        "class Point {\n    constructor(x, y) {\n",
        "#!/bin/bash\n\nfor file in *.txt; do\n",
    ],
    "numbers": [
        "10, 20, 30, 40, 50, 60,",
        "Invoice\n\n2 x 3.50 = 7.00\n4 x 1.25 =",
        "Question: A train leaves at 9:15 and arrives at 11:40. How many minutes does the journey take?\nAnswer:",
    ],
}
LENGTHS: list[int | str] = [1, 2, 3, 4, 5, 8, "auto"]
CONTEXT = 40


def seconds(runner: Runner, width: int, repeats: int = 7) -> float:
    """Median seconds of a forward of ``width`` new tokens behind 40 others."""
    slot = runner.acquire()
    runner.extend([slot], [list(range(5, 5 + CONTEXT))], "none")
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        runner.extend([slot], [[7] * width], "all")
        taken.append(time.perf_counter() - began)
        runner.rollback(slot, CONTEXT)
    runner.release(slot)
    return middle(taken[1:])[0]


def between(times: dict[int, float], width: float) -> float:
    """A forward's time at a mean width, by the line between its neighbours."""
    low = int(width)
    return times[low] + (times[min(low + 1, LONGEST)] - times[low]) * (width - low)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--models", nargs=2, default=["demo:smollm2", "demo:gemma3"])
    options = parser.parse_args()
    ensemble = ed.Ensemble.load(options.models, dtype=options.dtype)
    draft = seconds(ensemble.runners[0], 1)
    verify = {n: seconds(ensemble.runners[1], n) for n in range(1, LONGEST + 1)}
    print(
        f"{options.models[0]} drafts, {options.models[1]} reads; {options.dtype}, {torch.get_num_threads()} "
        "threads. One verification / one "
        f"draft step: {', '.join(f'n = {n}: {verify[n] / draft:.2f}' for n in (1, 3, 5, 8, 16))}"
    )
    costs: dict[str, dict[int | str, float]] = {}
    for kind, prompts in KINDS.items():
        costs[kind] = {}
        for length in LENGTHS:
            rows = ensemble.generate(prompts, method=ed.SAFE(draft_length=length), max_new_tokens=options.tokens)
            rounds, drafted, accepted = (
                sum(getattr(r.stats, k) for r in rows) for k in ("rounds", "drafted", "accepted")
            )
            tokens = sum(len(row.token_ids) for row in rows)
            costs[kind][length] = (drafted * draft + rounds * between(verify, drafted / rounds)) / tokens
            print(
                f"  {kind:8} n = {length!s:5} {drafted / rounds:5.1f} drafted and {tokens / rounds:4.1f} kept a round; "
                f"{100 * (drafted - accepted) / drafted:3.0f} % of drafts thrown away; "
                f"{costs[kind][length] / costs[kind][LENGTHS[0]]:.2f} of the time of n = 1"
            )
    for kind, cost in costs.items():
        best = min((n for n in LENGTHS if n != "auto"), key=lambda n: cost[n])
        print(f"auto / best fixed length, {kind} (n = {best}): {cost['auto'] / cost[best]:.2f}")
    total = {n: sum(cost[n] for cost in costs.values()) for n in LENGTHS}
    best = min((n for n in LENGTHS if n != "auto"), key=lambda n: total[n])
    print(f"auto / best fixed length for all (n = {best}): {total['auto'] / total[best]:.2f}")


if __name__ == "__main__":
    main()
