"""The rank tests against scipy's, and what intervals and corrections promise."""

import math

import numpy
import pytest
import scipy.stats

from polyhead_perf import statistics


@pytest.fixture
def random(request):
    seed = sum(map(ord, request.node.name))
    print("seed", seed)
    return numpy.random.default_rng(seed)


@pytest.mark.parametrize("pairs", [1, 2, 5, 9, 14, 30, 50])
def test_signed_rank_p_is_scipys(random, pairs):
    for shift in (0.0, 0.4, -1.0):
        differences = random.normal(shift, 1, pairs)
        ours = statistics.paired_shift(differences, 0.95).p
        assert ours == pytest.approx(scipy.stats.wilcoxon(differences, method="exact").pvalue, rel=1e-9)


@pytest.mark.parametrize("first, second", [(1, 1), (3, 8), (9, 9), (12, 20)])
def test_rank_sum_p_is_scipys(random, first, second):
    for shift in (0.0, 1.0):
        a, b = random.normal(0, 1, first), random.normal(shift, 1, second)
        expected = scipy.stats.mannwhitneyu(b, a, method="exact").pvalue
        assert statistics.unpaired_shift(a, b, 0.95).p == pytest.approx(expected, rel=1e-9)


def test_large_samples_go_over_to_the_normal_distribution(random, monkeypatch):
    differences, (a, b) = random.normal(0.05, 1, 200), random.normal(0, 1, (2, 45))
    exact = statistics.paired_shift(differences, 0.95), statistics.unpaired_shift(a, b, 0.95)
    monkeypatch.setattr(statistics, "EXACT_PAIRS", 100)
    monkeypatch.setattr(statistics, "EXACT_PRODUCT", 100)
    for cache in (statistics._signed_rank_null, statistics._rank_sum_null):
        cache.cache_clear()
    normal = statistics.paired_shift(differences, 0.95), statistics.unpaired_shift(a, b, 0.95)
    for cache in (statistics._signed_rank_null, statistics._rank_sum_null):
        cache.cache_clear()
    for one, other in zip(exact, normal):
        assert other.p == pytest.approx(one.p, abs=0.003)
        assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.01)


def test_estimate_and_interval_by_hand():
    shift = statistics.paired_shift([1.0, 2.0, 4.0], 0.5)
    assert shift.estimate == 2.25  # of 1, 1.5, 2, 2.5, 3, 4
    assert (shift.low, shift.high) == (1.5, 3.0)  # P(T <= 1) = 2/8: two are cut from each end
    assert shift.p == 0.25
    assert statistics.hodges_lehmann([1.0, 2.0, 4.0]) == 2.25


def test_too_few_pairs_have_no_interval():
    shift = statistics.paired_shift([1.0, 1.1, 1.2, 1.3], 0.95)
    assert (shift.low, shift.high) == (-math.inf, math.inf)
    assert shift.p == statistics.smallest_paired_p(4) == 0.125
    assert statistics.unpaired_shift([1.0, 1.1], [2.0, 2.1, 2.2], 0.95).p == pytest.approx(statistics.smallest_unpaired_p(2, 3))


def test_ties_and_zeros_never_make_a_shift_easier_to_claim(random):
    assert statistics.paired_shift([0.0] * 20, 0.95).p == 1.0
    for _ in range(100):
        differences = random.integers(-2, 3, 12).astype(float)
        broken = differences + random.uniform(-1e-6, 1e-6, 12)  # ties broken either way
        assert statistics.paired_shift(differences, 0.95).p >= statistics.paired_shift(broken, 0.95).p


