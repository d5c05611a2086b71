"""A row as it stood before a round, so that a round that ran out of memory leaves no trace in it."""

from __future__ import annotations

import copy
from typing import Any

from ensemble_decode.decode.sequence import Row
from ensemble_decode.outputs import Stats


def _copied(stats: Stats) -> Stats:
    other = copy.copy(stats)
    for name, value in vars(stats).items():
        if isinstance(value, list):
            setattr(other, name, list(value))
    return other


class Snapshot:
    """What a round may change in a row. ``restore`` puts it back; the caches are left to the caller, who empties them.

    The ids of models that follow the bytes are found again from the bytes. A method's state is copied by ``copy.copy``.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._data = bytes(row.data)
        self._ids = list(row.ids[row.primary])
        self._fields: dict[str, Any] = {
            "token_ends": list(row.token_ends),
            "ensembled_at": list(row.ensembled_at),
            "models": row.models,
            "end_id": row.end_id,
            "finish_reason": row.finish_reason,
            "stop_reason": row.stop_reason,
            "ended": row.ended,
            "error": row.error,
            "error_kind": row.error_kind,
        }
        self._stats, self._state = _copied(row.stats), copy.copy(row.state)
        self._traced = len(row.trace)
        self._ensembled_until = row.ensembled_until

    def restore(self) -> None:
        row = self.row
        forwarded = row.stats.forwarded  # was run, whatever became of it
        for name, value in self._fields.items():
            setattr(row, name, value)
        row.stats, row.state = self._stats, self._state
        row.stats.forwarded = forwarded
        del row.trace[self._traced :]
        row.restore_text(self._data, self._ids, self._ensembled_until)
