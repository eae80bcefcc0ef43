"""polyhead compare: two builds, interleaved, or two result files."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shlex
import shutil
import sys
from pathlib import Path

from . import compatibility, machine, results
from .errors import PerfError

EFFECT_OF_BUILDS, EFFECT_OF_FILES = 1.0, 5.0

DESCRIPTION = """\
Says of each benchmark whether the candidate is slower, faster or the same as the baseline.

Two builds (programs with Google Benchmark's command line, as polyhead-bench) run in turn, in random order, a fresh process
for every measurement, until every benchmark is decided or the budget ends. Two files are compared as they are: they were
measured at different times, so a difference of a few percent may be the machine's.

A benchmark is slower or faster when Wilcoxon's signed-rank test (for files: Mann and Whitney's) shows a shift and the
estimate is at least the minimum effect; with --alpha 0.01 a comparison of equal builds raises an alarm once in a hundred
times at most, however many benchmarks it has. It is the same when the interval excludes twice the minimum effect."""

EPILOG = """\
Examples:
  polyhead compare --baseline old/polyhead-bench --candidate new/polyhead-bench --filter 'attention/tiny|gemm' -- --threads=1
  polyhead compare before.json after.json             (each from --benchmark_repetitions=20 --benchmark_out=FILE)

Exit status: 0 same or faster, 1 slower, 2 could not tell, or the input is bad."""


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """Options of how builds are measured, which other commands have too."""
    parser.add_argument("--filter", default="", metavar="REGEX", help="only benchmarks that match, as --benchmark_filter takes it; "
                        "a - in front: those that do not (--filter=-REGEX)")
    parser.add_argument("--budget", type=_positive, default=120.0, metavar="SECONDS",
                        help="stop measuring after that time (default %(default)g); the fewest repetitions that can tell "
                        "anything, nine or more, are made in any case")
    parser.add_argument("--min-time", type=_positive, default=0.002, metavar="SECONDS",
                        help="of one measurement (default %(default)g)")
    parser.add_argument("--process-time", type=_positive, default=0.04, metavar="SECONDS",
                        help="of the measurements of one process, 3 to 30, whose lower quartile counts (default %(default)g)")
    parser.add_argument("--per-process", type=positive_count, default=1, metavar="N",
                        help="benchmarks measured by one process; more save time where programs are slow to start, "
                        "and lie further apart in time (default %(default)s)")
    parser.add_argument("--pin", type=_pin, default="auto", metavar="CPU|auto|none",
                        help="CPU to stay on (default auto: one CPU when no benchmark has more threads)")
    parser.add_argument("--seed", type=int, help="for the order of the runs (default: a new one, which is printed)")


def _parsed(kind, text: str, expected: str):
    """As argparse would, but with words for what was expected."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not {expected}") from None


