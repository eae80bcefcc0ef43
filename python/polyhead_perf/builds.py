"""Two builds measured in turn: fresh processes, random order, each benchmark's two runs right after each other.

Whether the baseline or the candidate goes first is drawn anew for every pair. So if the two are the same program, each pair's
log ratio has either sign with probability 1/2, whatever the machine did meanwhile: the signed-rank test needs nothing more to be
exact. Fresh processes draw a new memory layout each time, which in one process would pass for a difference of the builds.
"""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import machine, results
from .errors import PerfError
from .judgement import Judge, Rules, repetitions_needed

BASELINE, CANDIDATE = 0, 1
THREADS = re.compile(r"(?:^|/)threads:(\d+)(?:/|$)")
LIST_SECONDS = 120
# A process gets the time that the baseline took for a short run, this many times, and this much more: then it hangs.
PATIENCE_TIMES, PATIENCE_SECONDS = 100, 60
# Measurements in one process. Many short ones, of which the lower quartile counts: interruptions only ever add time, and on a busy
# machine the mean, or the median of a few long ones, scatters five to ten times as much.
FEWEST_MEASUREMENTS, MOST_MEASUREMENTS = 3, 30


@dataclass(frozen=True)
class Build:
    """A program with Google Benchmark's command line, and flags for it alone."""

    program: str
    flags: tuple = ()

    @property
    def source(self) -> str:
        return " ".join([self.program, *self.flags])


@dataclass(frozen=True)
class Settings:
    rules: Rules = Rules()
    budget: float = 120.0  # seconds for measuring; the fewest repetitions that can tell anything are made in any case
    most_repetitions: int = 400
    min_time: float = 0.002  # seconds of each measurement
    process_time: float = 0.04  # seconds of all measurements of a process
    benchmarks_per_process: int = 1
    pin: object = "auto"  # a CPU's number, "auto" or None
    seed: int = 0


@dataclass
class Measured:
    """The measurements of an interleaved comparison."""

    names: list
    times: dict = field(default_factory=dict)  # name -> [(baseline, candidate)] in seconds, one pair for each repetition
    entries: dict = field(default_factory=dict)  # name -> an entry of the baseline's, for clock, unit and threads
    contexts: tuple = ({}, {})
    disturbance: machine.Disturbance = machine.Disturbance(0.0, 0.0)
    seconds: float = 0.0
    pinned_to: int | None = None

    def differences(self) -> dict:
        return {name: [math.log(b / a) for a, b in pairs] for name, pairs in self.times.items()}


def exact_filter(names: list) -> str:
    """A regular expression that matches just these names, in every dialect that Google Benchmark may have been built with."""
    return "^(" + "|".join(re.sub(r"([][.(){}*+?^$|\\])", r"\\\1", name) for name in names) + ")$"


