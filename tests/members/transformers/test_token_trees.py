"""Trees of continuations: every branch answers as if it alone followed the prefix; a kept path is as if extended."""

import random

import pytest
import torch
from support.flash_emulation import flash_runner
from support.runner_checks import assert_same_logits, fresh_logits
from support.tiny_models import FAMILIES, tiny_model

from ensemble_decode.errors import CacheError, ContextError, InputError
from ensemble_decode.members.transformers.runner import Runner
from ensemble_decode.members.tree import Tree

V = 111


def make(family="llama", model=None, **options):
    return Runner(tiny_model(family, V) if model is None else model, **({"block": 16, "name": family} | options))


def row(length, seed):
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def grow(chance, trunk, branches):
    """A random tree over a trunk of ids, and per path (fork, ids, nodes)."""
    tree, paths = Tree(), []
    for _ in range(branches):
        if paths and chance.random() < 0.5:  # shares the beginning of another
            fork, ids, _ = chance.choice(paths)
            ids = ids[: chance.randint(1, len(ids))] + row(chance.randint(0, 4), chance.randrange(10**6))
        else:
            fork, ids = chance.randint(0, len(trunk)), row(chance.randint(1, 9), chance.randrange(10**6))
        paths.append((fork, ids, tree.add(fork, ids)))
    return tree, paths


@pytest.mark.parametrize("family", FAMILIES)
def test_every_branch_equals_a_fresh_forward_and_a_kept_path_an_extension(family):
    """Rows of different lengths with trees of different sizes, past the sliding windows of 12, in one forward."""
    runner = make(family)
    chance = random.Random(7)
    trunks = [row(n, n) for n in (3, 41, 17, 1)]
    slots = [runner.acquire() for _ in trunks]
    runner.extend(slots, trunks, "none")
    for _ in range(3):
        made = [grow(chance, trunk, n) for trunk, n in zip(trunks, (1, 5, 3, 2), strict=True)]
        trees = [tree for tree, _ in made]
        for tree, paths in made:
            for _, _, nodes in paths:
                for node in nodes:
                    tree.want(node)
        before = runner.stats.forwards
        out = runner.read_trees(slots, trees)
        assert runner.stats.forwards == before + 1
        assert [runner.length(slot) for slot in slots] == [len(trunk) for trunk in trunks]
        for r, (tree, paths) in enumerate(made):
            for fork, ids, nodes in paths:
                rows = [out.starts[r] + tree.want(node) for node in nodes]
                wanted = fresh_logits(runner.model, trunks[r][:fork] + ids)[fork:]
                assert_same_logits(out.values[rows], wanted)
        kept = [chance.choice(paths) for _, paths in made]
        runner.keep_paths(slots, trees, [nodes for _, _, nodes in kept])
        trunks = [trunk[:fork] + ids for trunk, (fork, ids, _) in zip(trunks, kept, strict=True)]
        assert [runner.length(slot) for slot in slots] == [len(trunk) for trunk in trunks]
        more = [row(2, chance.randrange(10**6)) for _ in trunks]
        after = runner.extend(slots, more, "last")
        trunks = [trunk + ids for trunk, ids in zip(trunks, more, strict=True)]
        for r, trunk in enumerate(trunks):
            assert_same_logits(after.values[r : r + 1], fresh_logits(runner.model, trunk)[-1:])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_trees_beside_flash_attn(family, monkeypatch):
    """Rows extended by flash-attn, trees by SDPA over the same cache, a kept path extended by flash-attn again."""
    runner, calls = flash_runner(monkeypatch, tiny_model(family, V), name=family)
    trunk = row(20, 1)
    slot = runner.acquire()
    runner.extend([slot], [trunk], "none")
    seen = len(calls)
    tree, ids = Tree(), row(5, 2)
    tree.add(20, row(3, 3))
    path = tree.add(18, ids)
    at = [tree.want(node) for node in path]
    assert_same_logits(runner.read_trees([slot], [tree]).values[at], fresh_logits(runner.model, trunk[:18] + ids)[18:])
    assert len(calls) == seen > 0
    runner.keep_paths([slot], [tree], [path])
    got = runner.extend([slot], [[9, 8]], "all").values
    assert len(calls) > seen
    assert_same_logits(got, fresh_logits(runner.model, trunk[:18] + ids + [9, 8])[-2:])


