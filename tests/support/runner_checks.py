"""A fresh, uncached forward of each row alone as the yardstick for a runner, and random schedules to check with it."""

import random
from collections.abc import Callable

import torch

TOLERANCE = 1e-4  # of the spread of the logits, in float32


def fresh_logits(model, ids):
    """Logits `[len(ids), V]` of one row from the model alone: no cache, no batch, transformers' own eager attention."""
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ours)


def assert_same_logits(got, wanted, tolerance=TOLERANCE):
    assert got.shape == wanted.shape
    gap = (got.float() - wanted.float()).abs().max().item()
    spread = wanted.float().std().item()
    assert gap <= tolerance * spread, f"logits differ by {gap:.3g}, their spread is {spread:.3g}"
    if tolerance <= TOLERANCE:
        assert torch.equal(got.argmax(-1), wanted.argmax(-1))


class Schedule:
    """Random ragged extensions, rollbacks, releases and new rows on a runner, with every row's ids kept beside it."""

    def __init__(self, runner, vocab_size: int, seed: int, rows: int = 5, counts=(1, 1, 1, 2, 3, 7, 20)):
        self.runner, self.size, self.counts, self.most = runner, vocab_size, counts, rows
        self.random = random.Random(seed)
        self.texts: dict[int, list[int]] = {}

    def step(self, check: Callable[[list[int], list[int], torch.Tensor], None] | None = None) -> None:
        """One round. `check(ids of a row, its new ids, their logits)` for every row that was extended."""
        chance = self.random
        if not self.texts or (len(self.texts) < self.most and chance.random() < 0.5):
            self.texts[self.runner.acquire()] = []
        for slot in list(self.texts):
            if self.texts[slot] and chance.random() < 0.3:
                keep = chance.randint(0, len(self.texts[slot]))
                self.runner.rollback(slot, keep)
                del self.texts[slot][keep:]
            elif len(self.texts) > 1 and chance.random() < 0.08:
                self.runner.release(slot)
                del self.texts[slot]
        slots = chance.sample(sorted(self.texts), chance.randint(1, len(self.texts)))
        room = self.runner.context_length
        new = []
        for slot in slots:
            count = min(chance.choice(self.counts), room - len(self.texts[slot]))
            new.append([chance.randrange(self.size) for _ in range(count)])
        wanted = [chance.randint(0, len(ids)) for ids in new]
        out = self.runner.extend(slots, new, wanted)
        assert out.starts == [sum(wanted[:r]) for r in range(len(slots) + 1)]
        for row, slot in enumerate(slots):
            self.texts[slot].extend(new[row])
            assert self.runner.length(slot) == len(self.texts[slot])
            if check is not None and wanted[row]:
                check(self.texts[slot], new[row], out.values[out.starts[row] : out.starts[row + 1]])