@pytest.mark.parametrize("pairs", [9, 17, 33])
def test_intervals_hold_what_they_say(random, pairs):
    """95 % intervals of a heavy-tailed sample hold the shift in at least 95 % of 2,000 samples, less four deviations."""
    hits = sum(shift.low <= 0.2 <= shift.high
               for shift in (statistics.paired_shift(0.2 + random.standard_t(2, pairs), 0.95) for _ in range(2000)))
    assert hits / 2000 >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_signed_rank_is_exact_under_random_order_whatever_the_machine_does(random):
    """Magnitudes as wild and dependent as they like: with random signs, p <= 0.05 at most 5 % of the time."""
    magnitudes = numpy.abs(numpy.cumsum(random.standard_cauchy(25))) * numpy.linspace(1, 50, 25)
    hits = sum(statistics.paired_shift(magnitudes * random.choice([-1, 1], 25), 0.95).p <= 0.05 for _ in range(2000))
    assert hits / 2000 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("pairs", [1, 5, 13, 40])
def test_pooled_test_of_one_benchmark_is_the_signed_rank_test(random, pairs):
    for shift in (0.0, 0.7, -0.7):
        for differences in (random.normal(shift, 1, pairs), random.integers(-2, 3, pairs) + numpy.sign(shift)):  # the latter have ties
            p, direction = statistics.pooled_signed_rank([differences])
            assert p == pytest.approx(statistics.paired_shift(differences, 0.95).p, rel=1e-9)
            mirrored = statistics.pooled_signed_rank([-differences])
            assert mirrored == (pytest.approx(p, rel=1e-9), -direction) and direction in (-1, 0, 1)
    assert statistics.pooled_signed_rank([[0.3] * 12])[1] == 1
    assert statistics.pooled_signed_rank([[0.0] * 12, [0.0] * 12]) == (1.0, 0)


def test_pooled_test_does_not_depend_on_units(random):
    samples = random.normal(1.0, 1, (3, 14))
    scaled = samples * numpy.array([[1.0], [1e-6], [1e4]])
    assert statistics.pooled_signed_rank(list(scaled)) == (pytest.approx(statistics.pooled_signed_rank(list(samples))[0], rel=1e-9), 1)


def test_pooled_test_is_exact_under_random_order_whatever_the_machine_does(random):
    """Four benchmarks with sizes as wild, as different and as dependent as they like: p <= 0.05 at most 5 % of the time."""
    magnitudes = numpy.abs(numpy.cumsum(random.standard_cauchy((4, 13)), axis=None)).reshape(4, 13)
    magnitudes *= numpy.array([[1.0], [1e3], [1e-3], [50.0]])
    hits = sum(statistics.pooled_signed_rank(list(magnitudes * random.choice([-1, 1], (4, 13))))[0] <= 0.05 for _ in range(2000))
    assert hits / 2000 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_noisy_benchmark_does_not_drown_the_quiet_ones(random):
    """A shift of 3 % in 13 repetitions of two quiet benchmarks and a wild one: found far more often than in their means."""
    pooled = means = 0
    for _ in range(200):
        samples = 0.03 + random.normal(0, 1, (3, 13)) * numpy.array([[0.02], [0.02], [0.5]])
        pooled += statistics.pooled_signed_rank(list(samples))[0] <= 0.002
        means += statistics.paired_shift(samples.mean(axis=0), 0.95).p <= 0.002
    assert pooled >= 80 and means <= 20, (pooled, means)


def test_holm():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_mean_shift_covers_with_shared_noise(random):
    """Repetitions shared by benchmarks that stopped at different times."""
    hits = 0
    for _ in range(300):
        shared = random.normal(0, 0.5, 30)
        samples = [0.1 + shared[:count] + random.standard_t(3, count) for count in (12, 18, 30, 30)]
        estimate, low, high = statistics.mean_shift(samples, 0.95)
        assert low < estimate < high
        hits += low <= 0.1 <= high
    assert hits / 300 >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 300)


def test_mean_unpaired_shift_covers(random):
    hits = 0
    for _ in range(200):
        first = [random.normal(0, 1, 15) for _ in range(4)]
        second = [random.normal(0.3, 1, 12) for _ in range(4)]
        estimate, low, high = statistics.mean_unpaired_shift(first, second, 0.95)
        hits += low <= 0.3 <= high
    assert hits / 200 >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 200)
