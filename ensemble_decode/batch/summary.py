"""What a job reports at its end, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ensemble_decode.decode.batch_run import Counts

DONE, NOTHING_DONE, SOME_FAILED = 0, 1, 3  # 2 is wrong usage, in every command


@dataclass
class Summary:
    """What became of a job.

    Attributes:
        input: What the user called the input.
        output: What the user called the output.
        rows: Rows of the whole output.
        errors: Rows of the whole output that are errors, by kind.
        complete: Whether every line has its result.
        this_run: What this run added; None where nothing was left to do.
    """

    input: str
    output: str
    rows: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    this_run: dict[str, Any] | None = None

    @property
    def failed(self) -> int:
        """Rows of the whole output that are errors."""
        return sum(self.errors.values())

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0 if every row was done, 3 if some rows are errors, 1 if all of them are."""
        return DONE if not self.failed else NOTHING_DONE if self.failed == self.rows else SOME_FAILED

    def count(self, counts: Counts, models: Sequence[str], limits: Sequence[int] | None = None) -> None:
        """Take over what a run has counted.

        Args:
            counts: Of the run.
            models: The models' names.
            limits: Bytes per model's cache; None where there were none.
        """
        seconds = counts.seconds or 1e-9
        per_model = zip(
            models,
            counts.forwards,
            counts.forwarded,
            counts.prefix_tokens_reused,
            counts.forward_seconds,
            strict=True,
        )
        self.this_run = {
            "rows": counts.rows,
            "seconds": counts.seconds,
            "rows_per_second": counts.rows / seconds,
            "tokens": counts.tokens,
            "tokens_per_second": counts.tokens / seconds,
            "share_ensembled": counts.ensembled / counts.tokens if counts.tokens else 0.0,
            "acceptance": counts.accepted / counts.drafted if counts.drafted else None,
            "rounds": counts.rounds,
            "models": [
                {"name": name, "forwards": f, "tokens": t, "prefix_tokens_reused": r, "seconds": s}
                for name, f, t, r, s in per_model
            ],
            "seconds_forward": sum(counts.forward_seconds),
            "seconds_fusion": counts.fusion_seconds,
            "seconds_host": counts.host_seconds,
            "cache_limit_bytes": None if limits is None else sum(limits),
            "cache_peak_bytes": counts.peak_cache_bytes,
            "rows_put_back": counts.put_back,
            "failed_allocations": counts.failed_allocations,
        }

    def as_dict(self) -> dict[str, Any]:
        """The summary as JSON has it."""
        return asdict(self) | {"exit_code": self.exit_code}

    def lines(self) -> list[str]:
        """A few lines for people."""
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.errors.items()))
        out = [f"{self.rows} rows in {self.output}" + (f", {self.failed} of them errors ({told})" if told else "")]
        run = self.this_run
        if run is None:
            return [*out, "nothing was left to do"]
        out.append(
            f"this run: {run['rows']} rows, {run['tokens']} tokens in {run['seconds']:.1f} s: "
            f"{run['tokens_per_second']:.1f} tokens/s, {run['rows_per_second']:.2f} rows/s"
        )
        shares = [f"{run['share_ensembled']:.0%} of the tokens ensembled"]
        if run["acceptance"] is not None:
            shares.append(f"{run['acceptance']:.0%} of the drafted accepted")
        out.append("; ".join(shares))
        for model in run["models"]:
            reused = model["prefix_tokens_reused"]
            out.append(
                f"{model['name']}: {model['forwards']} forwards of {model['tokens']} tokens, {model['seconds']:.1f} s"
                + (f"; {reused} tokens of prompts copied from rows that begin alike" if reused else "")
            )
        out.append(
            f"forward {run['seconds_forward']:.1f} s, fusion {run['seconds_fusion']:.1f} s, "
            f"host {run['seconds_host']:.1f} s"
        )
        limit = run["cache_limit_bytes"]
        peak = f"caches: {run['cache_peak_bytes'] / 2**20:.1f} MiB at most"
        out.append(peak + (f" of {limit / 2**20:.1f} MiB allowed" if limit is not None else ""))
        if run["rows_put_back"] or run["failed_allocations"]:
            out.append(f"{run['rows_put_back']} rows put back, {run['failed_allocations']} failed allocations")
        return out
