"""The decode loop: schedule a round, run it, postprocess, until no row is left."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from functools import partial

from ensemble_decode.decode.engine import Engine
from ensemble_decode.decode.scheduler import Scheduler, is_out_of_memory
from ensemble_decode.decode.sequence import Row
from ensemble_decode.decode.turns import Turns
from ensemble_decode.errors import EnsembleError

_PAUSE = 0.001  # seconds between two looks at a source that has no row for now, while none runs


def run(
    engine: Engine, scheduler: Scheduler, rows: Iterable[Row | None], turns: Turns | None = None
) -> Generator[Row, None, None]:
    """Run rows to their end; yields a row after each round that moved it.

    Args:
        engine: Runs the rounds.
        scheduler: Decides which rows take part in them.
        rows: Read as there is room; None in it: no row for now.
        turns: Of all runs on the same members; every round is a turn. None: no other run touches them.
    """
    source = iter(rows)
    turns = Turns() if turns is None else turns
    try:
        while not scheduler.done:
            with turns:
                moved = list(scheduler.admit(source))
                if scheduler.active:
                    moved += step(engine, scheduler)
                    turns.rounds += 1
            yield from moved
            if not moved and not scheduler.active:
                time.sleep(_PAUSE)
    finally:
        turns.soon(partial(_close, engine, scheduler))


def _close(engine: Engine, scheduler: Scheduler) -> None:
    engine.abandon()
    scheduler.close()


def step(engine: Engine, scheduler: Scheduler) -> list[Row]:
    """One round: schedule, run, postprocess; the rows that it moved. A round that runs out of memory is undone."""
    before = [row.snapshot() for row in scheduler.active]
    try:
        plan = scheduler.schedule()
        engine.run(plan)
    except (RuntimeError, MemoryError, EnsembleError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error)
    else:
        return scheduler.postprocess(plan)
    # Outside of the handler, where the error would still hold on to the round's tensors.
    engine.abandon()
    for snapshot in before:
        snapshot.restore()
    return scheduler.start_smaller(reason)
