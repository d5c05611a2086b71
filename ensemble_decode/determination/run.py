"""``determine``: from candidate models and data to a report with a recommendation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ensemble_decode.decode.prompts import ChatMode, SystemMode
from ensemble_decode.determination.costs import ExpectedCost, expected_cost
from ensemble_decode.determination.data import Item, fingerprint, read_items, read_jsonl
from ensemble_decode.determination.figures import (
    PairFigures,
    Response,
    best_model,
    likeness,
    model_figures,
    pair_figures,
)
from ensemble_decode.determination.first_tokens import first_tokens
from ensemble_decode.determination.harness_samples import Sample, read_samples
from ensemble_decode.determination.recommend import Recommendation, Rules, pair_of, recommend
from ensemble_decode.determination.report import Report
from ensemble_decode.determination.running import (
    Models,
    Progress,
    RunSettings,
    check_specs,
    responses,
    shapes,
)
from ensemble_decode.determination.stats import Bootstrap
from ensemble_decode.determination.tokens import (
    SharedVocabulary,
    common_words,
    unsafe_positions,
    unsafe_share,
    word_agreement,
)
from ensemble_decode.errors import InputError

POSITIONS = (1, 2, 5)  # JS over the first 1, 2 and 5 tokens of the responses

Path_ = str | os.PathLike[str]


def determine(
    models: Sequence[str],
    data: Path_ | Iterable[Mapping[str, Any]] | None = None,
    *,
    grader: str = "exact",
    generations: Mapping[str, Path_] | None = None,
    harness: Mapping[str, Path_] | None = None,
    harness_metric: str | None = None,
    harness_filter: str | None = None,
    folder: Path_ = "determine",
    limit: int | None = None,
    texts_only: bool = False,
    max_new_tokens: int = 256,
    stop: str | Sequence[str] = (),
    chat: ChatMode = "template",
    system: SystemMode = "error",
    batch_size: int = 16,
    device: Any = "auto",
    dtype: Any = "auto",
    top_k: int = 10,
    draft_length: int = 5,
    words: int = 10_000,
    language: str = "en",
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    rules: Rules | None = None,
    cost_device: str = "h100-sxm",
    cost_batch: int = 8,
    progress: Progress | None = None,
) -> Report:
    """Run each model on the data, compare all pairs, and recommend which to combine and how, or not to.

    ``models``: as for ``Ensemble.load``; a model whose responses are all given need not be loadable with
    ``texts_only``. ``data``: a file of JSON lines, or mappings, with ``prompt``, ``answer`` and optionally ``id`` and
    ``grader``; ``grader`` is for the lines without one. ``generations``: per model a file of JSON lines with ``id`` and
    ``text`` (optionally ``token_ids``, ``finish_reason``); items it lacks are run. ``harness``: per model a samples
    file of ``lm_eval --log_samples``, in place of data, for every model; ``harness_metric`` and ``harness_filter``
    choose among its metrics and filters. ``folder``: where responses and comparisons are kept: a second call runs only
    what is missing. ``limit``: the first so many items. ``texts_only``: load nothing; figures that need the models are
    None.

    ``max_new_tokens``, ``stop``, ``chat``, ``system``, ``batch_size``, ``device``, ``dtype``: of generation, greedy.
    ``top_k``: of the unions whose JS is taken. ``draft_length``: of SAFE, for unsafe positions. ``words``,
    ``language``: the most frequent words whose tokenizations are compared. ``resamples``, ``confidence``, ``seed``: of
    the bootstrap. ``rules``: of the recommendation. ``cost_device``, ``cost_batch``: for the cost model.
    ``progress(what, done, total)`` is called as work goes on.

    Raises ``InputError`` for what cannot be used as given, ``ModelError`` for a model that cannot be loaded.
    """
    specs, rules, report_progress = check_specs(models), rules or Rules(), progress or (lambda what, done, total: None)
    run = RunSettings(
        max_new_tokens, (stop,) if isinstance(stop, str) else tuple(stop), chat, system, batch_size, device, dtype
    )
    home = Path(folder)
    loader = Models(specs, run)
    given = _per_model(generations, specs, "generations")
    ids: list[list[list[int] | None]]
    if harness:
        if data is not None or given:
            raise InputError("determine: give data or harness samples, not both")
        items, answers = _from_harness(specs, harness, harness_metric, harness_filter, limit)
        ids = [[None] * len(items) for _ in specs]
    else:
        if data is None:
            raise InputError("determine: give data, or harness samples for every model")
        items = read_items(data, grader)[:limit]
        records = [
            _records(loader, m, items, given.get(spec), home, report_progress, texts_only)
            for m, spec in enumerate(specs)
        ]
        answers = [[_graded(item, record) for item, record in zip(items, one, strict=True)] for one in records]
        ids = [[record.get("token_ids") for record in one] for one in records]
    boot = Bootstrap(len(items), resamples, confidence, seed)
    best = best_model([[one.score for one in side] for side in answers])
    figures = [model_figures(spec, answers[m], answers[best], boot) for m, spec in enumerate(specs)]
    places = list(combinations(range(len(specs)), 2))
    pairs = [pair_figures(pair, answers[pair[0]], answers[pair[1]], boot) for pair in places]
    if not texts_only:
        pairs = _with_vocabularies(pairs, loader, answers, ids, words, language, draft_length, report_progress)
        pairs = [_with_likeness(pair, loader, items, home, top_k, report_progress) for pair in pairs]
    no_answer = sum(item.open_ended for item in items) > len(items) / 2
    advice = recommend(figures, pairs, answers, boot, rules, no_answer)
    cost = None if texts_only else _cost(loader, home, advice, pairs, items, ids, cost_device, cost_batch)
    settings = {
        "data": {
            "source": str(data)
            if isinstance(data, (str, os.PathLike))
            else "harness samples"
            if harness
            else "given in memory",
            "items": len(items),
            "fingerprint": fingerprint(items),
            "graders": {name: sum(item.grader == name for item in items) for name in sorted({i.grader for i in items})},
        },
        "generation": run.of_text(),
        "bootstrap": {"resamples": resamples, "confidence": confidence, "seed": seed},
        "tokens": {"words": words, "language": language, "draft_length": draft_length, "top_k": top_k},
        "texts_only": texts_only,
    }
    return Report(
        figures, pairs, advice, rules, settings, cost, [i.id for i in items], [i.prompt for i in items], answers
    )


# -- responses ---------------------------------------------------------------------------------------------------------


def _per_model(files: Mapping[str, Path_] | None, specs: Sequence[str], what: str) -> dict[str, Path_]:
    unknown = [name for name in files or {} if name not in specs]
    if unknown:
        raise InputError(f"{what}: {', '.join(unknown)} is none of the models ({', '.join(specs)})")
    return dict(files or {})


def _records(
    loader: Models, m: int, items: Sequence[Item], file: Path_ | None, home: Path, progress: Progress, texts_only: bool
) -> list[dict[str, Any]]:
    """Model m's response to every item, in order: given in a file, saved by an earlier run, or run now."""
    by_id: dict[str, dict[str, Any]] = {}
    if file is not None:
        for number, line in enumerate(read_jsonl(file), 1):
            if not isinstance(line.get("text"), str) or "id" not in line:
                raise InputError(f"{file}, line {number}: a saved generation needs 'id' and 'text'")
            by_id[str(line["id"])] = line
    missing = [item for item in items if item.id not in by_id]
    if missing and texts_only:
        raise InputError(
            f"{loader.specs[m]}: no response given for {len(missing)} of {len(items)} items (first: "
            f"{missing[0].id!r}); give them, or "
            "leave out texts_only so that they are run"
        )
    run = responses(loader, m, missing, home, progress) if missing else {}
    return [by_id[item.id] if item.id in by_id else run[item.key] for item in items]


