"""Incremental ids held against encoding everything."""

from ensemble_decode.vocab.text import IncrementalTokens


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_edits(vocab, start, edits):
    """After every edit the ids, the reported common prefix and a look ahead equal those of encoding everything."""
    kept = IncrementalTokens(vocab)
    text = b""
    for edit in [start, *edits]:
        before = list(kept.ids)
        text = text[: max(len(text) - edit, 0)] if isinstance(edit, int) else text + edit
        whole = vocab.encode(text)
        assert kept.peek(text) == whole
        assert kept.ids == before
        assert kept.update(text) == common(before, whole)
        assert kept.ids == whole
