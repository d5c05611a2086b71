"""How figures are written for readers; the terminal's table and the page share it."""

from __future__ import annotations

import shlex

from ensemble_decode.determination.findings import Findings
from ensemble_decode.determination.stats import Estimate

METHOD_NAMES = {"unite": "UniTE", "safe": "SAFE", "specfuse": "SpecFuse", "single": "a single model"}


def letter(m: int) -> str:
    """A, B, ..., Z, A1, B1, ...: what a model is called in plots and tables."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[m % 26] + (str(m // 26) if m >= 26 else "")


def percent(value: float | None) -> str:
    """A share as a percentage; a dash where there is none."""
    return "–" if value is None else f"{value:.1%}"


def interval(estimate: Estimate) -> str:
    """An interval of shares as percentages."""
    return f"{estimate.low:.1%} to\u00a0{estimate.high:.1%}"


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * value:.1f}"


def times(value: float | None) -> str:
    """A ratio; a dash where there is none."""
    return "–" if value is None else f"{value:.2f}×"


def nats(value: float | None) -> str:
    """A divergence in nats; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def headline(found: Findings) -> str:
    """The recommendation in one line."""
    advice, names = found.recommendation, found.names
    if not advice.ensemble:
        return f"Do not ensemble: use {names[advice.primary]} alone"
    return f"Ensemble {' and '.join(names[m] for m in advice.models)} with {METHOD_NAMES[advice.method]}"


def reasons(found: Findings) -> list[str]:
    """Why, a sentence each: the rules' reasons, what was left out, the expected cost where it is known."""
    advice = found.recommendation
    lines = [*advice.reasons, *(f"Left out: {name}: {why}." for name, why in advice.left_out.items())]
    cost = cost_sentence(found)
    return lines if cost is None else [*lines, cost]


def model_figures(found: Findings) -> dict[str, list[str]]:
    """Each figure's head with its value for every model."""
    confidence = found.settings["bootstrap"]["confidence"]
    return {
        "score": [percent(model.score.value) for model in found.models],
        f"{confidence:.0%} interval": [interval(model.score) for model in found.models],
        "points below best": [points(model.gap.value) for model in found.models],
        "mean words": [f"{model.words.mean:.1f}" for model in found.models],
        "mean characters": [f"{model.characters.mean:.0f}" for model in found.models],
        "ended": [percent(model.ended) for model in found.models],
        "cut at limit": [percent(model.cut) for model in found.models],
    }


def command(found: Findings) -> str:
    """How to run what is recommended, with the settings of the responses."""
    advice, generation = found.recommendation, found.settings["generation"]
    options = [f"--model {shell(found.names[m])}" for m in advice.models]
    options += [f"--method {advice.method}", f"--max-new-tokens {generation['max_new_tokens']}"]
    options += [f"--stop {shell(stop)}" for stop in generation["stop"]]
    return f"ensemble-decode generate {' '.join(options)} 'PROMPT'"


def shell(text: str) -> str:
    """A word for a shell, line ends written out."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"


def cost_sentence(found: Findings) -> str | None:
    """What the cost model says, or None without one."""
    cost, names = found.cost, found.names
    if cost is None:
        return None
    where = f"{cost.device} at batch {cost.batch}, behind {cost.prompt_tokens} tokens of prompt"
    source = "predicted from its data sheet" if cost.predicted else "from its measured rates"
    fits = "" if cost.fits else "; weights and caches do not fit its memory"
    primary = cost.alone[names[found.recommendation.primary]]
    if not found.recommendation.ensemble:
        return f"Expected cost on {where}: {primary:.3g} ms per token, {source}{fits}."
    stands = "" if cost.stands is None else f"; {cost.stands:.0%} of drafted tokens taken to stand"
    return (
        f"Expected cost on {where}: {cost.together:.3g} ms per token, {cost.times_primary:.2f} times "
        f"{names[found.recommendation.primary]} alone ({primary:.3g} ms), {source}{stands}{fits}."
    )
