"""Rank tests with the estimates and intervals that belong to them, on log ratios (docs/decisions/007).

scipy has the tests but neither the interval of the Hodges-Lehmann estimate nor a public null distribution. An interval and a
verdict that come from different distributions can contradict each other, so both come from the distributions here; the tests
compare them with scipy's.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy
import scipy.special  # scipy.stats takes a second to import, for the same quantiles

# Above these sizes the null distribution is taken as normal: its exact form would cost seconds and differ in the fourth digit.
EXACT_PAIRS = 400
EXACT_PRODUCT = 2500
JACKKNIFE_GROUPS = 50  # of measurements that are left out together: one by one, thousands of them would take minutes


@dataclass(frozen=True)
class Shift:
    """By how much the second of two samples is shifted against the first, on the log scale."""

    estimate: float  # Hodges-Lehmann
    low: float  # interval of the level that was asked for; infinite where the sample is too small for that level
    high: float
    p: float  # two-sided, of no shift


class _Null:
    """Null distribution of a rank statistic with values 0 .. size, symmetric about size / 2."""

    def __init__(self, cumulative, size: int, deviation: float):
        self._cumulative = cumulative  # P(T <= t) for each t, or None for the normal distribution
        self.size = size
        self._deviation = deviation

    def at_most(self, value: int) -> float:
        if value < 0:
            return 0.0
        if value >= self.size:
            return 1.0
        if self._cumulative is not None:
            return float(self._cumulative[value])
        return float(scipy.special.ndtr((value + 0.5 - self.size / 2) / self._deviation))

    def cut(self, tail: float) -> int:
        """How many of the smallest values have a probability of at most `tail` together."""
        if self._cumulative is not None:
            return int(numpy.searchsorted(self._cumulative, tail, side="right"))
        return max(0, math.floor(self.size / 2 + 0.5 + self._deviation * float(scipy.special.ndtri(tail))))


@functools.lru_cache(maxsize=None)
def _signed_rank_null(pairs: int) -> _Null:
    size = pairs * (pairs + 1) // 2
    deviation = math.sqrt(pairs * (pairs + 1) * (2 * pairs + 1) / 24)
    if pairs > EXACT_PAIRS:
        return _Null(None, size, deviation)
    probability = numpy.zeros(size + 1)
    probability[0] = 1.0
    for rank in range(1, pairs + 1):  # each rank is counted or not, with probability 1/2
        counted = numpy.zeros_like(probability)
        counted[rank:] = probability[:-rank]
        probability = 0.5 * (probability + counted)
    return _Null(numpy.cumsum(probability), size, deviation)


@functools.lru_cache(maxsize=None)
def _rank_sum_null(first: int, second: int) -> _Null:
    size = first * second
    deviation = math.sqrt(first * second * (first + second + 1) / 12)
    if size > EXACT_PRODUCT:
        return _Null(None, size, deviation)
    # ways[k][u]: choices of k of the ranks seen so far that exceed u of those not chosen.
    ways = numpy.zeros((second + 1, size + 1))
    ways[0, 0] = 1.0
    for rank in range(first + second):
        for chosen in range(min(second, rank + 1), 0, -1):
            exceeded = rank - (chosen - 1)  # those before it that aren't chosen
            if exceeded <= first:
                ways[chosen, exceeded:] += ways[chosen - 1, : size + 1 - exceeded]
    return _Null(numpy.cumsum(ways[second]) / math.comb(first + second, first), size, deviation)


def _shift(differences, null: _Null, level: float) -> Shift:
    """From the sorted differences whose number above c is the rank statistic of the shift c."""
    above = len(differences) - int(numpy.searchsorted(differences, 0.0, side="right"))
    below = int(numpy.searchsorted(differences, 0.0, side="left"))
    # A difference of exactly 0 counts for neither side: ties can only make a shift harder to claim.
    p = min(1.0, 2 * null.at_most(len(differences) - max(above, below)))
    cut = null.cut((1 - level) / 2)
    low, high = (differences[cut - 1], differences[-cut]) if cut > 0 else (-math.inf, math.inf)
    return Shift(float(numpy.median(differences)), float(low), float(high), p)


def paired_shift(differences, level: float) -> Shift:
    """Wilcoxon's signed-rank test of differences that are symmetric about 0 when there is no shift; exact."""
    differences = numpy.asarray(differences, dtype=float)
    first, second = numpy.triu_indices(len(differences))
    walsh = numpy.sort((differences[first] + differences[second]) / 2)
    return _shift(walsh, _signed_rank_null(len(differences)), level)