def _positive(text: str) -> float:
    value = _parsed(float, text, "a number")
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def positive_count(text: str) -> int:
    value = _parsed(int, text, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _pin(text: str):
    if text in ("auto", "none"):
        return None if text == "none" else text
    cpu = _parsed(int, text, "the number of a CPU, auto or none")
    if cpu not in machine.allowed_cpus():
        raise argparse.ArgumentTypeError(f"CPU {cpu} is none of those that this process may use: "
                                         f"{', '.join(map(str, machine.allowed_cpus()))}")
    return cpu


def _flags(text: str) -> tuple:
    return tuple(shlex.split(text))


def split_extra(arguments: list) -> tuple:
    """(our own arguments, what stands after --): the latter is for the builds; argparse would take it for file names."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def parse_arguments(arguments: list, program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="baseline's and candidate's result, Google Benchmark's JSON")
    parser.add_argument("--baseline", metavar="PROGRAM", help="the build to compare with")
    parser.add_argument("--candidate", metavar="PROGRAM", help="the build to judge")
    add_measuring_options(parser)
    parser.add_argument("--min-effect", type=_positive, metavar="PERCENT",
                        help=f"smallest difference that counts (default {EFFECT_OF_BUILDS:g}; for files {EFFECT_OF_FILES:g})")
    parser.add_argument("--alpha", type=_positive, default=0.01,
                        help="probability of any false slower or faster in the whole comparison (default %(default)g)")
    parser.add_argument("--common", action="store_true", help="leave out benchmarks that only one side has, and say so")
    parser.add_argument("--allow-context", action="append", default=[], metavar="KEY",
                        help="compare although this key of the results' context differs (may be repeated)")
    parser.add_argument("--baseline-flags", type=_flags, default=(), metavar="FLAGS", help="flags for the baseline alone")
    parser.add_argument("--candidate-flags", type=_flags, default=(), metavar="FLAGS", help="flags for the candidate alone")
    parser.add_argument("--json", metavar="OUT", help="write the result with all times there")
    parser.add_argument("--quiet", action="store_true", help="the summary alone, without the table")
    own, extra = split_extra(arguments)
    # Flags begin with dashes, which argparse takes for options of its own unless they are joined by =.
    joined: list = []
    for argument in own:
        if joined and joined[-1] in ("--baseline-flags", "--candidate-flags"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    options = parser.parse_args(joined)
    options.extra = extra
    if options.baseline or options.candidate:
        if options.files or not (options.baseline and options.candidate):
            parser.error("expected either two result files, or --baseline and --candidate")
    elif len(options.files) != 2:
        parser.error(f"expected two result files, or --baseline and --candidate; got {len(options.files)} files")
    elif extra or options.baseline_flags or options.candidate_flags:
        parser.error("flags for programs need --baseline and --candidate")
    if options.alpha >= 0.5:
        parser.error(f"--alpha is {options.alpha:g}, expected less than 0.5")
    return options


def main(arguments: list, program: str) -> int:
    options = parse_arguments(arguments, program)
    if options.json:
        _refuse_unwritable(options.json)
    comparison = compare_builds(options) if options.baseline else compare_files(options)
    from . import comparison as words

    if not options.quiet:
        print(words.table(comparison, words.use_colour()))
        print()
    for kind, lines in (("note", comparison.notes), ("warning", comparison.warnings)):
        for line in lines:
            print(f"{kind}: {line}")
    print(words.summary(comparison))
    if options.json:
        try:
            Path(options.json).write_text(json.dumps(words.document(comparison), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise PerfError(f"--json {options.json}: can't be written: {error.strerror}") from None
    return comparison.exit_status


def _refuse_unwritable(path: str) -> None:
    """Before minutes of measuring, not after them."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise PerfError(f"--json {path}: there is no folder {target.parent}")
    if target.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise PerfError(f"--json {path}: can't be written: {'it is a folder' if target.is_dir() else 'not permitted'}")


def _told(first: results.ResultFile, second: results.ResultFile) -> list:
    return [f"{key}: {a or 'none'} in the baseline, {b or 'none'} in the candidate"
            for key, a, b in compatibility.told_differences(first, second)]


def _rules(options: argparse.Namespace, default_effect: float):
    from .judgement import Rules

    return Rules(options.alpha, (options.min_effect or default_effect) / 100)


# ---- two files


def compare_files(options: argparse.Namespace):
    first, second = (results.load(path) for path in options.files)
    notes = ["both are the same file"] if os.path.samefile(*options.files) else []
    keep = {side.source: _chosen(side, options.filter) for side in (first, second)}
    names = [keep[side.source] for side in (first, second)] if first.source != second.source else [keep[first.source]] * 2
    common = _common_names(*names, (first.source, second.source), options.common, notes)
    wanted = set(common)
    first, second = (results.ResultFile(side.source, side.context, [entry for entry in side.entries if entry.name in wanted])
                     for side in (first, second))
    compatibility.check_contexts(first, second, set(options.allow_context))
    compatibility.check_entries(first, second)
    from . import comparison as words
    from . import statistics
    from .judgement import Judge

    rules = _rules(options, EFFECT_OF_FILES)
    entries = [side.by_name() for side in (first, second)]
    times = {name: tuple([entry.time for entry in side[name]] for side in entries) for name in common}
    judge = Judge(common, rules)
    logs = [{name: [math.log(time) for time in times[name][side]] for name in common} for side in (0, 1)]
    judge.look_unpaired(*logs)
    warnings = []
    fewest = min(common, key=lambda name: min(map(len, times[name])))
    if statistics.smallest_unpaired_p(*map(len, times[fewest])) * len(common) > rules.alpha:
        warnings.append(f"{fewest} was measured {' and '.join(str(len(side)) for side in times[fewest])} times, too few to call "
                        f"{len(common)} benchmarks slower or faster: measure with --benchmark_repetitions=20")
    notes += [*_told(first, second), "the files were measured at different times: a drift of the machine looks like a difference; "
              "two builds measured in turn (--baseline, --candidate) are free of it"]
    return words.Comparison(judge, first.source, second.source, times, {name: entries[0][name][0].time_kind for name in common},
                            (first.context, second.context), False, {"filter": options.filter}, warnings, notes)


def _chosen(side: results.ResultFile, wanted: str) -> list:
    negative = wanted.startswith("-")  # as Google Benchmark has it: what does not match
    try:
        pattern = re.compile(wanted[1:] if negative else wanted)
    except re.error as error:
        raise PerfError(f"--filter {wanted}: is not a regular expression: {error}") from None
    names = [name for name in side.by_name() if bool(pattern.search(name)) != negative]
    if not names:
        raise PerfError(f"{side.source}: has no benchmark that matches '{wanted}'")
    return names


def _common_names(first: list, second: list, sources: tuple, common: bool, notes: list) -> list:
    """Names in the baseline's order. Those that one side lacks are an error, or with --common a note."""
    if common:
        of_both = set(first) & set(second)
        kept = [name for name in first if name in of_both]
        for names, source in ((first, sources[0]), (second, sources[1])):
            left_out = [name for name in names if name not in of_both]
            if left_out:
                notes.append(f"left out, since only {source} has them: {', '.join(left_out)}")
        if not kept:
            raise PerfError(f"{sources[0]} and {sources[1]} have no benchmark in common")
        return kept
    compatibility.check_names(set(first), set(second), sources)
    return list(first)


# ---- two builds


def resolve_program(path: str) -> str:
    """The program's absolute path; PerfError when there is none that can be run."""
    found = shutil.which(path) or (path if os.path.exists(path) else None)
    if found is None:
        raise PerfError(f"{path}: there is no such program")
    if not os.access(found, os.X_OK) or os.path.isdir(found):
        raise PerfError(f"{path}: is not a program that can be run")
    return os.path.abspath(found)


def compare_builds(options: argparse.Namespace):
    baseline, candidate = resolve_program(options.baseline), resolve_program(options.candidate)
    from .builds import Build

    return compare_programs(Build(baseline, (*options.extra, *options.baseline_flags)),
                            Build(candidate, (*options.extra, *options.candidate_flags)), options)


def compare_programs(baseline, candidate, options: argparse.Namespace, talk: bool = True):
    """options: those of parse_arguments. talk: the seed, warnings and progress go to standard error as they come."""
    from . import builds
    from . import comparison as words

    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    settings = builds.Settings(rules=_rules(options, EFFECT_OF_BUILDS), budget=options.budget, min_time=options.min_time,
                               process_time=options.process_time, benchmarks_per_process=options.per_process, pin=options.pin, seed=seed)
    unpinned = builds.Runner((baseline, candidate))
    notes: list = []
    names = _common_names(unpinned.names(builds.BASELINE, options.filter), unpinned.names(builds.CANDIDATE, options.filter),
                          (baseline.source, candidate.source), options.common, notes)
    runner = builds.Runner((baseline, candidate), builds.choose_pin(names, settings.pin))
    warnings = machine.warnings_before()
    progress = Progress(len(names)) if talk else None
    if talk:
        where = f", on CPU {runner.pinned_to}" if runner.pinned_to is not None else ""
        print(f"comparing {len(names)} benchmark{'s' if len(names) > 1 else ''}{where}, seed {seed}", file=sys.stderr)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)

    def check(first: results.ResultFile, second: results.ResultFile) -> None:
        compatibility.check_contexts(first, second, set(options.allow_context))
        compatibility.check_entries(first, second)

    judge = builds.make_judge(names, settings)
    try:
        measured = builds.interleave(runner, names, settings, judge, check, progress or (lambda *_: None))
    finally:
        if progress:
            progress.clear()
    sides = [results.ResultFile(build.source, context, []) for build, context in zip((baseline, candidate), measured.contexts)]
    undecided = len(judge.undecided)
    pairs_measured = sum(len(pairs) for pairs in measured.times.values())
    return words.Comparison(
        judge, baseline.source, candidate.source,
        {name: tuple(zip(*pairs)) for name, pairs in measured.times.items()},
        {name: entry.time_kind for name, entry in measured.entries.items()}, measured.contexts, True,
        {"filter": options.filter, "budget": settings.budget, "min_time": settings.min_time, "process_time": settings.process_time,
         "per_process": settings.benchmarks_per_process, "pinned_to": runner.pinned_to, "seed": seed},
        warnings + machine.warnings_after(measured.disturbance), notes + _told(*sides), measured.seconds,
        measured.seconds * undecided / pairs_measured if undecided else None, measured.disturbance)


class Progress:
    """One line on standard error, when that is a terminal."""

    def __init__(self, benchmarks: int):
        self.benchmarks = benchmarks
        self.shown = sys.stderr.isatty()

    def __call__(self, repetitions: int, judge, seconds_left: float) -> None:
        if self.shown:
            decided = self.benchmarks - len(judge.undecided)
            print(f"\r\033[Krepetition {repetitions}, {decided} of {self.benchmarks} decided, at most {max(0, seconds_left):.0f} s left",
                  end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
