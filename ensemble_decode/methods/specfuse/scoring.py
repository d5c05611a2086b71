"""Mutual scoring: every active model reads all candidates of a row in one forward over what its cache already holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ensemble_decode import kernels
from ensemble_decode.members.tree import Tree
from ensemble_decode.methods.base import StepContext, StepRow
from ensemble_decode.methods.drafts import Draft
from ensemble_decode.vocab.common_prefix import common_prefix


@dataclass
class Candidate:
    """A segment that may come next.

    Attributes:
        text: Its bytes.
        ended: Whether END follows them.
        drafted_by: The models whose draft it is; none: a literal.
    """

    text: bytes
    ended: bool
    drafted_by: list[int]


@dataclass
class Ballot:
    """One row's candidates in one round.

    Attributes:
        row: The row.
        active: The models that draft and judge, ascending.
        segments: Their drafts, in their order.
        candidates: What they judge.
        views: ``views[i][c]``: how model ``active[i]`` reads candidate c, in ``trees[i]``.
        trees: Per active model what it still has to read.
    """

    row: StepRow
    active: list[int]
    segments: list[Draft]
    candidates: list[Candidate]
    views: list[list[View]] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)

    def scores(self) -> list[list[float]]:
        """``S_v(c)``, a list per active model."""
        return [[sum(view.probs) / len(view.probs) for view in views] for views in self.views]

    def drafts(self) -> list[int]:
        """The number of each active model's own candidate."""
        return [next(c for c, made in enumerate(self.candidates) if m in made.drafted_by) for m in self.active]


@dataclass
class View:
    """How one model reads one candidate.

    Attributes:
        probs: The probabilities of the candidate's ids, END included.
        cached: So many leading ids of prompt + text + candidate are in the cache as they are, where ``path`` is empty.
        stored: Logits kept from drafting, and the id that they are read at.
        reads: Rows of the tree's logits, and the ids that they are read at.
        path: The nodes of the tree that the candidate's text needs.
    """

    probs: list[float]
    cached: int
    stored: tuple[torch.Tensor, int] | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


def score(context: StepContext, ballots: Sequence[Ballot]) -> None:
    """Fill in every ballot's views. A row with logits that give no probability fails, naming the model."""
    for m in range(len(context.devices)):
        voting = [ballot for ballot in ballots if m in ballot.active and not ballot.row.finished]
        if not voting:
            continue
        for ballot in voting:
            segment = ballot.segments[ballot.active.index(m)]
            ballot.trees.append(Tree())
            ballot.views.append([_view(ballot.row, segment, c, ballot.trees[-1]) for c in ballot.candidates])
        _read_stored(context, m, voting)
        _read_trees(context, m, [ballot for ballot in voting if ballot.trees[-1].ids and not ballot.row.finished])


def _view(row: StepRow, segment: Draft, candidate: Candidate, tree: Tree) -> View:
    """Find out which of a candidate's probabilities are known from drafting, and put the rest into the tree."""
    m, prompt, held = segment.model, row.prompt(segment.model), row.ids[segment.model]
    ids = row.spell(m, bytes(row.data) + candidate.text)
    shared = common_prefix(held, ids)
    targets = ids[shared:] + [kernels.TARGET_END] * candidate.ended
    if shared < len(held):  # the text's last ids change: the first to change is read behind the one before it
        before = ids[shared - 1] if shared else prompt[-1]
        fork = len(prompt) + shared - 1
        path = tree.add(fork, [before, *targets[:-1]])
        return View([], fork, None, _wants(tree, path, targets), path)
    drafted = [*segment.ids[:-1], kernels.TARGET_END] if segment.ended else segment.ids
    agreed = common_prefix(drafted, targets)
    view = View(segment.probs[:agreed], segment.start + min(agreed, len(drafted) - 1))
    rest = targets[agreed:]
    if not rest:
        return view
    if agreed < len(drafted):
        view.stored = segment.logits[agreed], rest[0]
        view.path = tree.add(segment.start + agreed, rest[:-1])
        view.reads = _wants(tree, view.path, rest[1:])
    else:  # it goes on where the draft stopped, whose last id has not been forwarded
        view.path = tree.add(segment.start + agreed - 1, [drafted[-1], *rest[:-1]])
        view.reads = _wants(tree, view.path, rest)
    return view


def _wants(tree: Tree, path: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Ask for the logits behind every node of a path; one target each."""
    return [(tree.want(node), target) for node, target in zip(path, targets, strict=True)]


def _read_stored(context: StepContext, m: int, ballots: Sequence[Ballot]) -> None:
    readers = [(b.row, view, *view.stored) for b in ballots for view in b.views[-1] if view.stored is not None]
    if readers:
        logits = torch.stack([values for _, _, values, _ in readers])
        _note(context, m, [(row, view) for row, view, _, _ in readers], logits, [target for *_, target in readers])


def _read_trees(context: StepContext, m: int, ballots: Sequence[Ballot]) -> None:
    if not ballots:
        return
    out = context.read_trees(m, [b.row for b in ballots], [b.trees[-1] for b in ballots])
    readers, places, targets = [], [], []
    for start, ballot in zip(out.starts, ballots, strict=False):
        for view in ballot.views[-1]:
            for place, target in view.reads:
                readers.append((ballot.row, view))
                places.append(start + place)
                targets.append(target)
    if readers:
        same = places == list(range(len(out.values)))
        _note(context, m, readers, out.values if same else out.values[places], targets)


def _note(
    context: StepContext, m: int, readers: Sequence[tuple[StepRow, View]], logits: torch.Tensor, targets: Sequence[int]
) -> None:
    """Add the probability of one target per row of ``logits`` to the view that reads it."""
    with context.time_fusion():
        checked = kernels.verify_draft(
            logits,
            torch.tensor(targets, dtype=torch.int32, device=logits.device),
            context.tensors.allowed[m],
            context.tensors.eos_ids[m],
        )
        probs, flags = checked.target_prob.tolist(), checked.flags.tolist()
    for i, ((row, view), prob, flag) in enumerate(zip(readers, probs, flags, strict=True)):
        if flag and not row.finished:
            context.fail(row, m, logits[i])
        view.probs.append(prob)