class Runner:
    """Starts the two builds, on one CPU where that is asked for."""

    def __init__(self, builds: tuple, pinned_to: int | None = None):
        self.builds = builds
        self.pinned_to = pinned_to
        self.patience: float | None = None  # seconds for one process that measures

    def run(self, side: int, flags: list, seconds: float | None) -> str:
        """Standard output. PerfError when the build can't be started, fails or takes longer."""
        build = self.builds[side]
        pin = None
        if self.pinned_to is not None:
            cpu = self.pinned_to
            pin = lambda: os.sched_setaffinity(0, {cpu})  # noqa: E731
        try:
            done = subprocess.run([build.program, *build.flags, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=seconds, preexec_fn=pin)
        except OSError as error:
            raise PerfError(f"{build.program}: can't be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise PerfError(f"{build.source}: still running after {seconds:g} s") from None
        if done.returncode != 0:
            said = " ".join((done.stderr.strip() or done.stdout.strip() or "nothing").split())[-400:]
            how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
            raise PerfError(f"{build.source}: ended with {how}: {said}")
        return done.stdout

    def names(self, side: int, wanted: str) -> list:
        """Names of the benchmarks that the filter `wanted` selects. PerfError when there are none."""
        flags = ["--benchmark_list_tests=true", *([f"--benchmark_filter={wanted}"] if wanted else [])]
        listed = [line.strip() for line in self.run(side, flags, LIST_SECONDS).splitlines() if line.strip()]
        if not listed or any(line.startswith("Failed to match") for line in listed):
            raise PerfError(f"{self.builds[side].source}: has no benchmark" + (f" that matches '{wanted}'" if wanted else ""))
        return listed

    def measure(self, side: int, names: list, min_time: float, measurements: int) -> results.ResultFile:
        """One fresh process that measures these benchmarks so many times. PerfError when one of them is missing or wrong."""
        build = self.builds[side]
        with tempfile.TemporaryDirectory(prefix="polyhead-compare-") as folder:
            path = Path(folder) / "result.json"
            self.run(side, [f"--benchmark_filter={exact_filter(names)}", f"--benchmark_out={path}", "--benchmark_out_format=json",
                            f"--benchmark_repetitions={measurements}", f"--benchmark_min_time={min_time:g}"], self.patience)
            if not path.exists():
                raise PerfError(f"{build.source}: wrote no result: is it a program of Google Benchmark's kind?")
            result = results.load(path, build.source)
        missing = set(names) - {entry.name for entry in result.entries}
        if missing:
            raise PerfError(f"{build.source}: listed {sorted(missing)[0]} but did not measure it")
        return result


def choose_pin(names: list, wanted) -> int | None:
    """The CPU to stay on: the last allowed one (interrupts are served by the first), when no benchmark has more threads than one."""
    if wanted != "auto":
        return wanted
    threads = {int(match.group(1)) if (match := THREADS.search(name)) else 1 for name in names}
    cpus = machine.allowed_cpus()
    return cpus[-1] if cpus and threads == {1} else None


def make_judge(names: list, settings: Settings) -> Judge:
    """The judge of what `interleave` measures: benchmarks of one process share the draw of its turn."""
    return Judge(names, settings.rules, drawn_apart=settings.benchmarks_per_process == 1)


def interleave(runner: Runner, names: list, settings: Settings, judge: Judge, check, progress=lambda *_: None) -> Measured:
    """Measures pairs until the judge has decided every benchmark or the budget ends. Decided benchmarks are not run any more.

    check(baseline result, candidate result): raises PerfError for what can't be compared; called for every pair.
    progress(repetitions, judge, seconds left)
    """
    draw = random.Random(settings.seed)
    measurements = calibrate(runner, names, settings)
    least = repetitions_needed(len(names), settings.rules)
    measured = Measured(list(names), {name: [] for name in names}, pinned_to=runner.pinned_to)
    machine_before, start = machine.CpuTime.now(), time.monotonic()
    repetition, longest = 0, 0.0
    while judge.undecided:
        begun = time.monotonic()
        order = judge.undecided
        draw.shuffle(order)
        for at in range(0, len(order), settings.benchmarks_per_process):
            _measure_pair(runner, order[at : at + settings.benchmarks_per_process], settings, measurements, draw, check, measured)
        repetition += 1
        now = time.monotonic()
        longest = max(0.7 * longest, now - begun)
        over = now - start + longest > settings.budget or repetition >= settings.most_repetitions
        last = over and repetition >= least
        if last or repetition == judge.next_look:
            judge.look(measured.differences(), last)
        progress(repetition, judge, settings.budget - (now - start))
        if last:
            break
    judge.finish(measured.differences())
    measured.disturbance = machine.Disturbance.between(machine_before, machine.CpuTime.now())
    measured.seconds = time.monotonic() - start
    return measured


def calibrate(runner: Runner, names: list, settings: Settings) -> dict:
    """name -> measurements that fit into a process's time, from one run of the baseline that counts for nothing else."""
    fitting, longest = {}, 0.0
    for at in range(0, len(names), settings.benchmarks_per_process):
        begun = time.monotonic()
        result = runner.measure(BASELINE, names[at : at + settings.benchmarks_per_process], settings.min_time, 1)
        longest = max(longest, time.monotonic() - begun)
        result.refuse_errors()
        for entry in result.entries:
            count = settings.process_time / max(settings.min_time, entry.real_time)
            fitting[entry.name] = min(MOST_MEASUREMENTS, max(FEWEST_MEASUREMENTS, round(count)))
    runner.patience = round(PATIENCE_SECONDS + PATIENCE_TIMES * longest)
    return fitting


def lower_quartile(times: list) -> float:
    times = sorted(times)
    return times[(len(times) - 1) // 4]


def _measure_pair(runner: Runner, names: list, settings: Settings, measurements: dict, draw: random.Random, check,
                  measured: Measured) -> None:
    sides = [BASELINE, CANDIDATE]
    if draw.random() < 0.5:
        sides.reverse()
    pair = [None, None]
    for side in sides:
        pair[side] = runner.measure(side, names, settings.min_time, min(measurements[name] for name in names))
    check(*pair)
    measured.contexts = (pair[BASELINE].context, pair[CANDIDATE].context)
    by_name = [result.by_name() for result in pair]
    for name in names:
        measured.entries.setdefault(name, by_name[BASELINE][name][0])
        measured.times[name].append(tuple(lower_quartile([entry.time for entry in side[name]]) for side in by_name))
