"""What every member must do, as checks that run over any of them; nothing here knows an engine.

    subject = Subject(make=lambda **limits: MyMember(...), fresh=lambda ids: logits_of_the_whole_text)
    for check in CHECKS:
        check(subject)

Each check makes members of its own, and raises ``AssertionError`` with what differs. Test runners can parametrise over
``CHECKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ensemble_decode.errors import CacheError, CacheLimitError, ContextError, EnsembleError, InputError
from ensemble_decode.members.protocol import Member
from ensemble_decode.members.tree import Tree


@dataclass
class Subject:
    """A kind of member under test.

    Attributes:
        make: Makes a member with nothing in it. Its context holds 64 to 1,024 tokens.
        fresh: The logits ``[n, V]`` behind every token of a text of ``n`` ids, computed from scratch by the same model.
        vocabulary: The texts hold ids 0 to ``vocabulary`` − 1.
        tolerance: The largest difference between two computations of one logit, as a share of the logits' spread.
    """

    make: Callable[[], Member]
    fresh: Callable[[Sequence[int]], torch.Tensor]
    vocabulary: int
    tolerance: float = 1e-4
    _random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def text(self, length: int) -> list[int]:
        """A random text."""
        return torch.randint(self.vocabulary, (length,), generator=self._random).tolist()

    def equal(self, member: Member, values: torch.Tensor, ids: Sequence[int], what: str) -> None:
        """Hold logits against those behind the last ``len(values)`` tokens of a text, computed from scratch."""
        if not len(values):
            return
        values, wanted = values.float().cpu(), self.fresh(ids)[len(ids) - len(values) :].float().cpu()
        assert values.shape == wanted.shape, f"{what}: shape {list(values.shape)}, expected {list(wanted.shape)}"
        spread = float(wanted.std())
        if not member.capabilities.full_logits:
            scored = values > float("-inf")
            best = wanted.argmax(-1, keepdim=True)
            assert bool(scored.gather(-1, best).all()), f"{what}: the most probable id has no log-probability"
            wanted = torch.log_softmax(wanted, -1)[scored]
            values = values[scored]
        gap = float((values - wanted).abs().max())
        assert gap <= self.tolerance * spread, f"{what}: logits differ by {gap:.3g}, their spread is {spread:.3g}"


def refuses(error: type[EnsembleError], call: Callable[[], object], what: str) -> str:
    """``call`` raises ``error``; its message."""
    try:
        call()
    except error as raised:
        assert str(raised), f"{what}: {error.__name__} without a message"
        return str(raised)
    raise AssertionError(f"{what}: expected {error.__name__}, nothing was raised")


def rows_are_ragged(subject: Subject) -> None:
    """Rows of any lengths grow together, in any order, and each gets what it gets alone."""
    member = subject.make()
    texts = [subject.text(n) for n in (1, 9, 4, 17)]
    slots = [member.acquire() for _ in texts]
    assert len(set(slots)) == len(slots), "acquire() gave one slot twice"
    assert all(member.length(slot) == 0 for slot in slots), "a new slot holds tokens"
    for order, growth in (((2, 0, 3, 1), (3, 1, 0, 2)), ((1, 3, 0, 2), (1, 6, 2, 1))):
        out = member.extend(
            [slots[i] for i in order],
            [texts[i] if member.length(slots[i]) == 0 else texts[i][member.length(slots[i]) :] for i in order],
            "last",
        )
        assert out.starts == list(range(len(order) + 1)), f"starts {out.starts}, expected one position per row"
        for place, i in enumerate(order):
            assert member.length(slots[i]) == len(texts[i]), f"slot {slots[i]} holds {member.length(slots[i])} tokens"
            subject.equal(member, out.values[out.starts[place] : out.starts[place + 1]], texts[i], f"row {i}")
            texts[i] = texts[i] + subject.text(growth[place] + 1)


def positions_are_those_asked_for(subject: Subject) -> None:
    """Asked for are "last", "all", "none" or counts per row; a row may be empty where nothing is asked of it."""
    member = subject.make()
    first, second, third = subject.text(6), subject.text(3), subject.text(5)
    a, b, c = (member.acquire() for _ in range(3))
    out = member.extend([a, b], [first, second], "all")
    assert out.starts == [0, 6, 9], f'logits="all": starts {out.starts}'
    subject.equal(member, out.values[:6], first, "all of row 0")
    subject.equal(member, out.values[6:], second, "all of row 1")
    out = member.extend([c], [third], "none")
    assert out.starts == [0, 0] and len(out.values) == 0, 'logits="none" gave some'
    more, other = subject.text(4), subject.text(2)
    out = member.extend([c, a, b], [more, [], other], [3, 0, 1])
    assert out.starts == [0, 3, 3, 4], f"counts per row: starts {out.starts}"
    subject.equal(member, out.values[:3], third + more, "the last three of row 2")
    subject.equal(member, out.values[3:], second + other, "the last of row 1")
    assert out.values.shape[1] >= subject.vocabulary, "fewer logits than ids"


def rows_roll_back(subject: Subject) -> None:
    """To any shorter length, 0 too; never to a longer one. A member that cannot says so, and the row stays."""
    member = subject.make()
    text, beside = subject.text(20), subject.text(7)
    slot, other = member.acquire(), member.acquire()
    member.extend([slot, other], [text, beside], "none")
    if not member.capabilities.rollback:
        refuses(CacheError, lambda: member.rollback(slot, 19), "a rollback by a member that cannot")
        tail = subject.text(5)
        values = member.extend([slot], [tail], "all").values
        subject.equal(member, values, text + tail, "after a refused rollback")
        return
    for keep in (19, 12, 12, 3, 0):
        member.rollback(slot, keep)
        assert member.length(slot) == keep, f"rolled back to {keep}, holds {member.length(slot)}"
        tail = subject.text(5)
        subject.equal(member, member.extend([slot], [tail], "all").values, text[:keep] + tail, f"behind {keep} tokens")
        member.rollback(slot, keep)
    refuses(CacheError, lambda: member.rollback(slot, 1), "an empty row rolled back to 1 token")
    refuses(CacheError, lambda: member.rollback(slot, -1), "a row rolled back to -1 tokens")
    assert member.length(slot) == 0, "a refused rollback changed the length"
    out = member.extend([other], [subject.text(1)], "none")
    assert len(out.values) == 0 and member.length(other) == 8, "the row beside it was touched"


def errors_change_nothing(subject: Subject) -> None:
    """Whatever is refused leaves every row as it was."""
    member = subject.make()
    text = subject.text(8)
    slot, free = member.acquire(), member.acquire()
    member.extend([slot], [text], "none")
    member.release(free)
    limit = member.context_length
    wrong: list[tuple[type[EnsembleError], str, Callable[[], object]]] = [
        (InputError, "a slot twice", lambda: member.extend([slot, slot], [[1], [2]])),
        (InputError, "an id past the vocabulary", lambda: member.extend([slot], [[2**31 - 1]])),
        (InputError, "a negative id", lambda: member.extend([slot], [[-1]])),
        (InputError, "more positions than new ids", lambda: member.extend([slot], [[1, 2]], [3])),
        (InputError, "a row without ids and logits asked for", lambda: member.extend([slot], [[]], "last")),
        (InputError, "an unknown word for logits", lambda: member.extend([slot], [[1]], "some")),
        (ContextError, "a row past the context", lambda: member.extend([slot], [[1] * (limit - 7)], "none")),
        (CacheError, "a slot that is not held", lambda: member.extend([free], [[1]])),
        (CacheError, "the length of a slot that is not held", lambda: member.length(free)),
        (CacheError, "the release of a slot that is not held", lambda: member.release(free)),
    ]
    for error, what, call in wrong:
        refuses(error, call, what)
        assert member.length(slot) == 8, f"{what}: the row now holds {member.length(slot)} tokens"
    tail = subject.text(3)
    subject.equal(member, member.extend([slot], [tail], "all").values, text + tail, "after refusals")


def slots_are_reused(subject: Subject) -> None:
    """What a released slot held is gone: its next row starts from nothing."""
    member = subject.make()
    slots = [member.acquire() for _ in range(3)]
    member.extend(slots, [subject.text(n) for n in (11, 30, 2)], "none")
    assert member.held == 3 and member.longest == 30, f"held {member.held}, longest {member.longest}"
    for slot in slots:
        member.release(slot)
    assert member.held == 0, f"{member.held} slots are held after all were released"
    again = [member.acquire() for _ in range(3)]
    assert [member.length(slot) for slot in again] == [0, 0, 0], "a reused slot holds tokens"
    texts = [subject.text(n) for n in (5, 1, 13)]
    out = member.extend(again, texts, "all")
    for i, text in enumerate(texts):
        subject.equal(member, out.values[out.starts[i] : out.starts[i + 1]], text, f"reused slot {i}")


def contexts_can_be_filled(subject: Subject) -> None:
    """Exactly to ``context_length``, and not a token further."""
    member = subject.make()
    limit = member.context_length
    text = subject.text(limit)
    slot = member.acquire()
    member.extend([slot], [text[:-2]], "none")
    subject.equal(member, member.extend([slot], [text[-2:]], "all").values, text, "the last two positions")
    refuses(ContextError, lambda: member.extend([slot], [[1]]), "one token past the context")
    assert member.length(slot) == limit, f"a full row holds {member.length(slot)} of {limit} tokens"
    if member.capabilities.rollback:
        member.rollback(slot, limit - 1)
        subject.equal(member, member.extend([slot], [text[-1:]], "all").values, text, "the last position again")


def beginnings_are_shared(subject: Subject) -> None:
    """A row that begins like another starts with what that one holds; nothing is taken after ``forget``."""
    member = subject.make()
    if not member.capabilities.common_beginnings:
        slot = member.acquire(subject.text(40))
        assert member.length(slot) == 0, "a member that shares no beginnings began a row with tokens"
        return
    common = subject.text(48)
    one, other = common + subject.text(4), common + subject.text(6)
    a = member.acquire(one)
    member.extend([a], [one], "none")
    reach = member.shared(other)
    assert 0 < reach <= len(common), f"{reach} tokens of a common beginning of {len(common)} are said to be there"
    b = member.acquire(other)
    begun = member.length(b)
    assert begun == reach, f"shared() says {reach}, the row begins with {begun}"
    subject.equal(member, member.extend([b], [other[begun:]], "all").values, other, "behind a common beginning")
    c = member.acquire(common[:40])
    assert member.length(c) < 40, "the last id was taken over: its logits are wanted"
    d = member.acquire(subject.text(1) + common)
    assert member.length(d) == 0, "another text was taken for this one"
    late = subject.text(60)
    first, second = member.acquire(late), member.acquire(late)  # nothing is there yet
    member.extend([first], [late], "none")
    reach = member.take_over(second, late)
    assert 0 < reach < len(late), f"{reach} of {len(late)} tokens were taken over from a row that has been read"
    assert member.length(second) == reach, f"take_over() says {reach}, the row holds {member.length(second)}"
    subject.equal(member, member.extend([second], [late[reach:]], "all").values, late, "behind what was taken over")
    for slot in (b, c, d, second):
        member.release(slot)
    member.forget()
    assert member.shared(other) == 0, "forget() left something to take over from a row that is held, or was released"
    assert member.length(a) == len(one), "forget() changed a row that is held"
    tail = member.acquire(other)
    assert member.length(tail) == 0, "forget() left a beginning"
    subject.equal(member, member.extend([tail], [other], "last").values, other, "after forget()")


def trees_are_read(subject: Subject) -> None:
    """Several continuations of each row at once; the rows stay as they are; one path can be kept."""
    member = subject.make()
    if not member.capabilities.token_trees:
        return
    texts = [subject.text(n) for n in (12, 5)]
    slots = [member.acquire() for _ in texts]
    member.extend(slots, texts, "none")
    trees, paths, ways = [], [], []
    for text in texts:
        tree, stem = Tree(), subject.text(2)
        tails = [
            (len(text), stem + subject.text(3)),
            (len(text), stem + subject.text(2)),
            (len(text) - 2, subject.text(4)),
        ]
        own = []
        for fork, tail in tails:
            nodes = tree.add(fork, tail)
            own.append(nodes)
            for node in nodes[-2:]:
                tree.want(node)
        trees.append(tree)
        paths.append(own)
        ways.append(tails)
    out = member.read_trees(slots, trees)
    for r, text in enumerate(texts):
        values = out.values[out.starts[r] : out.starts[r + 1]]
        assert len(values) == len(trees[r].wanted), f"row {r}: {len(values)} positions, {len(trees[r].wanted)} wanted"
        for (fork, tail), nodes in zip(ways[r], paths[r], strict=True):
            at = [trees[r].want(node) for node in nodes[-2:]]
            subject.equal(member, values[at], text[:fork] + tail, f"row {r}, path from {fork}")
        assert member.length(slots[r]) == len(text), f"row {r} holds {member.length(slots[r])} tokens after read_trees"
    refuses(InputError, lambda: member.read_trees(slots[:1], trees), "fewer slots than trees")
    beyond = Tree()
    beyond.want(beyond.add(len(texts[0]) + 1, [1])[-1])
    refuses(InputError, lambda: member.read_trees(slots[:1], [beyond]), "a fork behind the row's end")
    strange = Tree()
    strange.want(strange.add(len(texts[0]), [2**31 - 1])[-1])
    refuses(InputError, lambda: member.read_trees(slots[:1], [strange]), "a tree with an id past the vocabulary")
    out = member.read_trees(slots, trees)
    member.keep_paths(slots, trees, [paths[0][1], paths[1][2]])
    behind = [subject.text(2), subject.text(1)]
    out = member.extend(slots, behind, "all")
    for r, choice in enumerate((1, 2)):
        fork, tail = ways[r][choice]
        whole = texts[r][:fork] + tail + behind[r]
        assert member.length(slots[r]) == len(whole), f"row {r} holds {member.length(slots[r])}, expected {len(whole)}"
        subject.equal(member, out.values[out.starts[r] : out.starts[r + 1]], whole, f"behind the kept path of row {r}")


def memory_is_limited(subject: Subject) -> None:
    """What the limit does not hold is refused with the figures before anything changes; what it holds can still be
    read."""
    member = subject.make()
    assert member.could_hold(2, 16), "without a limit two short rows do not fit"
    if not member.bytes_per_token:
        return
    text = subject.text(8)
    slot = member.acquire()
    member.extend([slot], [text], "none")
    assert member.bytes_allocated > 0, "a row takes no memory"
    before, limit = member.memory, member.bytes_allocated
    member.limit_memory(limit)
    assert member.limited and member.memory == limit, "limit_memory() did not limit"
    rows = 1 + limit // (member.bytes_per_token * 8)
    assert not member.could_hold(rows, 8), f"{rows} rows of 8 tokens are said to fit into {limit} bytes"
    figures = member.why_not(rows, 8)
    assert figures and any(sign.isdigit() for sign in figures), f"why_not() without figures: {figures!r}"
    assert member.why_not(1, 8) is None, "why_not() gives a reason for what fits"
    refuses(CacheLimitError, lambda: member.make_room(rows, 8, ahead=8, most=rows), "room past the limit")
    assert member.length(slot) == 8 and member.bytes_allocated <= limit, "a refusal changed something"
    if member.capabilities.rollback:
        member.rollback(slot, 6)
        subject.equal(member, member.extend([slot], [text[6:]], "all").values, text, "within the limit")
    member.limit_memory(before)
    moved = member.make_room(3, 24, ahead=48, most=3)
    slot = moved.get(slot, slot)
    longer = subject.text(16)
    subject.equal(member, member.extend([slot], [longer], "last").values, text + longer, "after room was made")
    member.release(slot)
    member.watch_peak()
    member.free_memory()
    assert member.bytes_allocated == 0, f"free_memory() left {member.bytes_allocated} bytes"


def work_is_counted(subject: Subject) -> None:
    """``stats`` counts every id that is forwarded, and forwards."""
    member = subject.make()
    tokens, forwards = member.stats.tokens, member.stats.forwards
    slots = [member.acquire(), member.acquire()]
    member.extend(slots, [subject.text(5), subject.text(2)], "none")
    assert member.stats.tokens - tokens == 7, f"7 ids were forwarded, {member.stats.tokens - tokens} counted"
    assert member.stats.forwards > forwards, "no forward was counted"
    assert member.stats.seconds >= 0


CHECKS: tuple[Callable[[Subject], None], ...] = (
    rows_are_ragged,
    positions_are_those_asked_for,
    rows_roll_back,
    errors_change_nothing,
    slots_are_reused,
    contexts_can_be_filled,
    beginnings_are_shared,
    trees_are_read,
    memory_is_limited,
    work_is_counted,
)
"""Every check, in the order from the simplest on."""
