"""What is measured together: lists of configurations at lists of sizes, into one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ensemble_decode.bench.measure import Cell, measure
from ensemble_decode.bench.record import Record
from ensemble_decode.bench.setup import Bench, prompts
from ensemble_decode.bench.subjects import Subject


def measure_into(
    record: Record,
    bench: Bench,
    names: Sequence[str],
    *,
    suite: str,
    batches: Sequence[int],
    prompt_tokens: Sequence[int],
    tokens: Sequence[int],
    rounds: int,
    warm_up: int = 4,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Measure every configuration of ``names`` at every size; those that cannot run a batch are listed as skipped, with
    the reason."""
    subjects = [subject for name in names for subject in bench.subject(name)]
    for batch in batches:
        able = [subject for subject in subjects if _able(record, subject, batch)]
        for prompt in prompt_tokens:
            texts = prompts(bench.ensemble, prompt, batch)
            for length in tokens:
                say(f"{suite}: batch {batch}, {prompt} + {length} tokens, {len(able)} configurations")
                samples = (
                    measure(able, texts, length, rounds=rounds, meter=bench.meter, warm_up=warm_up) if able else {}
                )
                for subject in able:
                    cell = Cell(
                        suite,
                        subject.name,
                        subject.label,
                        subject.kind,
                        bench.names,
                        batch,
                        prompt,
                        length,
                        samples[subject.name],
                    )
                    record.cells.append(cell)


def _able(record: Record, subject: Subject, batch: int) -> bool:
    reason = subject.refusal(batch)
    if reason is not None:
        entry = {"subject": subject.name, "label": subject.label, "batch": batch, "reason": reason}
        if entry not in record.skipped:
            record.skipped.append(entry)
    return reason is None
