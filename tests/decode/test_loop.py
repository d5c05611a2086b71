"""Rounds without models: who is admitted, who reads, who waits, who makes room, and what a failed round leaves."""

from dataclasses import dataclass, field

import pytest
import torch
from support import tokenizers

import ensemble_decode as ed
from ensemble_decode.decode.loop import run, step
from ensemble_decode.decode.scheduler import Scheduler, is_out_of_memory
from ensemble_decode.decode.sequence import Request, Row
from ensemble_decode.errors import CacheLimitError, EnsembleError


@dataclass
class Slots:
    """A member that has slots and nothing else; ``most`` rows, or ``tokens`` of all of them together, fit."""

    most: int | None = None
    tokens: int | None = None
    lengths: dict[int, int] = field(default_factory=dict)
    asked: list[list[int] | None] = field(default_factory=list)
    known: int = 0  # tokens that ``shared`` finds
    memory: int | None = None
    freed: int = 0
    forgotten: int = 0

    def acquire(self, ids=None) -> int:
        self.asked.append(ids)
        slot = next(i for i in range(99) if i not in self.lengths)
        self.lengths[slot] = 0
        return slot

    def release(self, slot) -> None:
        del self.lengths[slot]

    def length(self, slot) -> int:
        return self.lengths[slot]

    def shared(self, ids) -> int:
        return self.known

    def forget(self) -> None:
        self.forgotten += 1

    @property
    def limited(self) -> bool:
        return self.most is not None or self.tokens is not None

    @property
    def held(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths.values(), default=0)

    def could_hold(self, rows, length) -> bool:
        return (self.most is None or rows <= self.most) and (self.tokens is None or rows * length <= self.tokens)

    def make_room(self, rows, length, *, ahead, most):
        return {}

    def why_not(self, rows, length):
        return None if self.could_hold(rows, length) else f"{rows} rows of {length} tokens"

    def free_memory(self) -> None:
        self.freed += 1


class Rounds:
    """An engine that writes ``a`` into every row that is ready, and reads the chunks."""

    def __init__(self, members, failing=()):
        self.members, self.failing = members, dict(failing)
        self.plans, self.abandoned = [], 0

    def run(self, plan) -> None:
        self.plans.append(
            ([r.request.number for r in plan.ready], [(m, r.request.number, ids) for m, r, ids in plan.chunks])
        )
        for m, row, chunk in plan.chunks:
            row.held[m] += len(chunk)
        for row in plan.ready:
            row.append_tokens([97], [b"a"])
            row.held[:] = [row.total(m) for m in range(len(self.members))]
        error = self.failing.pop(len(self.plans) - 1, None)
        if error is not None:
            raise error

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture(scope="module")
def vocab():
    return ed.AlignedVocab.build([tokenizers.build("bytes")] * 2, cache_dir=None)


def rows_of(vocab, *lengths, tokens=3, first=0):
    """A row per length of its prompt, whose ids tell the rows apart."""
    return [
        Row(Request(first + i, [[i] * n, [i] * n], tokens), vocab, [500, 500], range(2)) for i, n in enumerate(lengths)
    ]


def numbers(rows):
    return [row.request.number for row in rows]


def test_a_row_that_ends_is_replaced_and_slots_are_given_back(vocab):
    members = [Slots(), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 2)
    rows = rows_of(vocab, 4, 4, 4, 4)
    rows[1].request.max_new_tokens = 1
    moved = list(run(engine, scheduler, rows))
    assert [ready for ready, _ in engine.plans] == [[0, 1], [0, 2], [0, 2], [2, 3], [3], [3]]
    assert len(moved) == 3 + 1 + 3 + 3
    assert all(row.data == b"a" * row.request.max_new_tokens for row in rows)
    assert not members[0].lengths
    assert members[1].forgotten == 1


def test_prompts_are_read_in_chunks_one_row_at_a_time(vocab):
    members = [Slots(), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 3, prefill_tokens=10)
    rows = rows_of(vocab, 4, 25, 4, tokens=9)
    source = iter(rows)
    list(scheduler.admit(source))
    for _ in range(4):
        step(engine, scheduler)
    sizes = [[(m, number, len(ids)) for m, number, ids in chunks] for _, chunks in engine.plans]
    # 4 of the 10 tokens go to row 0, which joins; row 1 reads the other 6, then 10, and joins with its last 9.
    assert sizes == [[(0, 1, 6), (1, 1, 6)], [(0, 1, 10), (1, 1, 10)], [(0, 2, 1), (1, 2, 1)], []]
    # Row 2 comes after row 1: one token is left beside its last 9, so it reads one of its 4 and joins a round later.
    assert [ready for ready, _ in engine.plans] == [[0], [0], [0, 1], [0, 1, 2]]


def test_the_last_token_of_a_prompt_is_left_to_the_rows_first_round(vocab):
    members = [Slots(), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 1, prefill_tokens=10)
    (row,) = rows_of(vocab, 11, tokens=1)
    list(run(engine, scheduler, [row]))
    assert [len(ids) for _, _, ids in engine.plans[0][1]] == [10, 10]
    assert [ready for ready, _ in engine.plans] == [[], [0]]


