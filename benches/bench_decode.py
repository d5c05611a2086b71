"""What ensembling costs per token: methods against the models' own decode steps, alternating in one process.

    python benches/bench_decode.py            # bf16 and float32, batch 1 and 32; prints ratios of medians
    python benches/bench_decode.py --dtype bfloat16 --method safe --tokens 32

Ratios only: absolute times of a shared CPU mean nothing to anybody else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import ensemble_decode as ed
from ensemble_decode.models import LoadedModel, load_all

PROMPT = "Question: A farmer has 12 cows and buys 7 more. How many cows does the farmer have now?\nAnswer:"
PROMPTS = [
    f"Question: A farmer has {n} cows and buys {n // 2 + 1} more. How many cows does the farmer have now?\nAnswer:"
    for n in range(3, 35)
]


class Meter:
    """Seconds per generated token of several variants, run in turn."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.seconds: dict[str, list[float]] = {}

    def run(self, variants: dict[str, Callable[[], int]]) -> None:
        for work in variants.values():
            work()
        for _ in range(self.rounds):
            for name, work in variants.items():
                began = time.perf_counter()
                tokens = work()
                self.seconds.setdefault(name, []).append((time.perf_counter() - began) / tokens)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, *parts: str) -> tuple[float, float]:
        """Median over rounds of name / sum of parts, with the half-width of its interquartile range."""
        values = sorted(
            x / sum(ys) for x, *ys in zip(self.seconds[name], *(self.seconds[p] for p in parts), strict=True)
        )
        n = len(values)
        return statistics.median(values), (values[(3 * n) // 4] - values[n // 4]) / 2


def generation(ensemble: ed.Ensemble, prompts: list[str], method: object, tokens: int) -> Callable[[], int]:
    """Generate with the ensemble; returns the number of tokens it made."""

    def work() -> int:
        rows = ensemble.generate(prompts, method=method, max_new_tokens=tokens, batch_size=len(prompts))
        return sum(len(row.token_ids) for row in rows)

    return work


def own_steps(entry: LoadedModel, prompt: str, tokens: int, width: int = 1) -> Callable[[], int]:
    """A model's own decode steps through transformers with its own cache, ``width`` tokens a step, prefill included."""
    ids = torch.tensor([entry.tokenizer(prompt)["input_ids"]])

    @torch.inference_mode()
    def work() -> int:
        out = entry.model(ids, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        for _ in range(tokens - 1):
            out = entry.model(token.expand(1, width), past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        return tokens

    return work


def table(title: str, rows: list[tuple[str, tuple[float, float], str]]) -> None:
    print(f"\n{title}")
    for name, (value, spread), bound in rows:
        print(f"  {name:66} {value:7.2f} ± {spread:.2f}   {bound}")


def unite(ensemble: ed.Ensemble, originals: list[LoadedModel], dtype: str, tokens: int, rounds: int) -> None:
    meter = Meter(rounds)
    variants = {f"own {m}": own_steps(entry, PROMPT, tokens) for m, entry in enumerate(originals)}
    variants |= {f"single {m}": generation(ensemble, [PROMPT], ed.Single(m), tokens) for m in range(len(originals))}
    variants["unite 1"] = generation(ensemble, [PROMPT], ed.UniTE(), tokens)
    variants["unite 32"] = generation(ensemble, PROMPTS, ed.UniTE(), tokens)
    meter.run(variants)
    own = [f"own {m}" for m in range(len(originals))]
    single = [f"single {m}" for m in range(len(originals))]
    table(
        f"UniTE, {dtype}, {tokens} tokens, {torch.get_num_threads()} threads, medians of {rounds} alternating rounds",
        [
            (
                "time per token, batch 1 / sum of the models' own transformers steps",
                meter.ratio("unite 1", *own),
                "<= 1.15",
            ),
            ("time per token, batch 1 / sum of the models alone in this loop", meter.ratio("unite 1", *single), ""),
            ("tokens/s at batch 32 / tokens/s at batch 1", meter.ratio("unite 1", "unite 32"), ">= 8"),
        ],
    )


def safe(ensemble: ed.Ensemble, originals: list[LoadedModel], dtype: str, tokens: int, rounds: int) -> None:
    meter, lengths = Meter(rounds), (3, 5, 8)
    methods = {f"safe {n}": ed.SAFE(draft_length=n) for n in lengths} | {"safe auto": ed.SAFE(draft_length="auto")}
    variants = {name: generation(ensemble, [PROMPT], method, tokens) for name, method in methods.items()}
    variants |= {"unite": generation(ensemble, [PROMPT], ed.UniTE(), tokens)}
    variants |= {"draft": own_steps(originals[0], PROMPT, tokens)}
    variants |= {f"verify {n}": own_steps(originals[1], PROMPT, max(2, tokens // 4), n) for n in lengths}
    variants["safe 5, batch 32"] = generation(ensemble, PROMPTS, methods["safe 5"], tokens)
    meter.run(variants)
    rows = []
    for n in lengths:
        (done,) = ensemble.generate(PROMPT, method=methods[f"safe {n}"], max_new_tokens=tokens)
        made = len(done.token_ids)
        cost = (done.stats.drafted * meter.median("draft") + done.stats.rounds * meter.median(f"verify {n}")) / made
        rows.append(
            (
                f"n = {n}: time per token / (drafts + one verification a round)",
                (meter.median(f"safe {n}") / cost, 0.0),
                "<= 1.15",
            )
        )
    best = min(lengths, key=lambda n: meter.median(f"safe {n}"))
    rows += [
        (f"auto / best fixed length (n = {best})", meter.ratio("safe auto", f"safe {best}"), "<= 1"),
        ("SAFE, n = 5 / UniTE", meter.ratio("safe 5", "unite"), ""),
        ("tokens/s at batch 32 / tokens/s at batch 1", meter.ratio("safe 5", "safe 5, batch 32"), ">= 5"),
    ]
    table(f"SAFE, {dtype}, {tokens} tokens, medians of {rounds} alternating rounds", rows)
    for name, prompts in (("batch 1", [PROMPT]), ("batch 32", PROMPTS)):
        done = ensemble.generate(prompts, method=methods["safe 5"], max_new_tokens=tokens, batch_size=32)
        host = sum(row.stats.host_seconds for row in done)
        fusion = sum(row.stats.fusion_seconds for row in done)
        forward = sum(sum(row.stats.forward_seconds) for row in done)
        total = host + fusion + forward
        drafted, accepted = (sum(getattr(row.stats, k) for row in done) for k in ("drafted", "accepted"))
        made = sum(len(row.token_ids) for row in done)
        print(
            f"  {name}: host {100 * host / total:.1f} %, fusion {100 * fusion / total:.1f} % of the time; "
            f"{100 * accepted / drafted:.0f} % of drafts stood, {100 * sum(r.stats.ensembled for r in done) / made:.0f} % of tokens ensembled"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--method", nargs="*", default=["unite", "safe"], choices=["unite", "safe"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["demo:smollm2", "demo:gemma3"])
    options = parser.parse_args()
    for dtype in options.dtype:
        ensemble = ed.Ensemble.load(options.models, dtype=dtype)
        originals = load_all(options.models, dtypes=dtype)
        for name in options.method:
            {"unite": unite, "safe": safe}[name](ensemble, originals, dtype, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
