"""What ensembling costs per token: methods against the models' own decode steps, alternating in one process.

    python benches/bench_decode.py            # bfloat16 and float32, both methods
    python benches/bench_decode.py --dtype bfloat16 --method safe --tokens 24 --rounds 2

Prints ratios of medians: absolute times of a shared CPU mean nothing to anybody else. "Decode only" leaves out the
first round of each run, in which the prompts are read.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from decode_pace import Forward, Pace, generation, in_turn, middle, own_steps, pace, table

import ensemble_decode as ed
from ensemble_decode.members.transformers.loading import LoadedModel, load_all

PROMPT = "Question: A farmer has 12 cows and buys 7 more. How many cows does the farmer have now?\nAnswer:"
PROMPTS = [
    f"Question: A farmer has {n} cows and buys {n // 2 + 1} more. How many cows does the farmer have now?\nAnswer:"
    for n in range(3, 35)
]
MIXED = ["The old lighthouse keeper climbed the stairs and", "def fibonacci(n):\n", "1, 2, 4, 8, 16, 32,"]
LENGTHS = (3, 5, 8)


def unite(ensemble: ed.Ensemble, originals: list[LoadedModel], dtype: str, options: argparse.Namespace) -> None:
    tokens, models = options.tokens, range(len(originals))
    variants: dict[str, Any] = {f"own {m}": own_steps(entry, PROMPT, tokens) for m, entry in enumerate(originals)}
    variants |= {f"single {m}": generation(ensemble, [PROMPT], ed.Single(m), tokens) for m in models}
    variants["unite 1"] = generation(ensemble, [PROMPT], ed.UniTE(), tokens)
    variants["unite 32"] = generation(ensemble, PROMPTS, ed.UniTE(), tokens)
    variants["pace 1"] = lambda: pace(ensemble, [PROMPT], ed.UniTE(), 2 * tokens, tokens)
    variants["pace 32"] = lambda: pace(ensemble, PROMPTS, ed.UniTE(), 2 * tokens, max(3, tokens // 4))
    kept = in_turn(variants, options.rounds)
    table(
        f"UniTE, {dtype}, {tokens} tokens, {torch.get_num_threads()} threads, medians of {options.rounds} "
        "alternating rounds",
        [
            (
                "time per token, batch 1 / sum of the models' own transformers steps",
                middle([k["unite 1"] / sum(k[f"own {m}"] for m in models) for k in kept]),
                "<= 1.15",
            ),
            (
                "time per token, batch 1 / sum of the models alone in this loop",
                middle([k["unite 1"] / sum(k[f"single {m}"] for m in models) for k in kept]),
                "",
            ),
            (
                "tokens/s at batch 32 / batch 1, prompts included",
                middle([k["unite 1"] / k["unite 32"] for k in kept]),
                "",
            ),
            (
                "tokens/s at batch 32 / batch 1, decode only",
                middle([k["pace 32"].rate / k["pace 1"].rate for k in kept]),
                ">= 8",
            ),
        ],
    )


def bound(run: Pace, draft: float, verify: float) -> float:
    """Seconds per token of the drafted tokens' steps and one verification a round, and nothing else."""
    return (run.drafted * draft + run.rounds * verify) / run.tokens


def safe(ensemble: ed.Ensemble, originals: list[LoadedModel], dtype: str, options: argparse.Namespace) -> None:
    tokens, auto = options.tokens, ed.SAFE(draft_length="auto")
    methods = {f"{n}": ed.SAFE(draft_length=n) for n in LENGTHS} | {"auto": auto, "unite": ed.UniTE()}
    context = MIXED[0] * 4
    forwards = {"draft": Forward(ensemble.runners[0], originals[0], context, 1)}
    forwards |= {f"verify {n}": Forward(ensemble.runners[1], originals[1], context, n) for n in LENGTHS}

    def over_prompts(method: Any) -> Pace:
        return sum((pace(ensemble, [text], method, tokens) for text in MIXED), Pace())

    variants: dict[str, Any] = {}
    for name, method in methods.items():
        variants[name] = lambda method=method: over_prompts(method)
        # beside every method, so that what slows the machine for a while slows both sides of a ratio
        for what, forward in forwards.items():
            if name.isdigit() and what in ("draft", f"verify {name}"):
                variants[f"{what} of {name}"] = lambda f=forward: [
                    middle([side() for _ in range(5)])[0] for side in (f.ours, f.theirs)
                ]
    variants["one"] = lambda: pace(ensemble, [PROMPT], methods["5"], 2 * tokens, 6)
    variants["many"] = lambda: pace(ensemble, PROMPTS, methods["5"], 64, 2)
    for texts, most in (([PROMPT], 2), (PROMPTS, 1)):  # to warm up
        pace(ensemble, texts, methods["5"], 64, most)
    kept: list[dict[str, Any]] = in_turn(variants, options.rounds, warm_up=False)
    for forward in forwards.values():
        forward.close()

    rows: list[tuple[str, tuple[float, float], str]] = []
    for side, where, limit in ((0, "in this runner", "<= 1.15"), (1, "in transformers", "")):
        for n in LENGTHS:
            ratios = [
                k[f"{n}"].per_token / bound(k[f"{n}"], k[f"draft of {n}"][side], k[f"verify {n} of {n}"][side])
                for k in kept
            ]
            rows.append((f"n = {n}: time per token / (n t_draft + t_verify(n)) {where}", middle(ratios), limit))
    best = min(LENGTHS, key=lambda n: middle([k[f"{n}"].per_token for k in kept])[0])
    for n in LENGTHS:
        ratios = [k["auto"].per_token / k[f"{n}"].per_token for k in kept]
        mark = ", the best" if n == best else ""
        rows.append((f"auto / n = {n}{mark}", middle(ratios), "<= 1"))
    rows += [
        ("auto / UniTE", middle([k["auto"].per_token / k["unite"].per_token for k in kept]), ""),
        (
            "n = 5: tokens/s at batch 32 / batch 1, decode only",
            middle([k["many"].rate / k["one"].rate for k in kept]),
            ">= 5",
        ),
        ("n = 5: host work at batch 32, % of the time", middle([100 * k["many"].host_share for k in kept]), "< 5"),
        ("n = 5: host work at batch 1, % of the time", middle([100 * k["one"].host_share for k in kept]), ""),
    ]
    table(
        f"SAFE, {dtype}, decode only, {tokens} tokens of each of {len(MIXED)} prompts, "
        f"{torch.get_num_threads()} threads, "
        f"medians of {options.rounds} alternating rounds",
        rows,
    )
    for name in [f"{n}" for n in LENGTHS] + ["auto"]:
        run = kept[0][name]
        print(
            f"  {name:>4}: {run.tokens / run.rounds:.2f} tokens a round; {run.drafted} drafted for {run.tokens}, "
            f"{run.drafted - run.accepted} thrown away; {100 * run.ensembled / run.tokens:.0f} % of tokens ensembled"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="*", default=["bfloat16", "float32"])
    parser.add_argument("--method", nargs="*", default=["unite", "safe"], choices=["unite", "safe"])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["demo:smollm2", "demo:gemma3"])
    options = parser.parse_args()
    for dtype in options.dtype:
        ensemble = ed.Ensemble.load(options.models, dtype=dtype)
        originals = load_all(options.models, dtype=dtype)
        for name in options.method:
            {"unite": unite, "safe": safe}[name](ensemble, originals, dtype, options)


if __name__ == "__main__":
    main()