def pooled_signed_rank(samples: list) -> tuple:
    """(p, direction) of one signed-rank test of all benchmarks' differences, each in units of the median size of its benchmark's,
    so that a noisy benchmark doesn't drown the quiet ones.

    Exact when every difference has either sign with probability 1/2, independent of all others, however the sizes depend on each
    other: units and ranks come from sizes alone. direction: 1 when the differences above 0 have the larger sum of ranks, -1 when
    those below have it, else 0.
    """
    pooled = []
    for differences in samples:
        differences = numpy.asarray(differences, dtype=float)
        unit = numpy.median(numpy.abs(differences))
        pooled.append(differences / unit if unit > 0 else numpy.sign(differences))
    values = numpy.concatenate(pooled)
    sizes, ranks = numpy.abs(values), numpy.arange(1, len(values) + 1)
    # Of equal sizes those that are counted come first: as with one sample, ties only make a shift harder to claim.
    above = int(ranks[(values > 0)[numpy.lexsort((values <= 0, sizes))]].sum())
    below = int(ranks[(values < 0)[numpy.lexsort((values >= 0, sizes))]].sum())
    null = _signed_rank_null(len(values))
    return min(1.0, 2 * null.at_most(null.size - max(above, below))), (above > below) - (above < below)


def unpaired_shift(first, second, level: float) -> Shift:
    """The test of Mann and Whitney of two independent samples that are alike but for a shift."""
    first, second = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
    differences = numpy.sort(numpy.subtract.outer(second, first).ravel())
    return _shift(differences, _rank_sum_null(len(first), len(second)), level)


def smallest_paired_p(pairs: int) -> float:
    """What the signed-rank test says when all differences have one sign: it can't say less."""
    return 2.0 ** (1 - pairs)


def smallest_unpaired_p(first: int, second: int) -> float:
    return 2 / math.comb(first + second, first)  # of whole numbers: the divisor may be beyond what a float holds


def holm(p_values: list) -> list:
    """Adjusted p-values: comparing each with alpha keeps the probability of any false rejection below alpha, however the tests
    depend on each other."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for step, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def hodges_lehmann(differences) -> float:
    """The median of all averages of two differences."""
    differences = numpy.asarray(differences, dtype=float)
    first, second = numpy.triu_indices(len(differences))
    return float(numpy.median(differences[first] + differences[second])) / 2


def mean_shift(samples: list, level: float) -> tuple:
    """(estimate, low, high) of the mean over benchmarks of their Hodges-Lehmann estimates: the log of a geometric mean of ratios.

    samples: for each benchmark its differences, in the order of the repetitions; those that were decided early have fewer. The
    benchmarks of one repetition share what the machine did meanwhile, so the interval comes from leaving out whole repetitions,
    one at a time (jackknife), with Student's quantile.
    """
    estimates = [hodges_lehmann(differences) for differences in samples]
    influences = numpy.zeros(max(map(len, samples)))
    for differences, whole in zip(samples, estimates):
        for repetition in range(len(differences) if len(differences) > 1 else 0):
            without = hodges_lehmann(numpy.delete(differences, repetition))
            influences[repetition] += (len(differences) - 1) * (whole - without) / len(differences) / len(samples)
    return _student(float(numpy.mean(estimates)), influences, min(map(len, samples)), level)


def mean_unpaired_shift(first: list, second: list, level: float) -> tuple:
    """The same for unpaired samples, whose measurements are independent of each other."""
    estimates, influences = [], []
    for a, b in zip(first, second):
        differences = numpy.subtract.outer(b, a)
        estimates.append(float(numpy.median(differences)))
        for axis, count in enumerate(differences.shape):
            groups = numpy.array_split(numpy.arange(count), min(count, JACKKNIFE_GROUPS))
            for group in groups if count > 1 else []:
                without = float(numpy.median(numpy.delete(differences, group, axis)))
                influences.append((len(groups) - 1) * (estimates[-1] - without) / len(groups) / len(first))
    return _student(float(numpy.mean(estimates)), influences, min(JACKKNIFE_GROUPS, *map(len, [*first, *second])), level)


def _student(estimate: float, influences, repetitions: int, level: float) -> tuple:
    if repetitions < 3:
        return estimate, -math.inf, math.inf
    reach = float(scipy.special.stdtrit(repetitions - 1, 0.5 + level / 2)) * math.sqrt(sum(value * value for value in influences))
    return estimate, estimate - reach, estimate + reach
