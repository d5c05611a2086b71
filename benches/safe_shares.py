"""Where SAFE ensembles, and what it avoids (arXiv 2510.15346, sections 3 and 5), on the demo models.

    python benches/safe_shares.py

Prints, over a few prompts: the share of tokens that a fusion chose, the share of draft positions that were not safe,
how much of the drafts stood; and what each method writes after a prompt where ensembling at every token can break down
into blank lines.
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
METHODS = {
    "UniTE at every token": ed.UniTE(),
    "GaC at every token": ed.GaC(threshold=1),
    "SAFE, not sharpened": ed.SAFE(sharpen=ed.Sharpen("none")),
    "SAFE, prefix": ed.SAFE(),
    "SAFE, geometric": ed.SAFE(sharpen=ed.Sharpen("geometric")),
    "SAFE over GaC": ed.SAFE(base=ed.GaC(), sharpen=ed.Sharpen("none")),
}


def blank_lines(text: str) -> float:
    lines = text.split("\n")
    return sum(not line.strip() for line in lines) / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--prompt", default="def fibonacci(n):\n", help="for the texts of all methods")
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
        for name, method in METHODS.items():
            (row,) = ensemble.generate(options.prompt, method=method, max_new_tokens=options.tokens)
            print(f"  {name:24} {100 * blank_lines(row.text):3.0f} % blank lines: {row.text[:64]!r}")


if __name__ == "__main__":
    main()
