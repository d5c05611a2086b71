"""Every figure of a `determine` report again, from the files that a run leaves: numpy and the tokenizers, nothing of
the package's figures."""

import base64
import json
import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from ensemble_decode.cost.model import DEVICES, Settings, cost_of_run
from ensemble_decode.cost.shapes import ModelShape
from ensemble_decode.determination import running


def saved(folder, kind, *specs):
    """The records of one model, or of an ordered pair, by item id."""
    wanted = [running.identity(spec) for spec in specs]
    found = []
    for file in (folder / kind).glob("*.jsonl"):
        header, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        settings = header["settings"]
        if (settings["models"] if "models" in settings else [settings["model"]]) == json.loads(json.dumps(wanted)):
            found.append({line.get("id", line["key"]): line for line in lines})
    (records,) = found
    return records


def judge(item, text):
    """Score and answer of a text, for the graders that these tests use."""
    if item["grader"] == "regex":
        match = re.search(item["answer"], text)
        return float(match is not None), match[0] if match else " ".join(text.split()) or None
    match = re.search({"numeric:first": r"-?\d+(?:\.\d+)?", "choice": r"\b[A-Z]\b"}[item["grader"]], text)
    if item["grader"] == "choice":
        return float(match is not None and match[0] == item["answer"]), match and match[0]
    value = match and float(match[0])
    return float(value is not None and value == float(item["answer"])), value


class Intervals:
    def __init__(self, items, resamples, confidence, seed):
        draws = np.random.default_rng(seed).multinomial(items, [1 / items] * items, size=resamples)
        self.rows = [np.repeat(np.arange(items), draw) for draw in draws]
        self.tails = [(1 - confidence) / 2, (1 + confidence) / 2]

    def of(self, values, share=True):
        values = np.asarray(values, float)
        low, high = np.quantile([values[rows].mean() for rows in self.rows], self.tails)
        if share and values.mean() in (0, 1):
            most = 1 - self.tails[0] ** (1 / len(values))
            low, high = (0, most) if values.mean() == 0 else (1 - most, 1)
        return {"value": values.mean(), "low": low, "high": high}


def spread(values):
    names = ("least", "lower_quartile", "median", "upper_quartile", "most")
    return {"mean": np.mean(values), **dict(zip(names, np.percentile(values, [0, 25, 50, 75, 100]), strict=True))}


def longer(one, other):
    return max(one, other) / min(one, other)


def edges(vocab, data):
    return [0, *np.cumsum([len(vocab.token_bytes[i]) for i in vocab.encode(data)]).tolist()]


