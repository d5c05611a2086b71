"""The regression guard's arithmetic, on a clock that the test turns; ratios themselves are measured by `make guard`."""

import guard
import pytest

from ensemble_decode import kernels


@pytest.fixture
def clock(monkeypatch):
    """Processor time that passes only where a side says so."""
    now = [0.0]
    monkeypatch.setattr(guard.time, "process_time", lambda: now[0])

    def takes(seconds):
        def work():
            now[0] += seconds

        return work

    return takes


def test_a_ratio_is_that_of_the_two_sides_times(clock):
    one = guard.Guard("g", 4.0, 0.25, lambda: (clock(8.0), clock(2.0)), rounds=3)
    assert guard.measure(one).value == 4.0
    assert guard.measure(one).holds
    assert guard.measure(guard.slowed(one)).value == pytest.approx(4.0 / 3)
    assert not guard.measure(guard.slowed(one)).holds


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


@pytest.mark.parametrize("one", guard.OPERATORS, ids=lambda one: one.name.split(":")[0])
def test_each_guard_runs_the_operator_that_it_names(one, monkeypatch):
    name, ran = one.name.split(":")[0], []
    real = getattr(kernels, name)
    monkeypatch.setattr(kernels, name, lambda *a, **k: ran.append(name) or real(*a, **k))
    read, operator = one.make()
    read()
    assert ran == []
    operator()
    assert ran == [name]


@pytest.mark.parametrize("slow", [False, True])
def test_the_exit_code_says_whether_a_ratio_has_fallen(slow, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["guard.py"])
    monkeypatch.setattr(guard, "measure", lambda one: guard.Verdict(one, one.expected * (0.1 if slow else 1)))
    with pytest.raises(SystemExit) as stopped:
        guard.main()
    assert bool(stopped.value.code) == slow
    assert ("FALL" in capsys.readouterr().out) == slow
