"""How often is compare right? One build against itself, and against itself slowed by a known share."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

from . import compare, json_file
from .errors import PerfError

SCHEMA = "polyhead-compare-self-test/1"
# What a quiet core has to reach, as shares of the comparisons: alarms at most, slow-downs caught at least.
GOALS = {0.0: ("at most", 0.0), 3.0: ("at least", 0.75), 10.0: ("at least", 0.95)}
BEGIN, END = "<!-- self-test -->", "<!-- /self-test -->"

DESCRIPTION = """\
Compares a build with itself, and with itself slowed down by a known share, again and again, and counts how often the verdict
is right. The build needs polyhead-bench's flag --slow-down=PERCENT. The comparisons come in random order, so that a bad minute
of the machine meets all kinds alike."""


def parse_arguments(arguments: list, program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=DESCRIPTION, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", metavar="PROGRAM", help="the build")
    parser.add_argument("--runs", type=compare.positive_count, default=20, help="comparisons of each kind (default %(default)s)")
    parser.add_argument("--slow-downs", default="0,3,10", metavar="PERCENT,...", help="kinds (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the summary there; without --binary it is read from there")
    parser.add_argument("--docs", metavar="FILE", help=f"write the figures into this text, between {BEGIN} and {END}")
    parser.add_argument("--check-docs", metavar="FILE", help="fail when that text has other figures than --json")
    compare.add_measuring_options(parser)
    parser.set_defaults(budget=12.0)
    own, extra = compare.split_extra(arguments)
    options = parser.parse_args(own)
    options.extra = extra
    if not options.binary and not options.json:
        parser.error("expected --binary, or --json with the summary of earlier comparisons")
    try:
        options.slow_downs = [float(part) for part in options.slow_downs.split(",")]
    except ValueError:
        parser.error(f"--slow-downs {options.slow_downs}: expected percentages with commas between them")
    return options


def main(arguments: list, program: str) -> int:
    options = parse_arguments(arguments, program)
    if options.binary:
        summary = measure(options)
        if options.json:
            Path(options.json).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    else:
        summary = json_file.read(options.json)
    text = figures(summary)
    print(text)
    if options.docs:
        write_docs(Path(options.docs), text)
    if options.check_docs and docs_text(Path(options.check_docs)) != text:
        raise PerfError(f"{options.check_docs}: does not say what {options.json} says; write it anew: {program} "
                        f"--json {options.json} --docs {options.check_docs}")
    failed = [case for case in summary["cases"] if not case["goal_met"]]
    for case in failed:
        print(f"missed: injected {case['slow_down_percent']:g} %: said slower in {case['slower']} of {case['runs']}, {goal_text(case)}")
    return 1 if failed else 0


def measure(options: argparse.Namespace) -> dict:
    from .builds import Build

    program = compare.resolve_program(options.binary)
    draw = random.Random(options.seed)
    kinds = [slow_down for slow_down in options.slow_downs for _ in range(options.runs)]
    draw.shuffle(kinds)
    judged_options = argparse.Namespace(**vars(options), min_effect=None, alpha=0.01, common=False, allow_context=[])
    outcomes: dict = {slow_down: [] for slow_down in options.slow_downs}
    context: dict = {}
    started = time.monotonic()
    for number, slow_down in enumerate(kinds, 1):
        judged_options.seed = draw.randrange(2**32)
        flags = (f"--slow-down={slow_down:g}",) if slow_down else ()
        comparison = compare.compare_programs(Build(program, options.extra), Build(program, (*options.extra, *flags)),
                                              judged_options, talk=False)
        outcomes[slow_down].append(comparison)
        context = comparison.contexts[0]
        print(f"{number} of {len(kinds)}: injected {slow_down:g} %: {comparison.verdict} "
              f"({comparison.seconds:.1f} s)", file=sys.stderr, flush=True)
    cases = [case_of(slow_down, comparisons) for slow_down, comparisons in sorted(outcomes.items())]
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "context": {key: context[key] for key in ("cpu", "num_cpus", "isa", "governor", "compiler", "commit") if key in context},
        "benchmarks": list(comparison.judge.benchmarks),
        "settings": {key: value for key, value in comparison.settings.items() if key != "seed"},
        "alpha": comparison.judge.rules.alpha,
        "min_effect": comparison.judge.rules.min_effect,
        "seconds": round(time.monotonic() - started, 1),
        # Median shares of the machine's CPU time while measuring: other programs, and what a virtual machine's host kept back.
        "others": round(statistics.median(one.disturbance.others for each in outcomes.values() for one in each), 3),
        "stolen": round(statistics.median(one.disturbance.stolen for each in outcomes.values() for one in each), 3),
        "cases": cases,
    }


def case_of(slow_down: float, comparisons: list) -> dict:
    verdicts = [one.verdict for one in comparisons]
    judged = [judgement for one in comparisons for judgement in one.judge.benchmarks.values()]
    case = {
        "slow_down_percent": slow_down,
        "runs": len(comparisons),
        "slower": verdicts.count("slower"),
        "faster": sum(any(each.verdict == "faster" for each in one.judge.benchmarks.values()) for one in comparisons),
        "same": verdicts.count("same"),
        "unclear": verdicts.count("unclear"),
        "benchmarks": len(judged),
        "benchmarks_slower": sum(each.verdict == "slower" for each in judged),
        "benchmarks_faster": sum(each.verdict == "faster" for each in judged),
        "median_pairs": statistics.median(each.repetitions for each in judged),
        "median_seconds": round(statistics.median(one.seconds for one in comparisons), 2),
        "median_interval_percent": half_interval(judged),
        # Which benchmarks are too noisy to tell, and how often only all together told.
        "by_benchmark": {name: of_benchmark([one.judge.benchmarks[name] for one in comparisons]) for name in comparisons[0].judge.benchmarks},
        "slower_together_only": sum(one.verdict == "slower" and not one.of("slower") for one in comparisons),
    }
    return {**case, "goal_met": goal_met(case)}


def of_benchmark(judged: list) -> dict:
    return {
        **{verdict: sum(each.verdict == verdict for each in judged) for verdict in ("slower", "faster", "same", "unclear")},
        "median_pairs": statistics.median(each.repetitions for each in judged),
        "median_interval_percent": half_interval(judged),
    }


def half_interval(judged: list) -> float | None:
    """The median over judgements, in percent; None when half of them have none."""
    reach = statistics.median((each.high - each.low) / 2 for each in judged)
    return round(100 * reach, 2) if math.isfinite(reach) else None


def goal_met(case: dict) -> bool:
    sense, share = GOALS.get(case["slow_down_percent"], ("at least", 0.0))
    if sense == "at most":  # either way: an improvement that isn't there is as false
        return case["slower"] + case["faster"] <= share * case["runs"]
    return case["slower"] >= share * case["runs"]


def goal_text(case: dict) -> str:
    sense, share = GOALS.get(case["slow_down_percent"], ("at least", 0.0))
    count = share * case["runs"]
    return "no alarm wanted" if sense == "at most" else f"wanted {-int(-count // 1)} or more"


def figures(summary: dict) -> str:
    """The part of docs/benchmarking.md that says what was reached."""
    context, settings = summary["context"], summary["settings"]
    runs = {case["runs"] for case in summary["cases"]}
    lines = [
        f"Measured by `polyhead_perf self-test` on {summary['date']}: {context.get('cpu', 'unknown CPU')}, "
        f"{context.get('num_cpus', '?')} CPUs, {context.get('isa', '?')}, "
        + (f"pinned to CPU {settings['pinned_to']}, " if settings.get("pinned_to") is not None else "")
        + f"{len(summary['benchmarks'])} benchmarks, {'/'.join(map(str, sorted(runs)))} comparisons of each kind with a budget of "
        f"{settings['budget']:g} s each, {summary['seconds'] / 60:.0f} minutes in all. Other programs used {summary['others']:.1%} of the "
        f"machine's CPU time, its host kept back {summary['stolen']:.1%}.",
        "",
        "| injected | comparisons that said slower | a benchmark faster | the same | could not tell | wanted | benchmarks called "
        "slower | pairs (median) | half interval (median) | seconds a comparison |",
        "| ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for case in summary["cases"]:
        reach = case["median_interval_percent"]
        lines.append(f"| {case['slow_down_percent']:g} % | {case['slower']} of {case['runs']} | {case['faster']} | {case['same']} "
                     f"| {case['unclear']} | {goal_text(case)} | {case['benchmarks_slower']} of {case['benchmarks']} "
                     f"| {case['median_pairs']:g} | {'any' if reach is None else f'{reach:g} %'} | {case['median_seconds']:g} |")
    return "\n".join(lines)


def _parts(path: Path) -> tuple:
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise PerfError(f"{path}: has no {BEGIN} ... {END} to put the figures between")
    return before, inside, after


def docs_text(path: Path) -> str:
    return _parts(path)[1].strip()


def write_docs(path: Path, text: str) -> None:
    before, _, after = _parts(path)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
