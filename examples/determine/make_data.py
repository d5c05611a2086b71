"""Write dev.jsonl: arithmetic, completion and multiple-choice questions with known answers, for `ensemble-decode
determine`.

    python examples/determine/make_data.py [FILE] [ITEMS PER KIND]

The same arguments give the same file. Each prompt shows two solved questions of its kind, so that models answer in the
same form.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

GROUPS = {
    "animal": ["horse", "tiger", "rabbit", "eagle", "whale", "goat", "spider", "wolf"],
    "fruit": ["apple", "banana", "cherry", "grape", "lemon", "peach", "mango", "plum"],
    "colour": ["red", "green", "yellow", "purple", "orange", "brown", "pink", "grey"],
    "tool": ["hammer", "saw", "drill", "wrench", "shovel", "chisel", "screwdriver", "axe"],
    "country": ["France", "Brazil", "Japan", "Egypt", "Canada", "India", "Norway", "Peru"],
}
RUNS = [
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"],
    ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
]


def arithmetic(rng: random.Random) -> dict:
    a, b = rng.randint(1, 12), rng.randint(1, 9)
    sign, answer = rng.choice([("+", a + b), ("+", a + b), ("-", a - b)])
    return {
        "prompt": "Question: What is 4 + 9?\nAnswer: 13\n\nQuestion: What is 8 - 3?\nAnswer: 5\n\n"
        f"Question: What is {a} {sign} {b}?\nAnswer:",
        "answer": answer,
        "grader": "numeric:first",
    }


def completion(rng: random.Random) -> dict:
    run = rng.choice(RUNS)
    start = rng.randrange(len(run) - 3)
    shown, answer = run[start : start + 3], run[start + 3]
    return {"prompt": f"{', '.join(shown)},", "answer": rf"^\s*{answer}\b", "grader": "regex"}


def choice(rng: random.Random) -> dict:
    wanted, *others = rng.sample(sorted(GROUPS), 3)
    options = [(rng.choice(GROUPS[group]), group == wanted) for group in (wanted, *others)]
    rng.shuffle(options)
    lines = "\n".join(f"{letter}) {word}" for letter, (word, _) in zip("ABC", options, strict=True))
    article = "an" if wanted[0] in "aeiou" else "a"
    return {
        "prompt": (
            "Which of these is a month?\nA) chair\nB) river\nC) July\nAnswer: C\n\n"
            "Which of these is a metal?\nA) silk\nB) iron\nC) bread\nAnswer: B\n\n"
            f"Which of these is {article} {wanted}?\n{lines}\nAnswer:"
        ),
        "answer": "ABC"[[right for _, right in options].index(True)],
        "grader": "choice",
    }


def items(per_kind: int, seed: int = 0) -> Iterator[dict]:
    """Different prompts only, at most ``per_kind`` of each."""
    rng = random.Random(seed)
    for kind in (arithmetic, completion, choice):
        seen: set[str] = set()
        for _ in range(100 * per_kind):  # there are few runs of words: a large PER KIND may come out smaller
            if len(seen) == per_kind:
                break
            item = kind(rng)
            if item["prompt"] not in seen:
                yield {"id": f"{kind.__name__}-{len(seen)}", **item}
                seen.add(item["prompt"])


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "dev.jsonl")
    made = list(items(int(sys.argv[2]) if len(sys.argv) > 2 else 24))
    file.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in made), encoding="utf-8")
    print(f"{file}: {len(made)} items")
