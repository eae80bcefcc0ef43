"""How two builds are measured in turn, on a runner that makes results up, and what is said of the machine meanwhile."""

import re

import pytest

from polyhead_perf import builds, machine, results, self_test
from polyhead_perf.judgement import Judge

NAMES = ["one/threads:1/real_time", "two/threads:1/real_time"]


class MadeUpRunner:
    """Notes who is run in which order; each measurement takes what `times` says."""

    def __init__(self, times):
        self.times, self.pinned_to, self.patience, self.runs = times, None, None, []

    def measure(self, side, names, min_time, measurements):
        self.runs.append((side, tuple(names), measurements))
        entries = [results.Entry(name, index, 1, time, time, "s") for name in names for index, time in enumerate(self.times(side, measurements))]
        return results.ResultFile(f"side {side}", {}, entries)


def interleaved(times, seed=1, repetitions=40, names=tuple(NAMES), **settings):
    runner = MadeUpRunner(times)
    settings = builds.Settings(most_repetitions=repetitions, seed=seed, **settings)
    measured = builds.interleave(runner, list(names), settings, Judge(list(names), settings.rules), lambda *_: None)
    return runner.runs[len(names) :], measured  # without calibration


def equal_times(_, measurements):
    """Never decided before all repetitions are made: the same would be decided at the first look."""
    equal_times.flip = -equal_times.flip
    return [1.0 + 0.3 * equal_times.flip] * measurements


equal_times.flip = 1


def test_a_pair_is_two_processes_right_after_each_other_in_random_order():
    runs, measured = interleaved(equal_times)
    pairs = list(zip(runs[::2], runs[1::2]))
    assert len(pairs) == 2 * 40 and all(len(measured.times[name]) == 40 for name in NAMES)
    for first, second in pairs:
        assert {first[0], second[0]} == {builds.BASELINE, builds.CANDIDATE} and first[1] == second[1] and first[2] == second[2]
    for name in NAMES:
        baseline_first = sum(first[0] == builds.BASELINE for first, _ in pairs if first[1] == (name,))
        assert 8 <= baseline_first <= 32, "each order comes with probability one half"
    assert 8 <= sum(pair[0][1] == (NAMES[0],) for pair in pairs[::2]) <= 32, "which benchmark goes first is drawn too"
    assert runs != interleaved(equal_times, seed=2)[0] and runs == interleaved(equal_times, seed=1)[0]


def test_the_lower_quartile_of_a_process_counts():
    assert builds.lower_quartile([9.0, 1.0, 5.0, 2.0, 7.0, 3.0, 8.0, 4.0, 6.0]) == 3.0
    assert builds.lower_quartile([2.0, 1.0]) == 1.0
    _, measured = interleaved(lambda side, count: [1.0 + side + 0.5 * (index >= count // 2) for index in range(count)], names=NAMES[:1],
                              repetitions=20)
    assert set(measured.times[NAMES[0]]) == {(1.0, 2.0)}, "bursts in half of the measurements don't count"


def test_measurements_fill_a_process():
    for seconds, expected in ((1e-4, 20), (0.004, 10), (1.0, builds.FEWEST_MEASUREMENTS)):
        runs, _ = interleaved(lambda side, count, seconds=seconds: [seconds * (1 + side)] * count, names=NAMES[:1], repetitions=20)
        assert {run[2] for run in runs} == {expected}


def test_benchmarks_of_one_process_share_the_draw_of_its_turn():
    assert builds.make_judge(NAMES, builds.Settings()).drawn_apart
    assert not builds.make_judge(NAMES, builds.Settings(benchmarks_per_process=2)).drawn_apart
    runs, _ = interleaved(equal_times)
    firsts = {name: [first[0] for first in runs[::2] if first[1] == (name,)] for name in NAMES}
    assert firsts[NAMES[0]] != firsts[NAMES[1]], "each benchmark's order is drawn by itself"


def test_decided_benchmarks_are_not_run_any_more():
    def times(side, measurements):
        return [(2.0 if side else 1.0)] * measurements

    runs, measured = interleaved(times)
    assert len(runs) < 2 * 2 * 40 and all(9 <= len(pairs) < 40 for pairs in measured.times.values())


@pytest.mark.parametrize("name", ["a.c/x:1", "a+b(1)[2]{3}*?^$|\\"])
def test_exact_filter(name):
    assert re.search(builds.exact_filter([name, "other"]), name)
    assert not any(re.search(builds.exact_filter([name]), other) for other in (name + "0", "0" + name, name.replace(".", "b") + "!"))
    assert not re.search(builds.exact_filter(["a.c"]), "abc")


def test_only_benchmarks_of_one_thread_stay_on_one_cpu(monkeypatch):
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [0, 3, 5])
    assert builds.choose_pin(["a/threads:1", "b"], "auto") == 5
    assert builds.choose_pin(["a/threads:1", "b/threads:2/real_time"], "auto") is None
    assert builds.choose_pin(["a/threads:2"], 3) == 3 and builds.choose_pin(["a"], None) is None
    monkeypatch.setattr(machine, "allowed_cpus", lambda: [])
    assert builds.choose_pin(["a"], "auto") is None


def test_disturbance_is_what_others_and_the_host_took():
    start, end = machine.CpuTime(100.0, 40.0, 1.0, 10.0), machine.CpuTime(120.0, 55.0, 3.0, 15.0)
    assert machine.Disturbance.between(start, end) == machine.Disturbance((15.0 - 5.0) / 20, 2.0 / 20)
    assert machine.Disturbance.between(None, end) == machine.Disturbance.between(end, start) == machine.Disturbance(0.0, 0.0)
    ours_alone = machine.CpuTime(120.0, 45.0, 1.0, 16.0)
    assert machine.Disturbance.between(start, ours_alone).others == 0.0


def test_warnings(monkeypatch):
    assert machine.warnings_after(machine.Disturbance(0.05, 0.01)) == []
    others, stolen = machine.warnings_after(machine.Disturbance(0.25, 0.03))
    assert "other programs used 25%" in others and "kept back 3%" in stolen
    monkeypatch.setattr(machine.CpuTime, "now", staticmethod(lambda: None))
    for governor, warned in (("powersave", 1), ("performance", 0), (None, 0), ("performance,powersave", 1)):
        monkeypatch.setattr(machine, "governor", lambda governor=governor: governor)
        assert len(machine.warnings_before(0)) == warned


@pytest.mark.parametrize("percent, slower, faster, met", [
    (0.0, 0, 0, True), (0.0, 1, 0, False), (0.0, 0, 1, False), (3.0, 15, 0, True), (3.0, 14, 0, False), (10.0, 19, 0, True),
    (10.0, 18, 0, False),
])
def test_goals_of_the_self_test(percent, slower, faster, met):
    assert self_test.goal_met({"slow_down_percent": percent, "runs": 20, "slower": slower, "faster": faster}) is met