@pytest.mark.parametrize(("share", "length", "waits"), [(True, 200, True), (True, 60, False), (False, 200, False)])
def test_a_row_waits_a_round_for_a_beginning_that_another_is_about_to_read(vocab, share, length, waits):
    members = [Slots(), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 3, share=share)
    rows = rows_of(vocab, length, length, length)
    rows[1].request.prompt_ids[:] = [list(ids) for ids in rows[0].request.prompt_ids]  # rows 0 and 1 begin alike
    list(run(engine, scheduler, rows))
    assert [ready for ready, _ in engine.plans[:2]] == ([[0, 2], [0, 1, 2]] if waits else [[0, 1, 2], [0, 1, 2]])
    assert all((ids is not None) == share for ids in members[0].asked)


def test_rows_that_the_caches_cannot_hold_wait_or_fail_with_figures(vocab):
    members = [Slots(tokens=300), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 5)
    rows = rows_of(vocab, 100, 100, 400, 100, tokens=2)
    moved = list(run(engine, scheduler, rows))
    # A row is expected to need 100 + 32 positions, and 2 more while it runs: two of them fit.
    assert [ready for ready, _ in engine.plans] == [[0, 1], [0, 1], [3], [3]]
    assert rows[2] in moved
    assert (rows[2].finish_reason, rows[2].error_kind) == ("error", "memory")
    assert "1 rows of 432 tokens" in rows[2].error


def test_the_youngest_row_makes_room_and_comes_back(vocab):
    members = [Slots(tokens=2 * (100 + 32) + 5), Slots()]
    engine, scheduler = Rounds(members), Scheduler(members, 2)
    rows = rows_of(vocab, 100, 100, tokens=6)
    rows[0].request.max_new_tokens = rows[1].request.max_new_tokens = 6
    scheduler.room.fits = lambda rows, ahead=False, fits=scheduler.room.fits: fits(rows)  # let in whoever fits now
    list(run(engine, scheduler, rows))
    # 2 * (100 + 32 + n) tokens are too many from n = 3 on: row 1 goes, and is read again when row 0 has ended.
    assert [ready for ready, _ in engine.plans] == [[0, 1]] * 3 + [[0]] * 3 + [[1]] * 3
    assert scheduler.put_back == 1
    assert [row.data for row in rows] == [b"a" * 6] * 2


def test_a_round_that_runs_out_of_memory_is_undone_and_half_the_rows_go_on(vocab):
    members = [Slots(), Slots()]
    engine = Rounds(members, failing={1: torch.OutOfMemoryError("CUDA out of memory")})
    scheduler = Scheduler(members, 4)
    rows = rows_of(vocab, 4, 4, 4, 4)
    source = iter(rows)
    list(scheduler.admit(source))
    assert numbers(step(engine, scheduler)) == [0, 1, 2, 3]
    assert step(engine, scheduler) == []
    assert [bytes(row.data) for row in rows] == [b"a"] * 4, "the round's tokens are taken back"
    assert [row.held for row in rows] == [[0, 0]] * 4
    assert (members[0].lengths, members[0].freed, engine.abandoned) == ({}, 1, 1)
    assert (scheduler.limit, scheduler.failed_allocations, scheduler.rounds) == (2, 1, 1)
    list(run(engine, scheduler, source))
    assert [ready for ready, _ in engine.plans[2:]] == [[0, 1]] * 2 + [[2, 3]] * 2
    assert [row.data for row in rows] == [b"aaa"] * 4


def test_a_row_alone_is_tried_twice(vocab):
    members = [Slots(), Slots()]
    for times in (1, 2):
        engine = Rounds(members, failing=dict.fromkeys(range(times), MemoryError("no more")))
        (row,) = rows_of(vocab, 4)
        moved = list(run(engine, Scheduler(members, 4), [row]))
        assert moved[-1] is row
        assert row.finish_reason == ("length" if times == 1 else "error")
        assert (row.error is None) == (times == 1)
        assert len(engine.plans) == (4 if times == 1 else 2)


def test_the_batch_grows_again_after_calm_rounds(vocab):
    members = [Slots(), Slots()]
    engine = Rounds(members, failing={0: MemoryError("no more")})
    scheduler = Scheduler(members, 4)
    list(run(engine, scheduler, rows_of(vocab, 4, 4, tokens=400)))
    # The second row starts after the 256th round beside the first: 400 - 256 rounds together, then 256 alone.
    assert [ready for ready, _ in engine.plans[1:]] == [[0]] * 256 + [[0, 1]] * 144 + [[1]] * 256
    assert scheduler.limit == 1 + 656 // 256


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), EnsembleError("broken"), ValueError("x")])
def test_other_errors_end_the_run_and_free_everything(vocab, error):
    members = [Slots(), Slots()]
    engine = Rounds(members, failing={1: error})
    with pytest.raises(type(error), match=str(error)):
        list(run(engine, Scheduler(members, 2), rows_of(vocab, 4, 4, 4)))
    assert not members[0].lengths
    assert engine.abandoned == 1


def test_no_row_for_now_is_not_the_end(vocab):
    members = [Slots(), Slots()]
    engine = Rounds(members)
    first, second = rows_of(vocab, 4, 4, tokens=2)
    moved = list(run(engine, Scheduler(members, 2), iter([first, None, None, None, second])))
    assert [ready for ready, _ in engine.plans] == [[0], [0], [1], [1]]
    assert len(moved) == 4


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (CacheLimitError("x"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (EnsembleError("out of memory"), False),
    ],
)
def test_what_counts_as_memory_running_out(error, memory):
    assert is_out_of_memory(error) == memory


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 2, "prefill_tokens": 0}])
def test_limits_below_one_are_refused(options):
    with pytest.raises(ed.InputError, match="must be at least 1, got 0"):
        Scheduler([Slots()], **options)
