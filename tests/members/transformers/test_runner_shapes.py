"""Plans, buckets, compiled steps and captured steps: few shapes, the same logits."""

import dataclasses
import types

import pytest
import torch
from support.runner_checks import Schedule, assert_same_logits, fresh_logits
from support.tiny_models import tiny_model

from ensemble_decode.errors import ModelError
from ensemble_decode.members.transformers import packing
from ensemble_decode.members.transformers.buckets import Buckets
from ensemble_decode.members.transformers.graphs import CompiledSteps, StepGraphs, signature
from ensemble_decode.members.transformers.packing import Piece
from ensemble_decode.members.transformers.runner import SMALL_STEP, Runner

V = 111
PADDED = Buckets(padded=True, key_block=64)


# -- plans -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_chunks_cover_every_token_once_in_order(limit):
    slots, starts, counts = [5, 2, 9, 0], [0, 10, 3, 0], [17, 0, 4, 9]
    forwards = packing.chunks(slots, starts, counts, limit)
    assert all(sum(piece.count for piece in pieces) == limit for pieces in forwards[:-1])
    assert 0 < sum(piece.count for piece in forwards[-1]) <= limit
    for pieces in forwards:
        assert [piece.slot for piece in pieces] == sorted({piece.slot for piece in pieces})
    for r in range(4):
        mine = [piece for pieces in forwards for piece in pieces if piece.row == r]
        covered = [(piece.offset + i, piece.start + i) for piece in mine for i in range(piece.count)]
        assert covered == [(i, starts[r] + i) for i in range(counts[r])]
        assert all(piece.slot == slots[r] for piece in mine)


def test_rows_of_very_different_length_attend_apart():
    alike = [Piece(r, r, 100, 0, 1) for r in range(32)]
    assert packing.similar(alike) == [alike]
    mixed = [*alike, Piece(32, 32, 0, 0, 500)]
    groups = packing.similar(mixed)
    assert sorted(map(len, groups)) == [1, 32]
    drafts = [Piece(r, r, 100 + r, 0, 1 + r % 6) for r in range(32)]
    assert len(packing.similar(drafts)) == 1 or all(len(group) > 4 for group in packing.similar(drafts))


@pytest.mark.parametrize("n", range(1, 70))
def test_buckets_round_up_to_few_shapes(n):
    for bucket in (PADDED.rows, PADDED.queries, PADDED.tokens):
        assert n <= bucket(n) < 2 * n or n == bucket(n) == 1
        assert bucket(n).bit_count() == 1
    assert PADDED.keys(n) in (64, 128)
    assert Buckets().keys(n) == Buckets().rows(n) == n
    assert Buckets(key_block=64).keys(n) == (64 if n <= 64 else 128)


# -- padded shapes, eager ----------------------------------------------------------------------------------------


def padded_runner(model, **options):
    """A runner whose every small step takes padded shapes; `hidden` is what runs them."""
    runner = Runner(model, block=16, **options)
    runner.compiled = runner.body.hidden
    return runner


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma2", "gemma3"])
def test_padded_shapes_give_the_same_logits(family):
    model = tiny_model(family, V)
    runner = padded_runner(model)
    schedule = Schedule(runner, V, 11, counts=(1, 1, 2, 3, 9, 40))
    for _ in range(25):
        schedule.step(lambda ids, new, values: assert_same_logits(values, fresh_logits(model, ids)[-len(values) :]))


def test_padding_writes_nothing_that_a_row_can_see():
    runner = padded_runner(tiny_model("llama", V))
    slots = [runner.acquire() for _ in range(3)]
    runner.extend(slots, [[1, 2, 3], [4], [5, 6]])  # 6 tokens in 8, 3 rows in 4, 3 queries in 4
    for layer in runner.cache.layers:
        for slot, length in zip(slots, (3, 1, 2), strict=True):
            assert layer.keys[slot, :, :length].any(-1).all()
            assert not layer.keys[slot, :, length:].any()
            assert not layer.values[slot, :, length:].any()
        assert not layer.keys[3:].any()


# -- torch.compile -----------------------------------------------------------------------------------------------


def greedy(runner, prompts, steps):
    """Greedy tokens; half-way two are taken back everywhere and given again."""
    slots = [runner.acquire() for _ in prompts]
    texts = [list(ids) for ids in prompts]
    out = runner.extend(slots, prompts)
    for step in range(steps):
        chosen = out.values.argmax(-1).tolist()
        for text, token in zip(texts, chosen, strict=True):
            text.append(token)
        if step == steps // 2:
            for slot, text in zip(slots, texts, strict=True):
                runner.rollback(slot, len(text) - 3)
            runner.extend(slots, [text[-3:-2] for text in texts], "none")
            runner.extend(slots, [text[-2:-1] for text in texts], "none")
        out = runner.extend(slots, [[token] for token in chosen])
    for slot in slots:
        runner.release(slot)
    return texts


def test_compiled_steps_choose_the_same_tokens():
    model = tiny_model("gemma3", V)
    prompts = [[1 + r] * (21 + r) for r in range(3)]  # together too long to be compiled
    wanted = greedy(Runner(model), prompts, 12)
    runner = Runner(model, compile=True)
    runner.reserve(4, 64)
    assert greedy(runner, prompts, 12) == wanted
    assert runner.compiled.shapes == 1
    assert greedy(runner, prompts, 12) == wanted
    assert runner.compiled.shapes == 1


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_a_traced_step_needs_no_value_on_the_host_and_equals_a_fresh_forward(family):
    """Tracing the whole graph refuses `.item()`, boolean indexing and the like."""
    model = tiny_model(family, V, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 1})
    runner = Runner(model)
    slots = [runner.acquire() for _ in range(3)]
    runner.extend(slots, [[1, 2, 3, 4], [5], [6, 7]], "none")
    runner.compiled = CompiledSteps(runner.body.hidden, backend="eager")
    out = runner.extend([slots[2], slots[0]], [[8], [9, 10]])
    assert_same_logits(out.values[:1], fresh_logits(model, [6, 7, 8])[-1:])
    assert_same_logits(out.values[1:], fresh_logits(model, [1, 2, 3, 4, 9, 10])[-1:])
    out = runner.extend([slots[0]], [[11]])
    assert_same_logits(out.values, fresh_logits(model, [1, 2, 3, 4, 9, 10, 11])[-1:])
    assert runner.compiled.shapes == 2


