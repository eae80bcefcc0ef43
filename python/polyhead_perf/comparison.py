"""A finished comparison in words, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import sys
from dataclasses import dataclass, field

from . import judgement, machine
from .judgement import FASTER, INTERVAL_LEVEL, SAME, SLOWER, UNCLEAR, Judge, Judgement
from .results import base_name

SCHEMA = "polyhead-compare/1"
TOO_MANY_REPETITIONS = 1000  # nobody waits for more
EXIT_STATUS = {SAME: 0, FASTER: 0, SLOWER: 1, UNCLEAR: 2}
COLOURS = {SLOWER: "31", FASTER: "32", UNCLEAR: "33", SAME: ""}


@dataclass
class Comparison:
    """Everything that is said of one comparison."""

    judge: Judge
    baseline: str
    candidate: str
    times: dict  # name -> (baseline's times, candidate's times) in seconds; paired when `paired`
    clocks: dict  # name -> "real" or "cpu"
    contexts: tuple
    paired: bool
    settings: dict
    warnings: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    seconds: float | None = None  # that measuring took
    seconds_per_repetition: float | None = None  # of what is undecided
    disturbance: machine.Disturbance | None = None  # while measuring

    @property
    def verdict(self) -> str:
        return judgement.overall(self.judge)

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    def by_effect(self) -> list:
        """Judgements, the slowest candidate first."""
        return sorted(self.judge.benchmarks.values(), key=lambda judged: -judged.estimate)

    def of(self, verdict: str) -> list:
        return [judged for judged in self.by_effect() if judged.verdict == verdict]


def percent(log_ratio: float) -> str:
    """+10.3 % for a candidate that takes 1.103 times as long."""
    if not math.isfinite(log_ratio):
        return "?"
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def interval(judged: Judgement) -> str:
    if not math.isfinite(judged.low) or not math.isfinite(judged.high):
        return "any"
    return f"{100 * math.expm1(judged.low):+.1f} to {100 * math.expm1(judged.high):+.1f} %"


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:#.3g} {unit}".replace(". ", " ")
    return f"{seconds * 1e9:#.3g} ns".replace(". ", " ")


def short_names(names) -> dict:
    """name -> what a table calls it: without the time kind's suffixes, where that leaves names different."""
    short = {name: base_name(name) for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in names}


def table(comparison: Comparison, colour: bool = False) -> str:
    pairs = "pairs" if comparison.paired else "runs"
    head = ("benchmark", "baseline", "candidate", "change", f"{INTERVAL_LEVEL:.0%} interval", pairs, "verdict")
    rows, called = [], short_names(comparison.judge.benchmarks)
    for judged in comparison.by_effect():
        first, second = comparison.times[judged.name]
        rows.append((called[judged.name], duration(statistics.median(first)), duration(statistics.median(second)), percent(judged.estimate),
                     interval(judged), str(judged.repetitions), judged.verdict))
    if len(rows) > 1:
        together = comparison.judge.together
        rows.append(("geometric mean", "", "", percent(together.estimate), interval(together), "", together.verdict if comparison.paired else ""))
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1])), row[-1]]
        if colour and COLOURS.get(row[-1]):
            cells[-1] = f"\033[{COLOURS[row[-1]]}m{row[-1]}\033[0m"
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _count(number: int, noun: str = "benchmark") -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _verb(judged: list, verb: str) -> str:
    return verb + ("s" if len(judged) == 1 else "")


def _be(judged: list) -> str:
    return "is" if len(judged) == 1 else "are"


def _size(log_ratio: float) -> str:
    """10.3 %: how much longer, or shorter, the candidate takes."""
    return f"{abs(100 * math.expm1(log_ratio)):.1f} %"


def _extent(judged: list) -> str:
    sizes = sorted((one.estimate for one in judged), key=abs)
    smallest, largest = _size(sizes[0]), _size(sizes[-1])
    return f"by {largest}" if smallest == largest else f"by {smallest} to {largest}"


def _named(comparison: Comparison, judged: list, most: int = 3) -> str:
    called = short_names(comparison.judge.benchmarks)
    names = ", ".join(called[one.name] for one in judged[:most])
    return names + (f" and {len(judged) - most} more" if len(judged) > most else "")


