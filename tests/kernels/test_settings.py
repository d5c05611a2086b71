"""`FuseSettings.make`: defaults, names, shapes, and errors that say what is wrong."""

from __future__ import annotations

import pytest
import torch
from ensemble_decode.kernels import FuseSettings, fuse_step
from ensemble_decode.kernels.checks import _SETTINGS_DTYPES


def test_defaults_are_greedy_equal_and_without_options():
    s = FuseSettings.make(3, 4)
    assert (s.batch, s.models) == (3, 4)
    assert s.weights.tolist() == [[0.25] * 4] * 3
    for name in ("aggregate", "oov", "sharpen", "trigger", "gate", "sample_top_k", "seed", "row", "step"):
        assert getattr(s, name).tolist() == [0] * 3
    assert s.temperature.tolist() == [0.0] * 3
    assert s.top_p.tolist() == [1.0] * 3
    assert s.top_k.min() >= 1024
    for name, field in zip(s._fields, s, strict=True):
        assert field.dtype == _SETTINGS_DTYPES.get(name, torch.int32)
        assert field.is_contiguous()


def test_names_numbers_sequences_and_tensors():
    s = FuseSettings.make(
        2,
        2,
        weights=(2, 2),
        sharpen="prefix",
        trigger=["max_prob", "entropy"],
        gate=torch.tensor([2, 0]),
        temperature=torch.tensor(0.5),
        seed=2**63 - 1,
        row=[-1, 7],
    )
    assert s.weights.tolist() == [[0.5, 0.5]] * 2
    assert s.sharpen.tolist() == [1, 1]
    assert s.trigger.tolist() == [0, 1]
    assert s.gate.tolist() == [2, 0]
    assert s.temperature.tolist() == [0.5, 0.5]
    assert s.seed.tolist() == [2**63 - 1] * 2
    assert s.row.tolist() == [-1, 7]


def test_rows_selects_rows_of_every_field():
    s = FuseSettings.make(3, 2, weights=[[1, 0], [0, 1], [1, 1]], row=[10, 11, 12])
    for index in ([2, 0], torch.tensor([2, 0])):
        part = s.rows(index)
        assert part.weights.tolist() == [[0.5, 0.5], [1, 0]]
        assert part.row.tolist() == [12, 10]
    assert s.rows(slice(1, 3)).row.tolist() == [11, 12]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0, 0], "not all zero"),
        ([1, -1], "not negative"),
        ([1, float("nan")], "NaN"),
        ([1, float("inf")], "infinite"),
        ([1, 1, 1], r"shape \[2\] or \[3, 2\], got \[3\]"),
        ([[1, 1], [1, 1], [0, 0]], "not all zero"),
    ],
)
def test_bad_weights_are_refused_by_name(weights, message):
    """Field case 2."""
    with pytest.raises(ValueError, match=f"weights must .*{message}"):
        FuseSettings.make(3, 2, weights=weights)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sharpness": 1}, "no field 'sharpness'; fields: weights, top_k"),
        ({"sharpen": "prefx"}, "sharpen got 'prefx'; right would be 'none' | 'prefix'"),
        ({"gate": 4}, "gate must be 0 to 3: none, max_prob, kl, js, got 4"),
        ({"gate": 0.5}, "gate takes whole numbers, got 0.5"),
        ({"temperature": -0.1}, "temperature must be 0 .greedy. or positive and finite, got -0.1"),
        ({"temperature": [0.0, float("inf"), 0.0]}, "temperature must be .* got inf"),
        ({"temperature": "hot"}, "temperature got 'hot'; right would be a number"),
        ({"tau": 0}, "tau must be positive and finite, got 0"),
        ({"top_p": 1.5}, r"top_p must be within \[0, 1\], got 1.5"),
        ({"min_p": torch.tensor([0.1, 0.2, -1.0])}, r"min_p must be within \[0, 1\], got -1.0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"threshold": float("nan")}, "threshold must be a number, got nan"),
        ({"top_p": [0.5, 0.5]}, r"top_p must have shape \[3\] or \[\], got \[2\]"),
        ({"sharpen": torch.tensor([1.0, 1.0, 1.0])}, "sharpen takes torch.int32, got a tensor of torch.float32"),
    ],
)
def test_bad_fields_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=f"FuseSettings.{message}|FuseSettings has {message}"):
        FuseSettings.make(3, 2, **fields)


def _vocab():
    from support import kernel_cases as cases
    from support import kernel_oracle as oracle

    return cases.vocab_tensors(oracle.Vocab([[b"a", b"b"], [b"b", b"a", b"ab"]], [[], []]))


LOGITS = [torch.zeros(2, 2), torch.zeros(2, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": LOGITS[:1]}, "vocab.to_cid is for 2 models, the logits are for 1"),
        ({"logits": []}, "at least one model"),
        ({"logits": [LOGITS[0], torch.zeros(3, 3)]}, r"logits\[1\] has 3 rows, logits\[0\] has 2"),
        ({"logits": [LOGITS[0], torch.zeros(2, 4)]}, r"vocab.to_cid\[1\] must have shape \[4\], got \[3\]"),
        ({"logits": [LOGITS[0], LOGITS[1].double()]}, r"logits\[1\] must be float32"),
        ({"settings": FuseSettings.make(2, 3)}, r"settings.weights must have shape \[2, 2\], got \[2, 3\]"),
        ({"settings": FuseSettings.make(3, 2)}, r"settings.weights must have shape \[2, 2\], got \[3, 2\]"),
        (
            {"settings": FuseSettings.make(2, 2)._replace(seed=torch.zeros(2))},
            "settings.seed must be torch.int64, got torch.float32",
        ),
        ({"k": 0}, "k must be within"),
        (
            {"vocab": _vocab()._replace(prefix_end=torch.zeros(1, dtype=torch.int32))},
            "vocab.prefix_end must have shape",
        ),
    ],
)
def test_fuse_step_errors_name_the_argument(change, message):
    arguments = {"logits": LOGITS, "vocab": _vocab(), "settings": FuseSettings.make(2, 2), "k": 2} | change
    with pytest.raises((TypeError, ValueError), match=message):
        fuse_step(**arguments)
