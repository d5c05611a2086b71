"""One row: what it holds after every way of growing and ending, what a stream may show, and how a round is undone."""

import copy
from dataclasses import dataclass, field

import pytest
from support import tokenizers

import ensemble_decode as ed
from ensemble_decode.decode.sequence import Request, Row

NAMES = ("gpt2", "llama2")


@pytest.fixture(scope="module")
def vocab() -> ed.AlignedVocab:
    return ed.AlignedVocab.build([tokenizers.build(name) for name in NAMES], cache_dir=None)


def made(vocab, *, max_new_tokens=50, stops=(), lengths=(1000, 1000), retokenize=False, trace=False) -> Row:
    request = Request(0, [model.encode(b"ab") for model in vocab.models], max_new_tokens, stops, trace=trace)
    return Row(request, vocab, lengths, range(2), 0, retokenize)


def grow(row: Row, vocab, text: str, **options) -> int:
    model = vocab.models[0]
    ids = model.encode(text.encode())
    if row.traced:
        row.trace += ids  # stand in for steps: one per token
    return row.append_tokens(ids, [model.token_bytes[i] for i in ids], **options)


def state_of(row: Row) -> dict:
    return {
        "data": bytes(row.data),
        "ids": [list(ids) for ids in row.ids],
        "stats": copy.deepcopy(row.stats),
        "trace": list(row.trace),
        "models": list(row.models),
        "state": copy.deepcopy(row.state),
        "completion": row.completion(),
    }


def test_followers_spell_the_text_and_the_primary_keeps_what_it_emitted(vocab):
    row = made(vocab)
    pieces = [vocab.models[0].encode(char.encode())[0] for char in "the cat"]
    assert row.append_tokens(pieces, [bytes([byte]) for byte in b"the cat"]) == 7
    assert row.ids == [pieces, vocab.models[1].encode(b"the cat")]
    assert row.length == 7
    assert row.room == 43
    assert row.pending(1) == row.prompt(1) + row.ids[1]


def test_what_a_cache_holds_shrinks_with_the_ids_that_change(vocab):
    row = made(vocab)
    grow(row, vocab, "a cat")
    before = list(row.ids[1])
    row.held[:] = [row.total(0), row.total(1)]
    grow(row, vocab, "erpillar")
    kept = next(i for i, (a, b) in enumerate(zip([*before, None], row.ids[1], strict=False)) if a != b)
    assert row.held[1] == len(row.prompt(1)) + kept < row.total(1)
    assert row.pending(1) == row.ids[1][kept:]
    row.held[1] = row.total(1)
    assert row.pending(1) == row.ids[1][-1:], "the last id is run again, for its logits are wanted"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stop_string_takes_the_tokens_their_steps_and_counts_with_it(vocab, at_once):
    row = made(vocab, stops=["b c"], trace=True)
    parts = ["xa", " b", " c d"]
    if at_once:
        grow(row, vocab, "".join(parts), ensembled=True)
    else:
        landed = [grow(row, vocab, part, ensembled=True) for part in parts]
        assert landed[-1] == 0, "the stop began in a token of the call before"
    assert row.data == b"xa "
    assert (row.finish_reason, row.stop_reason) == ("stop", "b c")
    done = row.completion()
    assert b"".join(vocab.models[0].token_bytes[i] for i in done.token_ids) in (b"xa", b"xa ")
    assert len(done.trace) == len(done.token_ids) == len(done.ensembled_at) == done.stats.ensembled


def test_max_new_tokens_and_full_contexts_end_a_row_inside_a_draft(vocab):
    row = made(vocab, max_new_tokens=3)
    assert grow(row, vocab, "a b c d e f g") == 3
    assert (row.length, row.finish_reason) == (3, "length")
    row = made(vocab, lengths=(1000, 8))
    grow(row, vocab, "zqxj vkwz")
    assert row.finish_reason == "length"
    assert row.total(1) >= 8
    assert row.total(1) - 8 < len(row.ids[1])


def test_a_completion_changes_nothing(vocab):
    """Neither asking for it nor changing it: the row goes on as if nobody had asked."""
    for retokenize in (False, True):
        row, other = made(vocab, retokenize=retokenize), made(vocab, retokenize=retokenize)
        for text in ("the cat", " sat"):
            for r in (row, other):
                if retokenize:
                    r.append_segment(text.encode(), ended=False, ensembled=True)
                else:
                    grow(r, vocab, text, ensembled=True)
            asked = row.completion()
            asked.token_ids.append(7)
            asked.ensembled_at.clear()
            asked.stats.agreed[0] += 5
            asked.stats.ensembled = 99
        assert state_of(row) == state_of(other)
        assert row.completion().stats.ensembled == len(row.completion().ensembled_at) == len(row.ids[0])


@dataclass
class Drafting:
    """A method's state that rests on the caches."""

    ahead: list[int] = field(default_factory=list)
    seen: int = 0

    def __copy__(self):
        return Drafting(list(self.ahead), self.seen)

    def forget_caches(self):
        self.ahead = []


@pytest.mark.parametrize("retokenize", [False, True])
@pytest.mark.parametrize("text", [" on the mat", " on the stop", " of END"])
def test_a_snapshot_undoes_a_round(vocab, retokenize, text):
    """Whatever the round did: growing, stopping, ending, losing a model, failing. Only what was forwarded stays
    counted."""
    row = made(vocab, stops=["stop"], retokenize=retokenize, trace=True)

    def step(piece: str) -> None:
        if retokenize:
            row.append_segment(piece.encode(), ended=piece.endswith("END"), ensembled=True)
        else:
            grow(row, vocab, piece, ensembled=True)

    step("the cat sat")
    row.state = Drafting([1, 2], seen=3)
    row.held[:] = [row.total(0), row.total(1)]
    before = state_of(row)
    snapshot = row.snapshot()
    row.stats.forwarded[1] += 10
    row.stats.accepted += 4
    row.state.ahead.append(9)
    row.state.seen = 8
    step(text)
    row.drop_model(1)
    if not row.finished:
        row.fail("broken")
    snapshot.restore()
    after = state_of(row)
    assert after["stats"].forwarded == [0, 10]
    after["stats"].forwarded = before["stats"].forwarded
    after["completion"].stats.forwarded = before["stats"].forwarded
    before["state"].ahead = []  # the caches are empty now
    assert after == before
    assert row.held == [0, 0]
    assert row.pending(1) == row.prompt(1) + row.ids[1]
    step(" on and on")  # it goes on, and the stop string is not remembered half-matched
    assert row.data == b"the cat sat on and on"
    assert row.ids[1] == vocab.models[1].encode(b"the cat sat on and on")


def test_deltas_join_to_the_text_and_hold_back_what_a_stop_may_take(vocab):
    row = made(vocab, stops=["END"])
    shown, ids = "", []
    for part in ("caf", "é", " E", "N", "X", " EN", "D more"):
        grow(row, vocab, part)
        delta = row.delta()
        shown, ids = shown + delta.text, ids + delta.token_ids
        assert not shown.endswith(("E", "N"))
    assert shown == row.completion().text == "café ENX "
    assert ids == row.completion().token_ids
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "END")