def summary(comparison: Comparison) -> str:
    """What came out, in plain words."""
    judge, total = comparison.judge, len(comparison.judge.benchmarks)
    slower, faster, same, unclear = (comparison.of(verdict) for verdict in (SLOWER, FASTER, SAME, UNCLEAR))
    min_effect = 100 * judge.rules.min_effect
    sentences = []
    if slower:
        sentences.append(f"SLOWER: {len(slower)} of {_count(total)} {_verb(slower, 'take')} longer, {_extent(slower)}: {_named(comparison, slower)}.")
    elif judge.together.verdict == SLOWER:
        sentences.append(f"SLOWER: all {total} benchmarks together take {_size(judge.together.estimate)} longer.")
    elif unclear:
        sentences.append(f"COULD NOT TELL for {len(unclear)} of {_count(total)}: {_named(comparison, unclear)}.")
    elif faster:
        sentences.append("FASTER: nothing takes longer.")
    else:
        sentences.append(f"THE SAME: no benchmark of {total} differs by {min_effect:g} % or more." if total > 1 else
                         f"THE SAME: no difference of {min_effect:g} % or more.")
    if faster:
        sentences.append(f"{len(faster)} of {_count(total)} {_verb(faster, 'take')} less time, {_extent(faster)}: {_named(comparison, list(reversed(faster)))}.")
    if same and len(same) < total:
        sentences.append(f"{len(same)} {_be(same)} the same.")
    if unclear:
        sentences.append(_more_repetitions(comparison, unclear))
    if total > 1 and math.isfinite(judge.together.low):
        together = judge.together
        direction = "longer" if together.estimate >= 0 else "less time"
        sentences.append(f"Over all benchmarks (geometric mean) the candidate takes {_size(together.estimate)} {direction} "
                         f"({interval(together)}).")
    return " ".join(sentence for sentence in sentences if sentence)


def _more_repetitions(comparison: Comparison, unclear: list) -> str:
    """How many repetitions would have told, when the interval shrinks with the root of their number."""
    if len(unclear) < len(comparison.judge.benchmarks) and (comparison.of(SLOWER) or not comparison.paired):
        start = f"{len(unclear)} {_be(unclear)} unclear."
    else:
        start = ""
    reach = comparison.judge.rules.threshold
    widest = max((one.high - one.low) / 2 for one in unclear)
    if not math.isfinite(widest):
        return f"{start} There were too few repetitions for any answer.".strip()
    repetitions = max(one.repetitions for one in unclear)
    needed = math.ceil(repetitions * max(1.3, (widest / reach) ** 2))
    if needed > TOO_MANY_REPETITIONS:
        return f"{start} The machine is too noisy now: intervals reach {_size(widest)} to either side.".strip()
    text = f"{start} {'The interval reaches' if len(unclear) == 1 else 'The intervals reach'} {_size(widest)} to either side; about {needed} repetitions would tell"
    if comparison.seconds_per_repetition is not None:
        text += f" (--budget {math.ceil(needed * comparison.seconds_per_repetition / 10) * 10})"
    return text.strip() + "."


def document(comparison: Comparison) -> dict:
    """The comparison as JSON: everything of the table, and the times it was made from."""

    def ratio(log_ratio: float):
        return math.exp(log_ratio) if math.isfinite(log_ratio) else None

    def judged(one: Judgement) -> dict:
        return {"name": one.name, "verdict": one.verdict, "ratio": ratio(one.estimate), "ratio_low": ratio(one.low),
                "ratio_high": ratio(one.high), "p": one.p, "p_adjusted": one.p_adjusted, "repetitions": one.repetitions}

    return {
        "schema": SCHEMA,
        "verdict": comparison.verdict,
        "exit_status": comparison.exit_status,
        "summary": summary(comparison),
        "baseline": comparison.baseline,
        "candidate": comparison.candidate,
        "settings": {**comparison.settings, "alpha": comparison.judge.rules.alpha, "min_effect": comparison.judge.rules.min_effect,
                     "interval_level": INTERVAL_LEVEL, "paired": comparison.paired},
        "seconds": comparison.seconds,
        "disturbance": dataclasses.asdict(comparison.disturbance) if comparison.disturbance else None,
        "warnings": comparison.warnings,
        "notes": comparison.notes,
        "geometric_mean": judged(comparison.judge.together),
        "benchmarks": [
            {**judged(one), "clock": comparison.clocks[one.name], "baseline_seconds": list(comparison.times[one.name][0]),
             "candidate_seconds": list(comparison.times[one.name][1])}
            for one in comparison.by_effect()
        ],
        "context": {"baseline": comparison.contexts[0], "candidate": comparison.contexts[1]},
    }


def use_colour(stream=sys.stdout) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
