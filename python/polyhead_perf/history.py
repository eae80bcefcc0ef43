"""Change points of a benchmark's times over a series of runs: where its level moved by more than the series' own noise.

Candidates come from ruptures (an optimal segmentation by PELT, of logarithms whose outliers are drawn in); each must then stand up
to a test against the noise that the whole series shows, because an optimal segmentation always finds some "best" place to cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMALLEST_SEGMENT = 3  # runs on either side: one slow run is an outlier, three are a level (see _smallest_segment)
SMALLEST_CHANGE = 0.03  # of the time; less than this moves with the layout of a binary
SIGNIFICANCE = 0.003  # for a whole series without a change, before it is divided among the places where one could be


@dataclass(frozen=True)
class ChangePoint:
    """Runs `index` and later are at another level than those before."""

    index: int
    before: float  # median of the segment that ends here, in the unit of the values
    after: float
    p_value: float

    @property
    def change(self):
        """Relative: 0.1 is 10 % more time."""
        return self.after / self.before - 1


def _noise(logs):
    """Standard deviation from the differences of neighbours, by their median, so that changes of level do not count."""
    import numpy as np

    return float(np.median(np.abs(np.diff(logs)))) * 1.4826 / math.sqrt(2)


def _smallest_segment(count):
    """In a long series a few outliers lie side by side by chance, so it takes more runs to make a level."""
    return SMALLEST_SEGMENT if count < 12 else SMALLEST_SEGMENT + 1 if count < 32 else SMALLEST_SEGMENT + 2


def _drawn_in(logs, noise, segment):
    """No value further than three deviations from the median around it, which follows a level that lasts `segment` runs."""
    import numpy as np

    reach = segment - 1
    padded = np.pad(logs, reach, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return np.clip(logs, around - 3 * noise, around + 3 * noise)


def _segments(bounds):
    return list(zip(bounds[:-1], bounds[1:]))


def _test(logs, bounds):
    """For each inner bound the p-value of "both neighbours have one level", by a t-test.

    The deviation is that of all segments together, since three runs know too little of it. Autocorrelation, as a machine has
    that is slow for an afternoon, widens it; its estimate is corrected for the bias that short series have.
    """
    import numpy as np
    from scipy import stats

    levels = np.concatenate([np.full(end - begin, logs[begin:end].mean()) for begin, end in _segments(bounds)])
    rest = logs - levels
    segments = len(bounds) - 1
    freedom = max(len(logs) - segments, 1)
    power = float(rest @ rest)
    inflation = 1.0
    if power > 1e-18:
        correlation = float(rest[1:] @ rest[:-1]) / power
        correlation = min(max(correlation + (segments + 3 * max(correlation, 0)) / len(logs), 0.0), 0.9)
        inflation = math.sqrt((1 + correlation) / (1 - correlation))
    deviation = max(math.sqrt(power / freedom), _noise(logs), 1e-9)
    p_values = []
    for left, middle, right in zip(bounds[:-2], bounds[1:-1], bounds[2:]):
        step = abs(logs[middle:right].mean() - logs[left:middle].mean())
        error = deviation * inflation * math.sqrt(1 / (middle - left) + 1 / (right - middle))
        p_values.append(float(2 * stats.t.sf(step / error, freedom)))
    return p_values


def change_points(values, smallest_change=SMALLEST_CHANGE, significance=SIGNIFICANCE):
    """values: times of runs in order, all positive. Returns ChangePoints, oldest first; [] for fewer than six runs.

    Weakest first, candidates are dropped until all that are left exceed `smallest_change` (medians) and have a p-value below
    `significance` divided by the number of places where the series could have been cut.
    """
    import numpy as np
    import ruptures

    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not np.all(np.isfinite(values)) or not np.all(values > 0):
        raise ValueError("change_points: values must be a list of positive finite numbers")
    if len(values) < 2 * SMALLEST_SEGMENT:
        return []
    logs = np.log(values)
    noise = max(_noise(logs), 1e-6)
    segment = _smallest_segment(len(logs))
    logs = _drawn_in(logs, noise, segment)
    search = ruptures.KernelCPD(kernel="linear", min_size=segment).fit(logs.reshape(-1, 1))  # squared error, in C
    bounds = [0] + [int(bound) for bound in search.predict(pen=3 * noise**2 * math.log(len(logs)))]
    limit = significance / (len(values) - 2 * segment + 1)
    medians = lambda bounds: [float(np.median(values[begin:end])) for begin, end in _segments(bounds)]
    while len(bounds) > 2:
        levels, p_values = medians(bounds), _test(logs, bounds)
        steps = [abs(math.log(after / before)) for before, after in zip(levels[:-1], levels[1:])]
        small = [index for index, step in enumerate(steps) if step < math.log1p(smallest_change)]
        weakest = min(small, key=steps.__getitem__) if small else max(range(len(p_values)), key=p_values.__getitem__)
        if not small and p_values[weakest] <= limit:
            break
        del bounds[weakest + 1]
    levels, p_values = medians(bounds), _test(logs, bounds)
    return [
        ChangePoint(index, before, after, p_value)
        for index, before, after, p_value in zip(bounds[1:-1], levels[:-1], levels[1:], p_values)
    ]