def test_every_shape_is_compiled_however_many_there_are():
    """Dynamo alone would stop compiling, without a word, after eight."""
    traced = []

    def backend(graph, inputs):
        traced.append(inputs[0].shape)
        return graph

    compiled = CompiledSteps(lambda step: step.ids + 1, backend=backend)
    store = types.SimpleNamespace(keys=torch.zeros(1, 1))
    for _ in range(2):
        for n in range(1, 13):
            ids = torch.arange(n)[None]
            step = packing.Step(ids, ids, {}, [], n, torch.zeros(1), stores=[store])
            assert torch.equal(compiled(step), ids + 1)
    assert len(traced) == compiled.shapes == 12


def test_large_steps_are_not_compiled():
    runner = Runner(tiny_model("llama", V))
    seen = []
    runner.compiled = lambda step: seen.append(step.ids.shape[1]) or runner.body.hidden(step)
    slot = runner.acquire()
    runner.extend([slot], [[1] * (SMALL_STEP + 1)])
    runner.extend([slot], [[1] * SMALL_STEP])
    assert seen == [SMALL_STEP]


# -- captured steps ----------------------------------------------------------------------------------------------


class RecordedGraph:
    """Stands for a CUDA graph on a CPU: `replay` runs the captured function on the captured buffers, into one tensor.

    Like a real graph it sees new inputs only through the buffers that it was captured with.
    """

    made = 0

    def __init__(self, run):
        type(self).made += 1
        self.run = run
        self.out = torch.full_like(run(), float("nan"))

    def replay(self):
        self.out.copy_(self.run())


def recorded_capture(run):
    graph = RecordedGraph(run)
    return graph, graph.out


def graph_runner(model, limit=64):
    runner = Runner(model, block=16)
    runner.graphs = StepGraphs(runner.body.hidden, recorded_capture, limit)
    RecordedGraph.made = 0
    return runner


@pytest.mark.parametrize("limit", [64, 2])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_replayed_steps_see_new_inputs_and_a_grown_cache(family, limit):
    model = tiny_model(family, V)
    runner = graph_runner(model, limit)
    schedule = Schedule(runner, V, 21, counts=(1, 1, 1, 2, 5))
    for _ in range(30):
        schedule.step(lambda ids, new, values: assert_same_logits(values, fresh_logits(model, ids)[-len(values) :]))
    assert runner.graphs.shapes <= limit
    assert runner.cache.generation > 1


def test_each_shape_is_captured_once_and_again_after_growth():
    runner = graph_runner(tiny_model("llama", V))
    slots = [runner.acquire() for _ in range(3)]
    for _ in range(6):
        runner.extend(slots, [[1], [2], [3]])
    assert (RecordedGraph.made, runner.graphs.shapes) == (1, 1)
    first = runner.extend(slots, [[4], [5], [6]]).values
    kept = first.clone()
    runner.extend(slots, [[7], [8], [9]])
    assert torch.equal(first, kept), "an earlier result changed when the graph was replayed"
    runner.extend(slots[:1], [[1]])
    assert RecordedGraph.made == 2
    runner.reserve(4, 200)
    runner.extend(slots, [[1], [2], [3]])
    assert (RecordedGraph.made, runner.graphs.shapes) == (3, 1)


def test_the_graph_unused_for_longest_goes_first():
    runner = graph_runner(tiny_model("llama", V), limit=2)
    slots = [runner.acquire() for _ in range(4)]
    for rows in (1, 2, 1, 4, 1):  # the shape of one row stays in use
        runner.extend(slots[:rows], [[1]] * rows)
    assert (RecordedGraph.made, runner.graphs.shapes) == (3, 2)


def test_shapes_that_differ_in_anything_captured_have_different_signatures():
    runner = Runner(tiny_model("llama", V), block=16)
    for _ in range(4):
        runner.acquire()

    def step(pieces):
        built, _ = packing.build(
            pieces,
            [[1] * 9] * 4,
            heads=[2],
            slots_allocated=runner.cache.slots,
            capacity=runner.cache.capacity,
            buckets=PADDED,
            device=torch.device("cpu"),
        )
        return dataclasses.replace(built, stores=runner.cache.layers)

    base = step([Piece(0, 0, 3, 0, 1)])
    assert signature(base) == signature(step([Piece(0, 0, 7, 0, 1)]))
    others = [
        step([Piece(0, 1, 3, 0, 1)]),  # not from slot 0: read by index
        step([Piece(0, 0, 3, 0, 2)]),
        step([Piece(0, 0, 3, 0, 1), Piece(1, 1, 3, 0, 1)]),
        step([Piece(0, 0, 3, 0, 1), Piece(1, 1, 3, 0, 2)]),
    ]
    assert len({signature(s) for s in [base, *others]}) == 5


def test_graphs_need_a_cuda_device():
    with pytest.raises(ModelError, match="tiny: graphs=True needs a CUDA device, the model is on cpu"):
        Runner(tiny_model("llama", V), graphs=True, name="tiny")
