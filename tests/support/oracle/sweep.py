"""Run the oracle over the demo models and keep the results as golden data.

    python tests/support/oracle/sweep.py [--out FOLDER] [--only PART ...] [--limit N] [--check]

One file of JSON lines per part (`single`, `unite`, `gac`, `safe`, `variants`); the first line names weights and
tokenizers by their hashes, each further line is one run, written as soon as it is done. Runs that a file already holds
are skipped; a file made from other weights is refused. A full sweep takes hours on two cores.

A forward pass over a whole text gives the logits after each of its prefixes. So, to save time, the package's own
decoder writes a text first, and the oracle's memo is filled from one pass over it: wherever the oracle then asks for
another sequence of ids, it runs that sequence, and what it decides never depends on the guess.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
MODELS = ("demo:smollm2", "demo:gemma3")
TOKENS = 40
CLOSE = 0.01
SAFE_PROMPTS = 12  # of `support.prompts.TEXTS`, the first ones
# Hashes of today's models and of those that the goldens were made from, where the two give the same ids for every
# golden
# prompt and text. Gemma's tokenizer has its runs of 2 to 31 spaces as added tokens since: longer runs are cut
# otherwise.
SAME_ON_GOLDENS = {"f9e94136569ae217e8d52856502f90f0": "471678c2be94807bae0d078e1d3ba370"}
PARTS = ("single", "unite", "gac", "safe", "variants")


def fingerprint(model, tokenizer) -> str:
    """A hash of weights and tokenizer; the weights as they are in float32."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().contiguous().numpy().data)
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()


def header_of(loaded: list) -> dict:
    """The first line of a golden file made from these models, or from others that mean the same to the goldens."""
    found = (fingerprint(*pair) for pair in loaded)
    return {"models": dict(zip(MODELS, (SAME_ON_GOLDENS.get(name, name) for name in found), strict=True))}


def load_demo() -> list:
    """Both demo models in float32 on the CPU, as (model, tokenizer)."""
    from ensemble_decode.members.transformers.loading import load_all

    return [(m.model, m.tokenizer) for m in load_all(MODELS, device="cpu", dtype="float32")]


def runs_of(part: str) -> Iterator[dict]:
    """Every run of a part: method, settings, order of the models, prompt. Runs that share forwards come together."""
    from support.prompts import TEXTS

    sharpenings = ("none", "prefix", "geometric", "temperature")
    variants = [
        {"method": "unite", "settings": {"aggregate": "geometric"}},
        {"method": "unite", "settings": {"oov": "exclude"}},
        {"method": "unite", "settings": {"top_k": 3}},
        {"method": "unite", "settings": {"weights": [0.8, 0.2]}},
        {"method": "unite", "settings": {"gate": ["max_prob", 0.5]}},
        {"method": "unite", "settings": {"gate": ["kl", 0.1]}},
        {"method": "unite", "settings": {"gate": ["js", 0.1]}},
        {
            "method": "safe",
            "settings": {"draft_length": 5, "base": "unite", "weights": [0.3, 0.7], "sharpen": "prefix"},
        },
        {"method": "safe", "settings": {"draft_length": 4, "base": "unite", "gate": ["js", 0.1], "sharpen": "none"}},
        {"method": "safe", "settings": {"draft_length": 5, "base": "unite", "sharpen": "prefix", "trigger": "entropy"}},
    ]
    for prompt in list(TEXTS)[: SAFE_PROMPTS if part == "safe" else None]:
        for order in ([0, 1], [1, 0]):
            common = {"order": order, "prompt": prompt, "tokens": TOKENS}
            if part == "single":
                yield {"method": "single", "settings": {}, **common, "order": order[:1]}
            elif part in ("unite", "gac"):
                yield {"method": part, "settings": {}, **common}
            elif part == "safe":
                for draft_length in (5, 3, 8, 1):
                    for base in ("unite", "gac"):
                        for sharpen in sharpenings:
                            settings = {"draft_length": draft_length, "base": base, "sharpen": sharpen}
                            yield {"method": "safe", "settings": settings, **common}
            else:
                yield from ({**variant, **common} for variant in variants)


def run(models: list, spec: dict):
    """The oracle's `Result` of one run; `models` in the order of `MODELS`."""
    from support.oracle import decode
    from support.oracle.fusion import Gate, Sharpening
    from support.oracle.safe import safe
    from support.prompts import TEXTS

    settings = dict(spec["settings"])
    if "gate" in settings:
        settings["gate"] = Gate(*settings["gate"])
    if spec["method"] == "safe":
        settings["sharpening"] = Sharpening(settings.pop("sharpen"), settings.pop("trigger", "max_prob"))
    ordered = [models[i] for i in spec["order"]]
    prompt = TEXTS[spec["prompt"]]
    if spec["method"] == "single":
        return decode.single(ordered[0], prompt, spec["tokens"])
    method = {"unite": decode.unite, "gac": decode.gac, "safe": safe}[spec["method"]]
    return method(ordered, prompt, spec["tokens"], **settings)