def _graded(item: Item, record: Mapping[str, Any]) -> Response:
    if record.get("error"):
        return Response(item.id, "", 0.0, None, "error", record["error"])
    grade = item.grade(record["text"])
    return Response(item.id, record["text"], grade.score, grade.given, record.get("finish_reason"))


def _from_harness(
    specs: Sequence[str], files: Mapping[str, Path_], metric: str | None, filter_name: str | None, limit: int | None
) -> tuple[list[Item], list[list[Response]]]:
    files = _per_model(files, specs, "harness samples")
    missing = [spec for spec in specs if spec not in files]
    if missing:
        raise InputError(f"harness samples: none for {', '.join(missing)}; give a file for every model")
    sides: list[dict[str, Sample]] = [read_samples(files[spec], metric, filter_name) for spec in specs]
    for spec, side in zip(specs, sides, strict=True):
        if set(side) != set(sides[0]):
            raise InputError(
                f"harness samples: those of {spec} are of other documents ({len(side)}) than those of "
                f"{specs[0]} ({len(sides[0])})"
            )
    order = sorted(sides[0], key=lambda name: (len(name), name))[:limit]
    items = [Item(name, sides[0][name].prompt, "", "harness") for name in order]
    answers = [[Response(n, side[n].text, side[n].score, side[n].given or None) for n in order] for side in sides]
    return items, answers