def test_branches_that_begin_alike_share_nodes():
    tree = Tree()
    assert tree.add(5, [1, 2, 3]) == [0, 1, 2]
    assert tree.add(5, [1, 2]) == [0, 1]
    assert tree.add(5, [1, 4]) == [0, 3]
    assert tree.add(4, [1, 2]) == [4, 5]  # another fork is another place in the text
    assert (tree.ids, tree.parents) == ([1, 2, 3, 4, 1, 2], [-1, 0, 1, 0, -1, 4])
    assert tree.positions == [5, 6, 7, 6, 4, 5]
    assert [tree.want(2), tree.want(0), tree.want(2)] == [0, 1, 0]
    assert tree.wanted == [2, 0]


def test_the_head_runs_only_where_logits_are_read():
    runner = make()
    slot = runner.acquire()
    runner.extend([slot], [row(5, 1)], "none")
    rows = []
    runner.body.head.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    tree = Tree()
    tree.want(tree.add(5, [1, 2, 3, 4])[2])
    tree.want(tree.add(3, [9, 8])[0])
    assert runner.read_trees([slot], [tree]).values.shape == (2, V)
    assert rows == [2]


def test_trees_past_the_chunk_go_in_several_forwards_with_the_same_logits():
    model = tiny_model("gemma3", V)
    outs = []
    for limit in (1000, 8):
        runner = make(model=model, chunk_tokens=limit)
        trunks = [row(9, 2), row(20, 3), row(4, 4)]
        slots = [runner.acquire() for _ in trunks]
        runner.extend(slots, trunks, "none")
        before = runner.stats.forwards
        trees = [Tree() for _ in trunks]
        for tree, trunk in zip(trees, trunks, strict=True):
            for node in tree.add(len(trunk), row(4, len(trunk))):
                tree.want(node)
        outs.append(runner.read_trees(slots, trees))
        assert runner.stats.forwards - before == (1 if limit == 1000 else 2)
    assert outs[0].starts == outs[1].starts
    assert_same_logits(outs[1].values, outs[0].values)


def test_a_tree_may_lie_past_the_context_as_long_as_its_text_does_not():
    model = tiny_model("llama", V, max_position_embeddings=32)
    runner = make(model=model)
    trunk = row(28, 5)
    slot = runner.acquire()
    runner.extend([slot], [trunk], "none")
    tree, branches = Tree(), [row(4, seed) for seed in range(6, 12)]
    rows = [[tree.want(node) for node in tree.add(28, ids)] for ids in branches]
    out = runner.read_trees([slot], [tree])
    for at, ids in zip(rows, branches, strict=True):
        assert_same_logits(out.values[at], fresh_logits(model, trunk + ids)[28:])
    long = Tree()
    long.add(28, row(5, 1))
    with pytest.raises(ContextError, match="would have 33 tokens, the context length is 32"):
        runner.read_trees([slot], [long])


def test_content_of_a_tree_does_not_reach_the_next_row_of_its_slot():
    """A tree may hold NaN; a hidden position weighs 0, and 0 times NaN is NaN: the slot must come back clean."""
    model = tiny_model("llama", V)
    clean = make(model=model)
    slot = clean.acquire()
    wanted = clean.extend([slot], [row(30, 9)], "all").values
    runner = make(model=model)
    slot = runner.acquire()
    runner.extend([slot], [row(3, 1)], "none")
    embedding = model.get_input_embeddings().weight
    kept = embedding[7].clone()
    embedding[7] = float("nan")
    tree = Tree()
    tree.want(tree.add(3, [7, 7, 7, 7, 7])[-1])
    assert runner.read_trees([slot], [tree]).values.isnan().all()
    embedding[7] = kept
    runner.release(slot)
    again = runner.acquire()
    assert again == slot
    assert_same_logits(runner.extend([again], [row(30, 9)], "all").values, wanted)


def test_refusals_change_nothing():
    runner = make()
    slot = runner.acquire()
    runner.extend([slot], [row(5, 1)], "none")
    tree = Tree()
    tree.add(6, [1])
    with pytest.raises(InputError, match="forks at 6, its slot 0 holds 5 tokens"):
        runner.read_trees([slot], [tree])
    with pytest.raises(InputError, match="2 trees need as many slots"):
        runner.read_trees([slot, slot], [Tree(), Tree()])
    with pytest.raises(CacheError, match="not held"):
        runner.read_trees([slot + 1], [Tree()])
    strange = Tree()
    strange.add(5, [1, V])
    with pytest.raises(InputError, match=f"row 0 has a token id that is not between 0 and {V - 1}"):
        runner.read_trees([slot], [strange])
    assert runner.length(slot) == 5
