"""How many instructions a few kernels take, counted by callgrind and compared with the recorded counts (docs/decisions/008).

Counts don't depend on clocks or neighbours, so a machine that is far too noisy for times can tell of a rise of a few percent.
They say nothing of cache misses or stalls: compare is for those. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import json_file
from .errors import PerfError

SCHEMA = "polyhead-instruction-counts/1"
COUNTED = "polyhead_counted_call"
LIMIT = 0.05
STATUS_RISEN, STATUS_SKIPPED = 1, 77  # the latter is what CTest takes for "skipped"

DESCRIPTION = """\
Counts the instructions of the calls that the program instruction_counts makes, under valgrind's callgrind, and compares them
with the recorded counts of the same compiler, or with those of another build. Fails when one has risen by 5 % or more."""

EPILOG = """\
Exit status: 0 no count has risen by 5 %, 1 one has, or the record lacks a call, 2 bad input, 77 there is nothing to compare
with (no valgrind, or no record for this compiler)."""


def parse_arguments(arguments: list, program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver", metavar="PROGRAM", help="instruction_counts of the build to judge")
    parser.add_argument("--record", metavar="FILE", help="the recorded counts")
    parser.add_argument("--baseline", metavar="PROGRAM", help="compare with instruction_counts of another build instead")
    parser.add_argument("--accept", action="store_true", help="write the counts into the record")
    parser.add_argument("--twice", metavar="NAME", help="for tests: make that call twice")
    options = parser.parse_args(arguments)
    if bool(options.record) == bool(options.baseline):
        parser.error("expected either --record or --baseline")
    if options.accept and not options.record:
        parser.error("--accept needs --record")
    return options


def main(arguments: list, program: str) -> int:
    options = parse_arguments(arguments, program)
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (apt-get install valgrind)")
        return STATUS_SKIPPED
    build = build_of(options.driver)
    if options.record and not options.accept:
        record = read_record(Path(options.record))
        if build not in record:
            print(f"skipped: {options.record} has no counts of a build by {build} (it has {'; '.join(record) or 'none'}); "
                  "record them: scripts/perf-check --accept")
            return STATUS_SKIPPED
        expected = record[build]
    counts = count(options.driver, options.twice)
    if options.accept:
        write_record(Path(options.record), build, counts)
        print(f"recorded {len(counts)} counts of {build} in {options.record}")
        return 0
    if options.baseline:
        expected, build = count(options.baseline), "the other build"
    lines, failed = judge(expected, counts)
    print("\n".join(lines))
    if failed:
        if options.record:
            print(f"FAILED: {failed}. If that is meant, record the new counts: scripts/perf-check --accept")
        else:
            print(f"FAILED: {failed}.")
        return STATUS_RISEN
    print(f"no count has risen by {LIMIT:.0%} against {build}")
    return 0


def judge(expected: dict, counts: dict) -> tuple:
    """(lines of a table, what is wrong or "")."""
    width = max(map(len, {**expected, **counts}))
    lines = [f"{'call':<{width}}  {'before':>12}  {'now':>12}  change"]
    risen, fallen = [], []
    for name in sorted({**expected, **counts}, key=lambda name: -change(expected, counts, name)):
        before, now = expected.get(name), counts.get(name)
        ratio = change(expected, counts, name)
        shown = f"{ratio:+.2%}" if before and now else "new" if now else "gone"
        lines.append(f"{name:<{width}}  {before or '':>12}  {now or '':>12}  {shown}")
        if before and now and ratio >= LIMIT:
            risen.append(name)
        if before and now and ratio <= -LIMIT:
            fallen.append(name)
    if fallen:
        lines.append(f"fallen by {LIMIT:.0%} or more: {', '.join(fallen)}; record that with scripts/perf-check --accept, so that losing "
                     "the gain again shows")
    faults = [f"{', '.join(risen)} {'takes' if len(risen) == 1 else 'take'} {LIMIT:.0%} or more instructions more"] if risen else []
    faults += [f"{name} is not recorded" for name in sorted(set(counts) - set(expected))]
    faults += [f"{name} is recorded but no longer counted" for name in sorted(set(expected) - set(counts))]
    return lines, "; ".join(faults)


def change(expected: dict, counts: dict, name: str) -> float:
    before, now = expected.get(name), counts.get(name)
    return now / before - 1 if before and now else 0.0


def _run(command: list, what: str, seconds: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    except OSError as error:
        raise PerfError(f"{command[0]}: can't be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise PerfError(f"{what}: still running after {seconds:g} s") from None
    if done.returncode != 0:
        raise PerfError(f"{what}: ended with status {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    return done.stdout


def build_of(driver: str) -> str:
    """What made this build, as far as it changes counts: "gcc 12.2.0, Highway 1.0.3, x86-64"."""
    return _run([driver, "--build"], driver, 60).strip()


def count(driver: str, twice: str | None = None) -> dict:
    """name -> instructions of that call. Results are checked first, in a run of their own: counts of wrong results say nothing."""
    _run([driver, "--check"], f"{driver} --check", 120)
    flags = [f"--twice={twice}"] if twice else []
    with tempfile.TemporaryDirectory(prefix="polyhead-instructions-") as folder:
        out = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--toggle-collect={COUNTED}", f"--dump-after={COUNTED}",
                   f"--callgrind-out-file={out}", driver, *flags]
        names = _run(command, f"{driver} under callgrind", 600).split()
        counts = []
        for number in range(1, len(names) + 1):
            try:
                text = Path(f"{out}.{number}").read_text(encoding="utf-8", errors="replace")
            except OSError:
                raise PerfError(f"{driver} under callgrind: wrote {number - 1} counts for {len(names)} calls") from None
            total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
            if total is None or int(total.group(1)) == 0:
                raise PerfError(f"{driver} under callgrind: nothing was counted for {names[number - 1]}: is the function {COUNTED} in it?")
            counts.append(int(total.group(1)))
        if Path(f"{out}.{len(names) + 1}").exists() and _total(Path(f"{out}.{len(names) + 1}")) > 0:
            raise PerfError(f"{driver} under callgrind: wrote more counts than the {len(names)} calls that it named")
    return dict(zip(names, counts))


def _total(path: Path) -> int:
    total = re.search(r"^(?:summary|totals): (\d+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(total.group(1)) if total else 0


def read_record(path: Path) -> dict:
    """build -> {name -> count}"""
    document = json_file.read(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(document.get("counts"), dict):
        raise PerfError(f"{path}: is not a record of instruction counts ({SCHEMA})")
    return document["counts"]


def write_record(path: Path, build: str, counts: dict) -> None:
    record = {**(read_record(path) if path.exists() else {}), build: counts}
    path.write_text(json.dumps({"schema": SCHEMA, "counts": record}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