# -- comparisons -------------------------------------------------------------------------------------------------------


def _with_vocabularies(
    pairs: Sequence[PairFigures],
    loader: Models,
    answers: Sequence[Sequence[Response]],
    ids: Sequence[Sequence[list[int] | None]],
    words: int,
    language: str,
    draft_length: int,
    progress: Progress,
) -> list[PairFigures]:
    listed = common_words(words, language) if pairs else []
    done = []
    for n, pair in enumerate(pairs):
        progress("vocabularies", n, len(pairs))
        a, b = (loader.vocab(m) for m in (pair.first, pair.second))

        def unsafe(m: int, drafter: Any, verifier: Any) -> float | None:
            texts = zip(answers[m], ids[m], strict=True)
            return unsafe_share(
                unsafe_positions(drafter, verifier, *_text_and_ids(drafter, one, own), draft_length)
                for one, own in texts
            )

        done.append(
            replace(
                pair,
                vocabulary=SharedVocabulary.of(a, b),
                word_agreement=word_agreement(a, b, listed),
                unsafe=(unsafe(pair.first, a, b), unsafe(pair.second, b, a)),
            )
        )
        progress("vocabularies", n + 1, len(pairs))
    return done


def _text_and_ids(vocab: Any, one: Response, ids: list[int] | None) -> tuple[bytes, list[int] | None]:
    """The bytes of a response: those of its tokens where they are known, for its text may have lost some."""
    return (one.text.encode(), None) if not ids or one.error else (vocab.decode(ids), ids)


def _with_likeness(
    pair: PairFigures, loader: Models, items: Sequence[Item], home: Path, top_k: int, progress: Progress
) -> PairFigures:
    sides = []
    for order in ((pair.first, pair.second), (pair.second, pair.first)):
        run = first_tokens(loader, order, items, home, progress, positions=max(POSITIONS), top_k=top_k)
        sides.append([run[item.key] for item in items])
    js, js_at, same_top, stands = likeness(sides[0], sides[1], POSITIONS)
    return replace(pair, js=js, js_at=js_at, same_top=same_top, stands=stands)


def _cost(
    loader: Models,
    home: Path,
    advice: Recommendation,
    pairs: Sequence[PairFigures],
    items: Sequence[Item],
    ids: Sequence[Sequence[list[int] | None]],
    device: str,
    batch: int,
) -> ExpectedCost:
    """For a prompt and a response of the primary's mean length."""
    primary, vocab = advice.primary, loader.vocab(advice.primary)
    prompts = [_prompt_text(item) for item in items]
    prompt_tokens = sum(len(vocab.encode(text.encode())) for text in prompts) / len(prompts)
    written = [len(own) for own in ids[primary] if own]
    stands = [pair.stands for other in advice.models[1:] if (pair := pair_of(pairs, primary, other)).stands is not None]
    found = shapes(loader, home)
    return expected_cost(
        [found[m] for m in advice.models],
        advice.method,
        device,
        batch=batch,
        prompt_tokens=round(prompt_tokens),
        new_tokens=round(sum(written) / len(written)) if written else 64,
        stands=math.prod(stands) if stands else None,
    )


def _prompt_text(item: Item) -> str:
    return item.prompt if isinstance(item.prompt, str) else "\n\n".join(m["content"] for m in item.prompt)
