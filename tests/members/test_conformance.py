"""Every kind of member passes the same suite; the suite itself finds members that do something wrong."""

import pytest
import torch
from support import tiny_models, tokenizers
from support.ensembles import MIXED, same
from support.plain_member import PlainMember
from support.runner_checks import fresh_logits
from support.tiny_models import FAMILIES, tiny_model

import ensemble_decode as ed
from ensemble_decode.errors import CacheError, InputError
from ensemble_decode.members.conformance import CHECKS, Subject
from ensemble_decode.members.protocol import Capabilities, Logits, Member, missing
from ensemble_decode.members.transformers.runner import Runner

V = 111


def transformers(family):
    model = tiny_model(family, V)
    return Subject(lambda: Runner(model, block=16, name=family), lambda ids: fresh_logits(model, ids), V)


class BestOnly(PlainMember):
    """What a server that returns its five best can answer."""

    def __init__(self, *args):
        super().__init__(*args)
        self.capabilities = Capabilities(full_logits=False, token_trees=False, common_beginnings=False)
        self.bytes_per_token = 0

    def extend(self, slots, new_ids, logits="last"):
        out = super().extend(slots, new_ids, logits)
        scores = torch.log_softmax(out.values, -1)
        best = scores.topk(5, -1)
        return Logits(torch.full_like(scores, float("-inf")).scatter(-1, best.indices, best.values), out.starts)


class Forward(PlainMember):
    """A recurrent state without snapshots: rows only grow."""

    def __init__(self, *args):
        super().__init__(*args)
        self.capabilities = Capabilities(rollback=False, token_trees=False, common_beginnings=False)

    def rollback(self, slot, length):
        if length != self.length(slot):
            raise CacheError(f"plain: slot {slot} cannot be rolled back")


def plain(kind=PlainMember):
    model = tiny_model("llama", V)
    return Subject(lambda: kind(lambda ids: fresh_logits(model, ids), V, 128), lambda ids: fresh_logits(model, ids), V)


MEMBERS = {family: lambda family=family: transformers(family) for family in FAMILIES} | {
    "plain": plain,
    "best only": lambda: plain(BestOnly),
    "forward only": lambda: plain(Forward),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", MEMBERS)
def test_conforms(kind, check):
    check(MEMBERS[kind]())


@pytest.mark.parametrize("kind", ["llama", "plain"])
def test_is_a_member(kind):
    assert isinstance(MEMBERS[kind]().make(), Member)


def test_what_a_member_lacks_is_said_in_words():
    best, forward = plain(BestOnly).make(), plain(Forward).make()
    assert missing(best, ed.UniTE().needs) == (
        "the method needs models that give the logits of their whole vocabulary; plain cannot"
    )
    assert "take back the last tokens of a row" in missing(forward, ed.SAFE().needs)
    assert missing(forward, ed.Single().needs) is None
    assert "token trees" in missing(forward, ["token_trees"])
    assert missing(plain().make(), ed.SpecFuse().needs) is None


def test_one_model_alone_needs_no_rolling_back():
    model = tiny_model("llama", "gpt2")
    made = tokenizers.build("gpt2")
    own = ed.Ensemble.from_models([model], [made], names=["one"], cache_dir=None)
    vocab = own.vocab.models[0]
    member = Forward(lambda ids: fresh_logits(model, ids), vocab.size, 512, vocab)
    other = ed.Ensemble([member], [made], own.vocab)
    (expected,) = own.generate("The quick", method=ed.Single(), max_new_tokens=12)
    (got,) = other.generate("The quick", method=ed.Single(), max_new_tokens=12)
    assert expected.text
    assert same(got, expected)
    with pytest.raises(InputError, match="UniTE: the method needs models that take back"):
        other.generate("The quick", method=ed.UniTE())


class Sloppy(PlainMember):
    """A member with one fault."""

    def __init__(self, fault, *args):
        self.fault = fault
        super().__init__(*args)

    def extend(self, slots, new_ids, logits="last"):
        if self.fault == "order" and len(slots) > 1:
            order = sorted(range(len(slots)), key=lambda i: slots[i])
            counts = logits if isinstance(logits, str) else [logits[i] for i in order]
            return super().extend([slots[i] for i in order], [new_ids[i] for i in order], counts)
        if self.fault == "late errors":
            for slot, ids in zip(slots, new_ids, strict=True):
                self._row(slot).extend(ids)
            for slot, ids in zip(slots, new_ids, strict=True):
                del self._rows[slot][len(self._rows[slot]) - len(ids) + (min(ids, default=0) < 0) :]
        out = super().extend(slots, new_ids, logits)
        return Logits(out.values.flip(0), out.starts) if self.fault == "text order" else out

    def rollback(self, slot, length):
        if self.fault == "long rollback" and length > self.length(slot):
            return
        super().rollback(slot, max(length, 1) if self.fault == "rollback to 0" and self.length(slot) else length)

    def release(self, slot):
        super().release(slot)
        if self.fault == "stale slot":
            self._stale = True

    def acquire(self, ids=None):
        slot = super().acquire(ids)
        if getattr(self, "_stale", False):
            self._rows[slot] = [1]
        return slot

    def keep_paths(self, slots, trees, paths):
        if self.fault == "kept path":
            paths = [path[:-1] for path in paths]
        super().keep_paths(slots, trees, paths)

    def could_hold(self, rows, length):
        return self.fault == "limit" or super().could_hold(rows, length)


@pytest.mark.parametrize(
    "fault",
    ["order", "late errors", "text order", "long rollback", "rollback to 0", "stale slot", "kept path", "limit"],
)
def test_the_suite_finds_a_fault(fault):
    model = tiny_model("llama", V)

    def fresh(ids):
        return fresh_logits(model, ids)

    subject = Subject(lambda: Sloppy(fault, fresh, V, 128), fresh, V)
    found = []
    for check in CHECKS:
        try:
            check(subject)
        except (AssertionError, CacheError, IndexError) as error:
            found.append(f"{check.__name__}: {error}")
    assert found, f"no check noticed {fault}"


@pytest.mark.parametrize(
    "method",
    [ed.UniTE(), ed.GaC(), ed.SAFE(), ed.SAFE(draft_length="auto"), ed.SpecFuse(segment_length=5)],
    ids=lambda method: type(method).__name__,
)
def test_an_ensemble_of_plain_members_writes_what_runners_write(method):
    """Nothing outside ``members`` needs to know what a member runs on."""
    names = ("gpt2", "gemma")
    models = [tiny_models.tiny_model(tiny_models.USUAL[name], name, seed=i) for i, name in enumerate(names)]
    made = [tokenizers.build(name) for name in names]
    ensemble = ed.Ensemble.from_models(models, made, names=list(names), cache_dir=None)
    plain_ones = [
        PlainMember(lambda ids, model=model: fresh_logits(model, ids), vocab.size, 512, vocab)
        for model, vocab in zip(models, ensemble.vocab.models, strict=True)
    ]
    other = ed.Ensemble(plain_ones, made, ensemble.vocab)
    expected = ensemble.generate(MIXED[:4], method=method, max_new_tokens=10)
    assert any(row.text for row in expected)
    for one, two in zip(other.generate(MIXED[:4], method=method, max_new_tokens=10), expected, strict=True):
        assert same(one, two)
    for result in other.generate_batch(MIXED[:4], method=method, max_new_tokens=10, memory=10**6):
        assert same(result.completion, expected[result.index])
    assert all(torch.device("cpu") == member.device and member.held == 0 for member in plain_ones)