def unsafe(drafter, verifier, records, length):
    count = positions = 0
    for record in records:
        pieces = [drafter.token_bytes[i] for i in record["token_ids"] if drafter.token_bytes[i]]
        for j in range(len(pieces)):
            drafted = b"".join(pieces[: (j // length + 1) * length])
            count += len(b"".join(pieces[:j])) not in edges(verifier, drafted)
        positions += len(pieces)
    return count / positions


def along(sides, name, positions):
    """A figure's mean over positions of each side's records, then over the sides."""
    means = []
    for records in sides:
        values = [float(record[name][i]) for record in records for i in positions if i < len(record[name])]
        means += [np.mean(values)] if values else []
    return np.mean(means) if means else None


def recompute(report, folder, specs, vocabs, items, words):
    """``models``, ``pairs`` and ``cost`` as the report has them. ``words``: the frequent words."""
    boot, tokens = report["settings"]["bootstrap"], report["settings"]["tokens"]
    intervals = Intervals(len(items), **boot)
    records = [[saved(folder, "generations", spec)[item["id"]] for item in items] for spec in specs]
    judged = [[judge(item, r["text"]) for item, r in zip(items, own, strict=True)] for own in records]
    scores = np.array([[score for score, _ in own] for own in judged])
    lengths = [
        {"characters": [len(r["text"]) for r in own], "words": [len(r["text"].split()) for r in own]} for own in records
    ]
    best = int(scores.mean(1).argmax())
    models = [
        {
            "name": spec,
            "score": intervals.of(scores[m]),
            "gap": intervals.of(scores[best] - scores[m], share=False),
            "characters": spread(lengths[m]["characters"]),
            "words": spread(lengths[m]["words"]),
            "ended": np.mean([r["finish_reason"] == "stop" for r in records[m]]),
            "cut": np.mean([r["finish_reason"] == "length" for r in records[m]]),
            "failed": sum(r["error"] is not None for r in records[m]),
        }
        for m, spec in enumerate(specs)
    ]
    pairs = []
    for a, b in combinations(range(len(specs)), 2):
        texts = [[r["text"].split() for r in records[m]] for m in (a, b)]
        same = [
            x[1] == y[1] if (x[1], y[1]) != (None, None) else s == t
            for x, y, s, t in zip(judged[a], judged[b], *texts, strict=True)
        ]
        right = scores >= 0.5
        known = [
            {data for i, data in enumerate(v.token_bytes) if data and v.allowed[i]} for v in (vocabs[a], vocabs[b])
        ]
        better = scores[a] if scores[a].mean() >= scores[b].mean() else scores[b]
        choice = np.maximum(scores[a], scores[b])
        spaced = [f" {word}".encode() for word in words]
        sides = [
            [first[item["id"]] for item in items]
            for first in (saved(folder, "first-tokens", specs[x], specs[y]) for x, y in ((a, b), (b, a)))
        ]
        pairs.append(
            {
                "first": a,
                "second": b,
                "equal_answers": np.mean(same),
                "both": (right[a] & right[b]).mean(),
                "only_first": (right[a] & ~right[b]).mean(),
                "only_second": (~right[a] & right[b]).mean(),
                "neither": (~right[a] & ~right[b]).mean(),
                "oracle": intervals.of(choice),
                "room": intervals.of(choice - better, share=False),
                "characters_ratio": longer(*(np.mean(lengths[m]["characters"]) for m in (a, b))),
                "words_ratio": longer(*(np.mean(lengths[m]["words"]) for m in (a, b))),
                "vocabulary": {
                    "first": len(known[0]),
                    "second": len(known[1]),
                    "common": len(known[0] & known[1]),
                    "of_smaller": len(known[0] & known[1]) / min(map(len, known)),
                    "jaccard": len(known[0] & known[1]) / len(known[0] | known[1]),
                },
                "word_agreement": np.mean([edges(vocabs[a], word) == edges(vocabs[b], word) for word in spaced]),
                "js": {str(n): along(sides, "js", range(n)) for n in (1, 2, 5)},
                "js_at": [along(sides, "js", [n]) for n in range(5)],
                "same_top": along(sides, "same_top", range(5)),
                "stands": along(sides, "stands", range(5)),
                "unsafe": [
                    unsafe(vocabs[x], vocabs[y], records[x], tokens["draft_length"]) for x, y in ((a, b), (b, a))
                ],
            }
        )
    return {"models": models, "pairs": pairs, "cost": cost(report, folder, specs, vocabs, items, records, pairs)}


def cost(report, folder, specs, vocabs, items, records, pairs):
    members, method = report["recommendation"]["models"], report["recommendation"]["method"]
    primary, given = members[0], report["cost"]
    shapes = [ModelShape(**saved(folder, "shapes", specs[m])["shape"]["shape"]) for m in members]
    stands = [p["stands"] for p in pairs for m in members[1:] if {p["first"], p["second"]} == {primary, m}]
    prompts = [vocabs[primary].encode(item["prompt"].encode()) for item in items]
    sizes = {
        "batch": given["batch"],
        "prompt": round(np.mean([len(ids) for ids in prompts])),
        "tokens": round(np.mean([len(r["token_ids"]) for r in records[primary]])),
    }
    settings = Settings(stands=np.prod(stands)) if stands else Settings()
    device = DEVICES[given["device"]]
    whole = cost_of_run(shapes, device, method, settings=settings, **sizes)
    alone = {s.name: 1000 * cost_of_run([s], device, "single", **sizes).seconds for s in shapes}
    return {
        "device": given["device"],
        "method": method,
        "batch": sizes["batch"],
        "prompt_tokens": sizes["prompt"],
        "new_tokens": sizes["tokens"],
        "stands": settings.stands if method == "safe" else None,
        "alone": alone,
        "together": 1000 * whole.seconds,
        "times_primary": 1000 * whole.seconds / alone[specs[primary]],
        "fits": whole.fits,
        "predicted": whole.predicted,
    }


def assert_equal(found, expected, where="report"):
    """The same keys all the way down, and the same numbers."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), where
        for key in expected:
            assert_equal(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal(one, other, f"{where}[{i}]")
    elif isinstance(expected, (str, bool, np.bool_, type(None))):
        assert found == expected, where
    else:
        assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12), where


def chosen(expected, scores):
    """The members by the default rules, the primary first; ``scores [M, items]``. Equal scores are not settled here."""
    models, pairs = expected["models"], expected["pairs"]
    ranked = sorted(range(len(models)), key=lambda m: -models[m]["score"]["value"])
    members = [ranked[0]]
    for m in ranked[1:]:
        ratios = [p["words_ratio"] for p in pairs for o in members if {p["first"], p["second"]} == {m, o}]
        room = scores[[*members, m]].max(0).mean() - scores[members].max(0).mean()
        if models[m]["gap"]["value"] <= 0.1 + 1e-12 and max(ratios) <= 2 and room >= 0.01 and len(members) < 3:
            members.append(m)
    return members


def numbers_of(texts, names):
    """Every number in sentences, without those in the models' names and in the device's."""
    found = []
    for text in texts:
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, "")
        found += re.findall(r"\d+(?:\.\d+)?", text)
    return found


# -- what a reader sees
# ----------------------------------------------------------------------------------------------------


def percent(value):
    return f"{100 * value:.1f}%"


def model_cells(model):
    score = model["score"]
    return [
        model["name"],
        percent(score["value"]),
        f"{percent(score['low'])} to\u00a0{percent(score['high'])}",
        f"{100 * model['gap']['value']:.1f}",
        f"{model['words']['mean']:.1f}",
        f"{model['characters']['mean']:.0f}",
        percent(model["ended"]),
        percent(model["cut"]),
    ]


def pair_cells(pair):
    shares = [pair[name] for name in ("equal_answers", "both", "only_first", "only_second")]
    return [
        *map(percent, shares),
        percent(pair["oracle"]["value"]),
        f"{100 * pair['room']['value']:.1f}",
        f"{pair['words_ratio']:.2f}×",
        f"{pair['characters_ratio']:.2f}×",
        f"{pair['vocabulary']['common']:,}",
        percent(pair["vocabulary"]["of_smaller"]),
        percent(pair["word_agreement"]),
        *map(percent, pair["unsafe"]),
        *(f"{value:.3f}" for value in pair["js"].values()),
        percent(pair["same_top"]),
    ]


def tables(page):
    """The cells of each table of the page, row by row, without their tags and without the heads."""
    found = []
    for table in re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL):
        rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
        found.append([[re.sub("<.*?>", "", cell) for cell in row] for row in rows])
    return found


def plots(page):
    """The plots' texts by title."""
    found = {}
    for title, data in re.findall(r'<img alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', page):
        found[title] = re.findall(r"<text[^>]*>([^<]*)</text>", base64.b64decode(data).decode())
    return found


def check(whole, page, folder, specs, vocabs, items, words):
    """A report as JSON and as a page, against the saved files: every number in either."""
    expected = recompute(whole, folder, specs, vocabs, items, words)
    assert_equal({key: whole[key] for key in expected}, expected)
    advice, models, pairs = whole["recommendation"], expected["models"], expected["pairs"]
    records = [[saved(folder, "generations", spec)[item["id"]] for item in items] for spec in specs]
    scores = np.array(
        [[judge(item, r["text"])[0] for item, r in zip(items, own, strict=True)] for own in records], float
    )
    if len({model["score"]["value"] for model in models}) == len(models):
        assert advice["models"] == chosen(expected, scores)
    members = advice["models"]
    assert advice["ensemble"] == (len(members) > 1)
    best = scores[members].max(0)
    if advice["ensemble"]:
        boot = whole["settings"]["bootstrap"]
        assert_equal(advice["oracle"], Intervals(len(items), **boot).of(best), "recommendation.oracle")

    assert [row[1:] for row in tables(page)[0]] == [list(row) for row in zip(*map(model_cells, models), strict=True)]
    assert [row[1:] for row in tables(page)[1]] == [list(row) for row in zip(*map(pair_cells, pairs), strict=True)]

    shown = plots(page)
    assert len(shown) == 5
    labels = {
        "Scores": [percent(model["score"]["value"]) for model in models],
        "Who is right": [
            f"{pair[part]:.0%}"
            for pair in pairs
            for part in ("both", "only_first", "only_second", "neither")
            if pair[part] >= 0.08
        ],
        "Tokenizers: common words cut alike": [f"{pair['word_agreement']:.0%}" for pair in pairs],
        "Response style: distance of the first tokens": [f"{pair['js']['5']:.2f}" for pair in pairs],
    }
    for title, wanted in labels.items():
        assert not Counter(wanted) - Counter(shown[title]), title

    cost, rules = expected["cost"], whole["rules"]
    gaps = [value for model in models for value in model["gap"].values()]
    rooms = [
        scores[group].max(0).mean()
        for n in range(1, len(specs) + 1)
        for group in map(list, combinations(range(len(specs)), n))
    ]
    allowed = {f"{100 * value:.1f}" for value in [*gaps, *rooms, rules["max_gap"], rules["min_room"]]}
    allowed |= {f"{100 * (a - b):.1f}" for a in rooms for b in rooms if a >= b}
    allowed |= {f"{pair['words_ratio']:.{digits}f}" for pair in pairs for digits in (1, 2)}
    allowed |= {f"{model['words']['mean']:.1f}" for model in models}
    allowed |= {f"{100 * pair['word_agreement']:.0f}" for pair in pairs}
    allowed |= {f"{rules[name]:g}" for name in ("max_length_ratio", "short_words", "max_models")}
    allowed |= {f"{100 * rules['near_equal']:.0f}"}
    allowed |= {
        f"{cost['together']:.3g}",
        f"{cost['times_primary']:.2f}",
        str(cost["batch"]),
        str(cost["prompt_tokens"]),
    }
    allowed |= {f"{value:.3g}" for value in cost["alone"].values()}
    allowed |= set() if cost["stands"] is None else {f"{100 * cost['stands']:.0f}"}
    reasons = re.findall(r"<li>(.*?)</li>", page)
    assert len(reasons) == len(advice["reasons"]) + len(advice["left_out"]) + 1
    assert not set(numbers_of(reasons, [*specs, cost["device"]])) - allowed