def line_of(spec: dict, result) -> dict:
    """One run as golden data: what came out, and how close its decisions were.

    `margins`: of every step (two digits) where there is one decision a step; for SAFE, [number of decisions, the
    margins under 0.01 by the decision's number].
    """
    margins: list | dict = [float(f"{margin:.1e}") for margin in result.margins]
    if spec["method"] == "safe":
        margins = [len(margins), {str(i): margin for i, margin in enumerate(margins) if margin < CLOSE}]
    made = {
        "data": result.data.decode("utf-8", "surrogateescape"),
        "ids": result.ids,
        "finish": result.finish,
        "ensembled_at": result.ensembled_at,
        "rounds": result.rounds,
        "margins": margins,
        "smallest_margin": float(f"{result.margin:.1e}"),
        "border": float(f"{min(result.borders, default=1e9):.1e}"),
    }
    return spec | made


def key(spec: dict) -> str:
    return json.dumps([spec["method"], spec["settings"], spec["order"], spec["prompt"], spec["tokens"]])


def read(path: Path) -> tuple[dict, list[dict]]:
    """A golden file's header and runs."""
    if not path.exists():
        return {}, []
    # surrogateescape: bytes that are not UTF-8 are kept as lone surrogates, which JSON escapes
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines[0], lines[1:]


def guesses(loaded: list, specs: list[dict]) -> Iterator[tuple[dict, object]]:
    """Each run with what the package's decoder writes for it, a batch for all prompts of the same settings."""
    import ensemble_decode as ed
    from support.equality import method_of
    from support.prompts import TEXTS

    groups: dict[str, list[dict]] = {}
    for spec in specs:
        groups.setdefault(json.dumps([spec["method"], spec["settings"], spec["order"]]), []).append(spec)
    ensembles: dict[str, ed.Ensemble] = {}
    for group in groups.values():
        order, weights = group[0]["order"], group[0]["settings"].get("weights")
        if len(order) < 2:
            yield from ((spec, None) for spec in group)
            continue
        name = json.dumps([order, weights])
        if name not in ensembles:
            pairs = [loaded[i] for i in order]
            ensembles = {name: ed.Ensemble.from_models([m for m, _ in pairs], [t for _, t in pairs], weight=weights)}
        texts = [TEXTS[spec["prompt"]] for spec in group]
        done = ensembles[name].generate(texts, method=method_of(group[0]), max_new_tokens=TOKENS)
        yield from zip(group, done, strict=True)


def sweep(out: Path, parts: list[str], limit: int | None) -> None:
    from support.oracle.decode import recall
    from support.oracle.model import Model, align
    from support.prompts import TEXTS

    loaded = load_demo()
    header = header_of(loaded)
    models = align([Model(*pair, remember=1500) for pair in loaded])  # copies: the package's decoder has the others
    out.mkdir(parents=True, exist_ok=True)
    made = 0
    for part in parts:
        path = out / f"{part}.jsonl"
        found, lines = read(path)
        if found and found != header:
            raise SystemExit(
                f"{path} was made from other weights or tokenizers ({found}); now {header}. Delete it first."
            )
        done = {key(line) for line in lines}
        with path.open("a", encoding="utf-8") as file:
            if not found:
                print(json.dumps(header), file=file, flush=True)
            todo = [spec for spec in runs_of(part) if key(spec) not in done]
            # SAFE's drafts are no part of its texts; there the memo of the runs before helps more than a guess.
            for spec, guess in guesses(loaded, todo) if part != "safe" else ((spec, None) for spec in todo):
                if made == limit:
                    return
                start = time.perf_counter()
                if guess is not None:
                    ordered = [models[i] for i in spec["order"]]
                    recall(ordered, TEXTS[spec["prompt"]], guess.token_ids, guess.data)
                result = run(models, spec)
                print(json.dumps(line_of(spec, result)), file=file, flush=True)
                made += 1
                print(
                    f"{key(spec)}: {len(result.ids)} tokens, margin {result.margin:.1e}, "
                    f"{'' if guess is None else 'as guessed, ' if guess.data == result.data else 'NOT AS GUESSED, '}"
                    f"{time.perf_counter() - start:.1f} s: {result.text!r}",
                    flush=True,
                )


def check(parts: list[str]) -> None:
    """Run every committed golden through the package's decoder."""
    from support import goldens

    loaded = load_demo()
    for part in parts:
        _, lines = goldens.golden(part)
        if not lines:
            print(f"{part}: no golden file", flush=True)
            continue
        exempt = goldens.check(loaded, lines)
        print(f"{part}: {len(lines)} runs equal, but for {exempt} where a tie in float32 fell elsewhere", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN, help="folder of the golden files")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--limit", type=int, help="stop after this many new runs")
    parser.add_argument("--check", action="store_true", help="make nothing: run the decoder on the goldens there are")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.only)
        return
    sweep(arguments.out, arguments.only, arguments.limit)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    main()
