"""Reading what lm-evaluation-harness leaves behind with ``--log_samples``: ``samples_TASK_DATE.jsonl``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ensemble_decode.determination.data import read_jsonl
from ensemble_decode.errors import InputError


@dataclass(frozen=True)
class Sample:
    """One judged response. ``given`` is the answer that the harness's filter took out of it."""

    id: str
    prompt: Any
    text: str
    score: float
    given: str
    multiple_choice: bool


def read_samples(
    path: str | os.PathLike[str], metric: str | None = None, filter_name: str | None = None
) -> dict[str, Sample]:
    """The samples of one file by ``doc_id``.

    ``metric``: which of the task's metrics is the score (default: its first one); ``filter_name``: which filter's lines
    count, where the task has several. The response of a multiple-choice sample is the continuation of the highest
    log-likelihood. Raises ``InputError`` where the file is not such a file or a choice is to be made.
    """
    lines = read_jsonl(path)
    filters = sorted({str(line.get("filter", "none")) for line in lines})
    if filter_name is None and len(filters) > 1:
        raise InputError(f"{path}: responses of several filters ({', '.join(filters)}); name one of them")
    chosen = filter_name or (filters or ["none"])[0]
    if lines and chosen not in filters:
        raise InputError(f"{path}: no filter {chosen!r}; there are {', '.join(filters)}")
    samples: dict[str, Sample] = {}
    for number, line in enumerate(lines, 1):
        if str(line.get("filter", "none")) == chosen:
            sample = _sample(line, f"{path}, sample {number}", metric)
            if sample.id in samples:
                raise InputError(f"{path}, sample {number}: doc_id {sample.id} comes twice")
            samples[sample.id] = sample
    if not samples:
        raise InputError(f"{path}: no samples; give a samples_*.jsonl file that lm_eval --log_samples wrote")
    return samples


def _sample(line: Mapping[str, Any], where: str, metric: str | None) -> Sample:
    missing = [name for name in ("doc_id", "arguments", "resps", "filtered_resps") if name not in line]
    if missing:
        raise InputError(f"{where}: not a sample of lm_eval --log_samples: it has no {', '.join(missing)}")
    names = [str(name) for name in line.get("metrics") or ()]
    name = metric or (names[0] if names else None)
    if name is None or name not in line:
        raise InputError(f"{where}: no metric {name!r}; it has {', '.join(names) or 'none'}")
    try:
        score = float(line[name])
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: the metric {name} is {line[name]!r}, which is no score of one sample") from error
    if not 0 <= score <= 1:
        raise InputError(f"{where}: the metric {name} is {score!r}; a score between 0 and 1 is needed")
    requests = [_arguments(one) for one in _values(line["arguments"])]
    prompt = requests[0][0]
    if len(requests) > 1 or _is_likelihood(line["resps"][0]):
        scored = [_likelihood(resp) for resp in line["resps"]]
        text = str(requests[max(range(len(scored)), key=scored.__getitem__)][1])
        return Sample(str(line["doc_id"]), prompt, text, score, text.strip(), True)
    text, given = _first_text(line["resps"]), _first_text(line["filtered_resps"])
    return Sample(str(line["doc_id"]), prompt, text, score, given.strip(), False)


def _values(arguments: Any) -> list[Any]:
    return list(arguments.values()) if isinstance(arguments, Mapping) else list(arguments)


def _arguments(one: Any) -> list[Any]:
    return _values(one)


def _is_likelihood(resp: Any) -> bool:
    while isinstance(resp, list) and resp and isinstance(resp[0], list):
        resp = resp[0]
    return isinstance(resp, list) and len(resp) == 2 and not isinstance(resp[1], list) and _number(resp[0]) is not None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _likelihood(resp: Any) -> float:
    while isinstance(resp, list):
        resp = resp[0]
    return float(resp)


def _first_text(resp: Any) -> str:
    while isinstance(resp, list):
        resp = resp[0] if resp else ""
    return str(resp)
