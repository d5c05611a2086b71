"""Where SAFE ensembles, and what it avoids (arXiv 2510.15346, sections 3 and 5), on the demo models.

    python benches/safe_shares.py

Prints, over a few prompts: the share of tokens that a fusion chose, the share of draft positions that were not safe, how
much of the drafts stood; and the text of one prompt where ensembling at every token breaks down and SAFE does not.
"""

from __future__ import annotations

import argparse

import ensemble_decode as ed

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Question: A farmer has 12 cows and buys 7 more. How many cows are there now?\nAnswer:",
    "Die Hauptstadt von Deutschland ist",
    "1, 1, 2, 3, 5, 8,",
    "Once upon a time there was",
]
BREAKS = "def fibonacci(n):\n"


def blank_lines(text: str) -> float:
    lines = text.split("\n")
    return sum(not line.strip() for line in lines) / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--models", nargs="*", default=["demo:smollm2", "demo:gemma3"])
    options = parser.parse_args()
    for models in (options.models, options.models[::-1]):
        ensemble = ed.Ensemble.load(models, dtype=options.dtype)
        print(f"\nprimary {models[0]}")
        for name, method in (("SAFE, n = 5", ed.SAFE()), ("SAFE, auto", ed.SAFE(draft_length="auto"))):
            rows = ensemble.generate(PROMPTS, method=method, max_new_tokens=options.tokens)
            total = {k: sum(getattr(r.stats, k) for r in rows) for k in ("drafted", "accepted", "ensembled", "unsafe")}
            tokens = sum(len(r.token_ids) for r in rows)
            print(
                f"  {name}: {100 * total['ensembled'] / tokens:.0f} % of {tokens} tokens ensembled, "
                f"{100 * total['unsafe'] / total['drafted']:.0f} % of draft positions not safe, "
                f"{100 * total['accepted'] / total['drafted']:.0f} % of drafted tokens stood"
            )
        for name, method in (("UniTE, every token", ed.UniTE()), ("SAFE", ed.SAFE())):
            (row,) = ensemble.generate(BREAKS, method=method, max_new_tokens=options.tokens)
            print(f"  {name}: {100 * blank_lines(row.text):.0f} % blank lines: {row.text[:160]!r}")


if __name__ == "__main__":
    main()
