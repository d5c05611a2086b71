"""What a round of SpecFuse costs, against its own forwards and against running every prefix again; alternating in one
process.

    python benches/bench_specfuse.py round         # a round / its drafting and scoring forwards
    python benches/bench_specfuse.py candidates    # scoring M candidates / scoring one; a tree, extra rows, one by one
    python benches/bench_specfuse.py batch         # tokens per second at batch 32 / batch 1
    python benches/bench_specfuse.py growth        # time of a round as the text grows; every prefix anew beside it

Medians and ratios only. `--clock cpu` counts processor time: with `--threads 1` the steadier one on a busy machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from unittest.mock import patch

import torch

import ensemble_decode as ed
from ensemble_decode import kernels
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.members.tree import Tree
from ensemble_decode.methods import StepContext
from ensemble_decode.methods.specfuse import method as specfuse
from ensemble_decode.methods.specfuse.scoring import Ballot, View
from ensemble_decode.vocab.common_prefix import common_prefix

TEXT = "The old lighthouse keeper climbed the stairs and looked out over the grey water of the bay. "
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def alternating(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each side, run in turn; the first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, run in sides.items():
            began = clock()
            run()
            if turn:
                times[name].append(clock() - began)
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> str:
    values = sorted(a / b for a, b in zip(times[name], times[base], strict=True))
    quarter = len(values) // 4
    return f"{statistics.median(values):5.2f} ({values[quarter]:.2f} to {values[-1 - quarter]:.2f})"


def some_ids(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000, 5000) for _ in range(count)]


# -- a round against its forwards --------------------------------------------------------------------------------


def bench_round(ensemble: ed.Ensemble, options: argparse.Namespace) -> None:
    """A round of one row, and next to it nothing but the forwards that it cannot do without, through the same
    runners."""
    length, models = options.segment_length, len(ensemble.runners)
    method = ed.SpecFuse(segment_length=length, exit_threshold=0.0, trim="none")
    counting = ", ".join(map(str, range(1, 40)))  # a text that models go on with
    stream = ensemble.stream(counting, method=method, max_new_tokens=(options.repeats + 4) * 2 * length)
    next(stream)
    slots = [runner.acquire() for runner in ensemble.runners]
    for runner, slot in zip(ensemble.runners, slots, strict=True):
        runner.extend([slot], [some_ids(80 + length, 0)], "none")

    def forwards() -> None:
        for runner, slot in zip(ensemble.runners, slots, strict=True):
            for token in some_ids(length, 9):
                runner.extend([slot], [[token]], "last")
            tree = Tree()
            for c in range(models - 1):
                for node in tree.add(80 + 2 * length - 1, some_ids(length - 1, c + 1)):
                    tree.want(node)
            runner.read_trees([slot], [tree])
            runner.rollback(slot, 80 + length)

    times = alternating({"round": lambda: next(stream), "forwards": forwards}, options.repeats)
    stream.close()
    print(f"round of {length} tokens, {models} models / sum of all models' {length} drafting and 1 scoring forwards")
    print(f"  {ratio(times, 'round', 'forwards')}")


# -- the forward that scores -------------------------------------------------------------------------------------


def copy_prefix(runner: Runner, ids: Sequence[int], slots: Sequence[int]) -> None:
    """Begin every slot with ``ids``, which another slot holds."""
    for slot in slots:
        runner.rollback(slot, 0)
        assert runner.take_over(slot, [*ids, 0]) == len(ids)


def bench_candidates(ensemble: ed.Ensemble, options: argparse.Namespace) -> None:
    """M candidates that share no beginning, over one cached prefix at batch 1."""
    length = options.segment_length
    for runner in ensemble.runners:
        for prefix in options.prefix:
            ids = some_ids(prefix, 0)
            runner.forget()
            held = runner.acquire([])
            others = [runner.acquire([]) for _ in range(max(options.candidates))]
            runner.reserve(1 + len(others), prefix + (1 + max(options.candidates)) * length)
            runner.extend([held], [ids], "none")
            sides: dict[str, Callable[[], object]] = {}

            def tree(count: int, held: int = held, runner: Runner = runner, prefix: int = prefix) -> None:
                made = Tree()
                for c in range(count):
                    for node in made.add(prefix, some_ids(length, c + 1)):
                        made.want(node)
                runner.read_trees([held], [made])

            def rows(count: int, ids: list[int] = ids, runner: Runner = runner, others: list[int] = others) -> None:
                copy_prefix(runner, ids, others[:count])
                runner.extend(others[:count], [some_ids(length, c + 1) for c in range(count)], "all")

            def singly(count: int, held: int = held, runner: Runner = runner, prefix: int = prefix) -> None:
                for c in range(count):
                    runner.extend([held], [some_ids(length, c + 1)], "all")
                    runner.rollback(held, prefix)

            for count in options.candidates:
                sides[f"tree {count}"] = lambda count=count: tree(count)  # type: ignore[misc]
                sides[f"rows {count}"] = lambda count=count: rows(count)  # type: ignore[misc]
                sides[f"singly {count}"] = lambda count=count: singly(count)  # type: ignore[misc]
            times = alternating(sides, options.repeats)
            print(f"{runner.name}: candidates of {length} tokens behind {prefix}, time / the tree of one candidate")
            for count in options.candidates:
                parts = [f"{kind} {ratio(times, f'{kind} {count}', 'tree 1')}" for kind in ("tree", "rows", "singly")]
                print(f"  {count}: " + "   ".join(parts))
            for slot in [held, *others]:
                runner.release(slot)


# -- batches -----------------------------------------------------------------------------------------------------


def bench_batch(ensemble: ed.Ensemble, options: argparse.Namespace) -> None:
    prompts = [f"{TEXT}Page {n} of the log book says:" for n in range(32)]
    method = ed.SpecFuse(segment_length=options.segment_length)

    def rate(batch: list[str]) -> float:
        began = clock()
        rows = ensemble.generate(batch, method=method, max_new_tokens=options.tokens, batch_size=len(batch))
        return sum(len(row.token_ids) for row in rows) / (clock() - began)

    rate(prompts[:1])
    values = []
    for turn in range(options.repeats):
        one = statistics.mean(rate([prompts[(7 * turn + n) % 32]]) for n in range(2))
        values.append(rate(prompts) / one)
    print(f"tokens/s at batch 32 / batch 1: {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")


# -- growth ------------------------------------------------------------------------------------------------------


def score_from_scratch(context: StepContext, ballots: Sequence[Ballot]) -> None:
    """As the published implementation scores: one forward of the whole text per model and candidate, nothing cached."""
    for ballot in ballots:
        row = ballot.row
        for m in ballot.active:
            views = []
            for candidate in ballot.candidates:
                ids = row.spell(m, bytes(row.data) + candidate.text)
                shared = common_prefix(row.ids[m], ids)
                targets = ids[shared:] + [kernels.TARGET_END] * candidate.ended
                context.roll_back(m, row, 0)
                whole = row.prompt(m) + ids
                logits = context.extend(m, [row], [whole], [len(ids) - shared + 1]).values[: len(targets)]
                told = torch.tensor(targets, dtype=torch.int32)
                judged = kernels.verify_draft(logits, told, context.tensors.allowed[m], context.tensors.eos_ids[m])
                views.append(View(judged.target_prob.tolist(), 0))
            ballot.views.append(views)
            context.roll_back(m, row, 0)


def bench_growth(ensemble: ed.Ensemble, options: argparse.Namespace) -> None:
    """Time and tokens of one round behind texts of growing length."""
    method = ed.SpecFuse(segment_length=options.segment_length, exit_threshold=0.0)

    def one_round(words: int) -> tuple[float, int]:
        stream = ensemble.stream(TEXT * words, method=method, max_new_tokens=8 * options.segment_length)
        next(stream)
        tokens = sum(runner.stats.tokens for runner in ensemble.runners)
        began = clock()
        next(stream)
        took = clock() - began
        stream.close()
        return took, sum(runner.stats.tokens for runner in ensemble.runners) - tokens

    one_round(1)
    print("sentences of text: seconds and tokens of a round, ours | every prefix anew (relative to the shortest text)")
    base = None
    for words in options.sentences:
        ours, anew = [], []
        for _ in range(options.repeats):
            ours.append(one_round(words))
            with patch.object(specfuse, "score", score_from_scratch):
                anew.append(one_round(words))
        one, other = (statistics.median(t for t, _ in side) for side in (ours, anew))
        base = base or (one, other)
        print(
            f"  {words:4}: ours x {one / base[0]:5.2f}, {ours[0][1]:6} tokens | anew x {other / base[1]:5.2f}, "
            f"{anew[0][1]:6} tokens | anew / ours {other / one:6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["round", "candidates", "batch", "growth"])
    parser.add_argument("--models", nargs="*", default=["demo:smollm2", "demo:gemma3"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--segment-length", type=int, default=10)
    parser.add_argument("--candidates", type=int, nargs="*", default=[1, 2, 3, 7])
    parser.add_argument("--prefix", type=int, nargs="*", default=[128, 1024])
    parser.add_argument("--sentences", type=int, nargs="*", default=[2, 8, 32])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    if options.threads:
        torch.set_num_threads(options.threads)
    ensemble = ed.Ensemble.load(options.models, dtype=options.dtype)
    print(
        f"{', '.join(options.models)}, {ensemble.runners[0].dtype}, {torch.get_num_threads()} threads, "
        f"{options.clock} clock"
    )
    parts = {"round": bench_round, "candidates": bench_candidates, "batch": bench_batch, "growth": bench_growth}
    parts[options.part](ensemble, options)


if __name__ == "__main__":
    main()
