"""The regression guard, and that it notices: an operator made slow on purpose, and a loop that does more than it should."""

import pytest
import torch

from ensemble_decode import kernels
from ensemble_decode.bench import guard

native = pytest.mark.skipif(
    kernels.status()["fuse_step"]["auto"].get("cpu") != "native", reason="the ratios are of the native operators"
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@native
def test_no_ratio_has_fallen():
    fallen = [str(verdict) for verdict in guard.check(guard.OPERATORS) if not verdict.holds]
    assert not fallen, "\n".join(fallen)


@native
@pytest.mark.parametrize("operator", ["topk_stats", "fuse_step", "verify_draft"])
def test_a_slowed_operator_is_caught(operator, monkeypatch):
    """Run three times where once would do, whatever the machine does meanwhile."""
    real = getattr(kernels, operator)

    def slow(*arguments, **settings):
        for _ in range(2):
            real(*arguments, **settings)
        return real(*arguments, **settings)

    monkeypatch.setattr(kernels, operator, slow)
    fallen = [verdict.guard.name.split(":")[0] for verdict in guard.check(guard.OPERATORS) if not verdict.holds]
    assert operator in fallen


def test_verdicts_allow_for_noise():
    one = guard.Guard("g", 4.0, 0.25, lambda: (int, int))
    assert one.least == 3.0
    assert guard.Verdict(one, 3.1).holds
    assert not guard.Verdict(one, 2.9).holds
    assert "2.900, expected 4, at least 3.000" in str(guard.Verdict(one, 2.9))


def test_a_spoilt_measurement_is_taken_again(monkeypatch):
    values = iter([1.0, 5.0])
    monkeypatch.setattr(guard, "measure", lambda one: guard.Verdict(one, next(values)))
    (verdict,) = guard.check([guard.Guard("g", 4.0, 0.25, lambda: (int, int))])
    assert verdict.holds
