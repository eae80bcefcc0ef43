"""Which benchmarks are slower, faster or the same, from log ratios that come in while we look (docs/decisions/007).

The verdicts, all of one false-alarm rate `alpha` for the whole comparison:
  slower, faster   the rank test says that there is a shift, corrected for the number of benchmarks and of looks, and the
                   estimate is at least the minimum effect
  same             the estimate is below the minimum effect, and the interval excludes twice the minimum effect either way
  unclear          neither: more repetitions would tell
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import statistics

LEAST_REPETITIONS = 9
INTERVAL_LEVEL = 0.95
# Half of what may be spent on errors goes to looks on the way, less to each later one; the rest goes to the last look.
INTERIM_SHARE = 0.5
INTERIM_DECAY = 0.75
LOOK_GROWTH = 1.4  # each look has this many times the repetitions of the one before

SLOWER, FASTER, SAME, UNCLEAR = "slower", "faster", "same", "unclear"
ALL_TOGETHER = "all together"


@dataclass(frozen=True)
class Rules:
    alpha: float = 0.01  # probability of any false "slower" or "faster" in one comparison
    min_effect: float = 0.01  # as a fraction of the time

    @property
    def threshold(self) -> float:
        return math.log1p(self.min_effect)


@dataclass
class Judgement:
    """What is known of one benchmark. Effects are log(candidate time / baseline time)."""

    name: str
    verdict: str = UNCLEAR
    estimate: float = math.nan  # Hodges-Lehmann
    low: float = -math.inf  # interval of INTERVAL_LEVEL, valid however often we looked
    high: float = math.inf
    p: float = 1.0  # of no shift, valid however often we looked
    p_adjusted: float = 1.0  # and for all benchmarks of the comparison
    repetitions: int = 0

    @property
    def decided(self) -> bool:
        return self.verdict != UNCLEAR


def interim_weight(look: int) -> float:
    """The share of all that may be spent that look number `look` (from 0) may spend, when it isn't the last."""
    return INTERIM_SHARE * (1 - INTERIM_DECAY) * INTERIM_DECAY**look


def repetitions_needed(benchmarks: int, rules: Rules, weight: float = 1.0) -> int:
    """The fewest pairs with which the test can reject for the first of this many benchmarks, at least LEAST_REPETITIONS."""
    needed = LEAST_REPETITIONS
    while statistics.smallest_paired_p(needed) * (benchmarks + 1) > rules.alpha * weight:
        needed += 1
    return needed


class Judge:
    """Looks at growing samples of paired differences and keeps what each look allowed to say."""

    def __init__(self, names: list, rules: Rules, drawn_apart: bool = True):
        """drawn_apart: which side goes first was drawn for each benchmark alone, in each repetition."""
        self.rules = rules
        self.drawn_apart = drawn_apart
        self.benchmarks = {name: Judgement(name) for name in names}
        # One more hypothesis in the family: none of them differs, tested on the repetitions that have them all.
        self.together = Judgement(ALL_TOGETHER)
        self._direction = 0  # 1 slower, -1 faster: what the test of that hypothesis found
        self._spent = 0.0
        self._looks = 0
        self.next_look = repetitions_needed(len(names), rules, interim_weight(0))

    @property
    def undecided(self) -> list:
        return [name for name, judgement in self.benchmarks.items() if not judgement.decided]

    def look(self, samples: dict, last: bool = False) -> None:
        """samples: for each benchmark all its differences so far. `last`: nothing will be looked at any more, so all that is
        left may be spent; that must not depend on the differences, only on time."""
        weight = 1.0 - self._spent if last else interim_weight(self._looks)
        self._spent += weight
        self._looks += 1
        self.next_look = math.ceil(self.next_look * LOOK_GROWTH)
        level = 1 - (1 - INTERVAL_LEVEL) * weight
        complete = all(not judgement.decided for judgement in self.benchmarks.values())
        for name in self.undecided:
            self._update(self.benchmarks[name], statistics.paired_shift(samples[name], level), len(samples[name]), weight)
        if complete:
            count = min(len(differences) for differences in samples.values())
            self._update_together([samples[name][:count] for name in self.benchmarks], count, weight)
        self._conclude()

    def finish(self, samples: dict) -> None:
        """The mean over all benchmarks, once nothing is measured any more."""
        self._conclude_together(statistics.mean_shift([samples[name] for name in self.benchmarks], INTERVAL_LEVEL))

    def look_unpaired(self, first: dict, second: dict) -> None:
        """The only look at two independent samples of log times for each benchmark. The mean gets an estimate and an interval
        but takes no part in the verdicts: there are no repetitions that have all benchmarks at one time."""
        for name, judgement in self.benchmarks.items():
            shift = statistics.unpaired_shift(first[name], second[name], INTERVAL_LEVEL)
            self._update(judgement, shift, min(len(first[name]), len(second[name])), 1.0)
        self._conclude()
        names = list(self.benchmarks)
        self._conclude_together(
            statistics.mean_unpaired_shift([first[name] for name in names], [second[name] for name in names], INTERVAL_LEVEL))

    def _update(self, judgement: Judgement, shift: statistics.Shift, repetitions: int, weight: float) -> None:
        judgement.estimate, judgement.low, judgement.high = shift.estimate, shift.low, shift.high
        # By Bonferroni over looks of fixed weights the smallest p / weight of any look is a p-value itself.
        judgement.p = min(judgement.p, shift.p / weight)
        judgement.repetitions = repetitions

    def _update_together(self, samples: list, repetitions: int, weight: float) -> None:
        if not self.drawn_apart:  # benchmarks that share a draw share its sign, which may count once: that of their mean
            samples = [[sum(column) / len(samples) for column in zip(*samples)]]
        p, direction = statistics.pooled_signed_rank(samples)
        if p / weight < self.together.p:
            self.together.p, self._direction = p / weight, direction
        self.together.repetitions = repetitions

    def _conclude_together(self, estimate_low_high: tuple) -> None:
        self.together.estimate, self.together.low, self.together.high = estimate_low_high
        self.together.verdict = _verdict(self.together, self.rules)
        # The test may have found a small shift of a quiet benchmark, where the mean is that of the noisy ones: both have to say it.
        said_by_both = {SLOWER: self._direction > 0 and self.together.low > 0, FASTER: self._direction < 0 and self.together.high < 0}
        if not said_by_both.get(self.together.verdict, True):
            self.together.verdict = UNCLEAR

    def _conclude(self) -> None:
        family = [*self.benchmarks.values(), self.together]
        for judgement, adjusted in zip(family, statistics.holm([judgement.p for judgement in family])):
            judgement.p_adjusted = adjusted
            if judgement is not self.together and not judgement.decided:
                judgement.verdict = _verdict(judgement, self.rules)


def _verdict(judgement: Judgement, rules: Rules) -> str:
    significant = judgement.p_adjusted <= rules.alpha
    if significant and judgement.estimate >= rules.threshold:
        return SLOWER
    if significant and judgement.estimate <= -rules.threshold:
        return FASTER
    inside = -2 * rules.threshold < judgement.low and judgement.high < 2 * rules.threshold
    return SAME if inside and abs(judgement.estimate) < rules.threshold else UNCLEAR


def overall(judge: Judge) -> str:
    """The comparison's verdict: slower when anything is, or all together; unclear when anything is; else faster or same."""
    verdicts = [judgement.verdict for judgement in judge.benchmarks.values()]
    if SLOWER in verdicts or judge.together.verdict == SLOWER:
        return SLOWER
    if UNCLEAR in verdicts:
        return UNCLEAR
    return FASTER if FASTER in verdicts else SAME
