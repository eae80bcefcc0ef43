"""Change points on simulated series: found where a level moves, hardly ever where none does."""

import numpy as np
import pytest

from polyhead_perf.history import change_points

SERIES = 150


def noise(kind, generator, count):
    if kind == "normal":
        return generator.normal(0, 0.02, count)
    if kind == "outliers":  # a neighbour's burst now and then
        return generator.normal(0, 0.01, count) + (generator.random(count) < 0.1) * generator.exponential(0.15, count)
    if kind == "autocorrelated":  # a machine that is slow for an afternoon
        steps, values = generator.normal(0, 0.015, count), np.zeros(count)
        for index in range(1, count):
            values[index] = 0.6 * values[index - 1] + steps[index]
        return values
    return np.zeros(count)


@pytest.mark.parametrize("count", [6, 12, 30, 80])
@pytest.mark.parametrize("kind", ["normal", "outliers", "autocorrelated", "none"])
def test_no_change_gives_hardly_any_alarm(kind, count):
    generator = np.random.default_rng([count, len(kind)])
    alarms = sum(bool(change_points(5e-3 * np.exp(noise(kind, generator, count)))) for _ in range(SERIES))
    most = 0.01 if kind in ("normal", "none") else 0.06
    assert (
        alarms <= most * SERIES
    ), f"{alarms} of {SERIES} series without a change of {count} runs with {kind} noise raise an alarm"


@pytest.mark.parametrize("step, least_found", [(0.10, 0.97), (-0.10, 0.97), (0.06, 0.80)])
def test_a_lasting_change_is_found_where_it_is(step, least_found):
    generator = np.random.default_rng(7)
    found = 0
    for _ in range(SERIES):
        values = 2e-3 * np.exp(noise("normal", generator, 30))
        values[18:] *= 1 + step
        changes = change_points(values)
        found += len(changes) == 1 and abs(changes[0].index - 18) <= 1 and abs(changes[0].change - step) < 0.03
    assert found >= least_found * SERIES, f"{found} of {SERIES} changes of {step:+.0%} found"


def test_two_changes_and_back():
    generator = np.random.default_rng(3)
    values = np.exp(noise("outliers", generator, 40))
    values[12:25] *= 1.15
    changes = change_points(values)
    assert [abs(change.index - at) <= 1 for change, at in zip(changes, (12, 25))] == [True, True] and len(changes) == 2
    assert changes[0].change == pytest.approx(0.15, abs=0.03) and changes[1].change == pytest.approx(-0.13, abs=0.03)


def test_changes_below_the_least_are_no_changes():
    values = np.concatenate([np.full(20, 1.0), np.full(20, 1.02)])
    assert change_points(values) == []
    assert [change.index for change in change_points(values, smallest_change=0.01)] == [20]


def test_one_slow_run_is_no_change():
    values = np.ones(20) * np.exp(np.random.default_rng(1).normal(0, 0.01, 20))
    values[9] *= 3
    assert change_points(values) == []


def test_short_series_have_none():
    assert change_points([1, 1, 2, 2, 2]) == []
    assert [change.index for change in change_points([1, 1.001, 0.999, 2, 2.001, 1.999])] == [3]


@pytest.mark.parametrize("values", [[1, 2, 0, 1, 1, 1], [1, 2, float("nan"), 1, 1, 1], [1, 2, -1, 1, 1, 1], [[1, 2], [3, 4]]])
def test_times_that_are_none_are_refused(values):
    with pytest.raises(ValueError, match="positive finite"):
        change_points(values)
