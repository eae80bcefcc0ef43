"""Made-up measurements with the noise that real machines show, to count how often the judge is right: thousands of comparisons
in the time of one real one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from .judgement import Judge, Rules, overall


@dataclass(frozen=True)
class Noise:
    """What disturbs a process, as log factors of its time. The defaults are a quiet machine's."""

    name: str
    white: float = 0.003  # deviation of each process's own noise
    layout: float = 0.0  # slowed by as much with probability 0.3: where its memory happened to lie
    drift: float = 0.0  # deviation of a random walk's step from one process to the next
    trend: float = 0.0  # by how much the machine slows down over the whole comparison
    burst: float = 0.0  # slowed by as much while another program runs, about 10 processes long, a fifth of the time
    spike: float = 0.0  # mean of rare exponential delays, one process in ten
    tail: float = 0.0  # scale of Student's t with 2 degrees of freedom: no variance at all

    def draw(self, random: numpy.random.Generator, processes: int) -> numpy.ndarray:
        """Log factors of so many processes, one after another."""
        log = self.white * random.standard_normal(processes)
        log += self.layout * (random.random(processes) < 0.3)
        log += numpy.cumsum(self.drift * random.standard_normal(processes))
        log += self.trend * numpy.arange(processes) / processes
        if self.burst:
            log += self.burst * _bursts(random, processes)
        if self.spike:
            log += numpy.where(random.random(processes) < 0.1, random.exponential(self.spike, processes), 0.0)
        if self.tail:
            log += self.tail * random.standard_t(2, processes)
        return log


def _bursts(random: numpy.random.Generator, processes: int) -> numpy.ndarray:
    """1 while busy, else 0: a chain that stays busy for 10 steps and quiet for 40 on average."""
    busy, states, draws = random.random() < 0.2, numpy.empty(processes), random.random(processes)
    for step in range(processes):
        busy = draws[step] >= 0.1 if busy else draws[step] < 0.025
        states[step] = busy
    return states


MODELS = (
    Noise("quiet"),
    Noise("noisy", white=0.02),
    Noise("memory layout", layout=0.04),
    Noise("drift", drift=0.005, trend=0.2),
    Noise("bursts", burst=0.3),
    Noise("delays", white=0.006, spike=0.1),
    Noise("heavy tails", tail=0.01),
)


def compare(noise: Noise, random: numpy.random.Generator, effects: list, repetitions: int, rules: Rules = Rules()) -> Judge:
    """One interleaved comparison of benchmarks whose candidates take exp(effect) times as long, with at most so many
    repetitions: as builds.interleave, with made-up times."""
    count = len(effects)
    times = noise.draw(random, repetitions * count * 2).reshape(repetitions, count, 2)
    # Which of the two processes of a pair was the candidate's.
    candidate_second = numpy.where(random.random((repetitions, count)) < 0.5, 1.0, -1.0)
    differences = (times[:, :, 1] - times[:, :, 0]) * candidate_second + numpy.asarray(effects)
    names = [f"benchmark {index}" for index in range(count)]
    judge, measured = Judge(names, rules), dict.fromkeys(names, 0)
    while judge.undecided:
        at = min(judge.next_look, repetitions)
        for name in judge.undecided:
            measured[name] = at
        judge.look({name: differences[: measured[name], index].tolist() for index, name in enumerate(names)}, last=at == repetitions)
        if at == repetitions:
            break
    judge.finish({name: differences[: measured[name], index].tolist() for index, name in enumerate(names)})
    return judge


def count_verdicts(noise: Noise, seed: int, effects: list, repetitions: int, comparisons: int, rules: Rules = Rules()) -> dict:
    """verdict -> how many of so many comparisons had it."""
    random = numpy.random.default_rng(seed)
    verdicts: dict = {}
    for _ in range(comparisons):
        verdict = overall(compare(noise, random, effects, repetitions, rules))
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return verdicts
