"""Checks of what is asked of a member, the same for every kind of member and made before anything changes."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_decode.errors import ContextError, InputError
from ensemble_decode.members.tree import Tree


def wanted_positions(name: str, slots: int, counts: Sequence[int], logits: str | Sequence[int]) -> list[int]:
    """How many trailing new positions of each row are read.

    Args:
        name: What errors call the member.
        slots: How many slots were given.
        counts: New ids per row.
        logits: As in ``Member.extend``.

    Raises:
        InputError: The numbers of rows differ, or a row is asked for more positions than it has new ids.
    """
    if len(counts) != slots:
        raise InputError(f"{name}: {slots} slots but {len(counts)} lists of new ids")
    if isinstance(logits, str):
        kinds = {"last": [1] * len(counts), "all": list(counts), "none": [0] * len(counts)}
        if logits not in kinds:
            raise InputError(f"{name}: logits={logits!r} is not known; use 'last', 'all', 'none' or a count per row")
        wanted = kinds[logits]
    else:
        wanted = list(logits)
    if len(wanted) != len(counts):
        raise InputError(f"{name}: {len(counts)} rows but {len(wanted)} counts of logits")
    for row, (want, count) in enumerate(zip(wanted, counts, strict=True)):
        if not 0 <= want <= count:
            raise InputError(f"{name}: row {row} adds {count} ids, so logits of {want} positions cannot be given")
    return wanted


def check_extension(
    name: str,
    slots: Sequence[int],
    new_ids: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    context_length: int,
    id_limit: int,
) -> None:
    """Refuse new ids that rows cannot take.

    Args:
        name: What errors call the member.
        slots: The rows' slots.
        new_ids: Token ids per row.
        lengths: Tokens that each row holds.
        context_length: The most tokens that a row can hold.
        id_limit: Ids lie between 0 and this less 1.

    Raises:
        InputError: A slot appears twice, or an id is outside the vocabulary.
        ContextError: A row would be longer than ``context_length``.
    """
    if len(set(slots)) != len(slots):
        raise InputError(f"{name}: a slot appears twice in {list(slots)}; join its ids into one row")
    for row, (slot, ids, length) in enumerate(zip(slots, new_ids, lengths, strict=True)):
        if length + len(ids) > context_length:
            raise ContextError(_too_long(name, row, slot, length + len(ids), context_length))
        if len(ids) and not (min(ids) >= 0 and max(ids) < id_limit):
            raise InputError(f"{name}: row {row} has a token id that is not between 0 and {id_limit - 1}")


def check_trees(
    name: str,
    slots: Sequence[int],
    trees: Sequence[Tree],
    lengths: Sequence[int],
    *,
    context_length: int,
    id_limit: int,
) -> None:
    """Refuse trees that do not continue their rows.

    Args:
        name: What errors call the member.
        slots: The rows' slots.
        trees: One per slot.
        lengths: Tokens that each row holds.
        context_length: The most tokens that a row can hold.
        id_limit: Ids lie between 0 and this less 1.

    Raises:
        InputError: The numbers of slots and trees differ, a slot appears twice, a tree forks behind its row's end, or
            an id is outside the vocabulary.
        ContextError: A node lies past ``context_length``.
    """
    if len(slots) != len(trees) or len(set(slots)) != len(slots):
        raise InputError(f"{name}: {len(trees)} trees need as many slots, each once; got {list(slots)}")
    for row, (slot, tree, length) in enumerate(zip(slots, trees, lengths, strict=True)):
        if not tree.ids:
            continue
        if max(tree.forks) > length:
            raise InputError(f"{name}: row {row} forks at {max(tree.forks)}, its slot {slot} holds {length} tokens")
        if max(tree.positions) >= context_length:
            raise ContextError(_too_long(name, row, slot, max(tree.positions) + 1, context_length))
        if not (min(tree.ids) >= 0 and max(tree.ids) < id_limit):
            raise InputError(f"{name}: row {row} has a token id that is not between 0 and {id_limit - 1}")


def _too_long(name: str, row: int, slot: int, length: int, context_length: int) -> str:
    return f"{name}: row {row} (slot {slot}) would have {length} tokens, the context length is {context_length}"
