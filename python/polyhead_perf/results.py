"""Result files: Google Benchmark's JSON with what Polyhead adds to it (docs/benchmarking.md), read and checked.

Standard library alone. Whatever is not as expected is a PerfError that names the file and the entry: a comparison or a chart
that silently leaves out half of its input is worse than none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from . import json_file
from .errors import PerfError

SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# Keys of an entry that are not counters.
ENTRY_KEYS = {
    "name", "run_name", "run_type", "repetitions", "repetition_index", "threads", "iterations", "real_time", "cpu_time",
    "time_unit", "label", "family_index", "per_family_instance_index", "aggregate_name", "aggregate_unit", "big_o", "cpu_coefficient",
    "real_coefficient", "rms", "error_occurred", "error_message", "skipped", "skip_message",
    "allocs_per_iter", "max_bytes_used", "total_allocated_bytes", "net_heap_growth",
}
# Google Benchmark's suffixes that say by which clock a benchmark is timed, and "process_time", which says whose processor time
# is in cpu_time. "manual_time" is reported as real_time.
REAL_TIME_SUFFIXES = {"real_time", "manual_time"}
TIME_KIND_SUFFIXES = REAL_TIME_SUFFIXES | {"process_time"}


def base_name(name: str) -> str:
    """A benchmark's name without the suffixes of its time kind."""
    return "/".join(part for part in name.split("/") if part not in TIME_KIND_SUFFIXES)


@dataclass(frozen=True)
class Entry:
    """One measurement: one repetition of one benchmark."""

    name: str  # Google Benchmark's run_name, the same in all repetitions
    repetition_index: int
    iterations: int
    real_time: float  # seconds an iteration, by the wall
    cpu_time: float  # seconds of processor time an iteration
    time_unit: str  # what the file had them in
    threads: int = 1
    label: str = ""
    counters: dict = field(default_factory=dict)  # name -> finite number
    error: str | None = None  # the message when the benchmark reported an error; its times then mean nothing

    @property
    def time_kind(self) -> str:
        """"real" or "cpu": the clock that this benchmark is timed by, as its name says."""
        return "real" if REAL_TIME_SUFFIXES & set(self.name.split("/")) else "cpu"

    @property
    def time(self) -> float:
        """The time that counts, in seconds an iteration."""
        return self.real_time if self.time_kind == "real" else self.cpu_time

    @property
    def base_name(self) -> str:
        return base_name(self.name)

    @property
    def bound(self) -> str | None:
        """What limits this benchmark, for results measured with --roofline."""
        return self.label[len("bound: "):] if self.label.startswith("bound: ") else None


@dataclass(frozen=True)
class ResultFile:
    """One run's result: where it came from, what the machine was, and its measurements in the file's order."""

    source: str  # the path, or what else an error message should call it
    context: dict
    entries: list  # of Entry, aggregates dropped

    def by_name(self) -> dict:
        """The measurements of each benchmark: name -> [Entry], both in the file's order."""
        grouped: dict = {}
        for entry in self.entries:
            grouped.setdefault(entry.name, []).append(entry)
        return grouped

    def refuse_errors(self) -> None:
        """PerfError when a benchmark reported an error (a wrong result) instead of a time."""
        failed = [entry for entry in self.entries if entry.error is not None]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise PerfError(f"{self.source}: {failed[0].name} reports an error: {failed[0].error}{more}")


def load(path, source: str | None = None) -> ResultFile:
    """Reads and checks one result file. PerfError names the file, or `source` where that says more, and the entry."""
    return from_document(json_file.read(path, source), source or str(path))


def from_document(document, source: str) -> ResultFile:
    """Checks a result file that has been read already."""
    if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
        raise PerfError(f"{source}: has no list 'benchmarks': expected Google Benchmark's JSON (--benchmark_out=FILE)")
    context = document.get("context")
    if not isinstance(context, dict):
        raise PerfError(f"{source}: has no object 'context': expected Google Benchmark's JSON (--benchmark_out=FILE)")
    entries, seen = [], set()
    for position, raw in enumerate(document["benchmarks"]):
        entry = _entry(raw, source, position)
        if entry is None:
            continue
        key = (entry.name, entry.repetition_index)
        if key in seen:
            raise PerfError(f"{source}: {entry.name} occurs twice with repetition_index {entry.repetition_index}")
        seen.add(key)
        entries.append(entry)
    if not entries:
        raise PerfError(f"{source}: has no measurements (aggregates don't count: "
                        "run without --benchmark_report_aggregates_only and --benchmark_display_aggregates_only)")
    return ResultFile(source, context, entries)


def _entry(raw, source: str, position: int) -> Entry | None:
    """One element of 'benchmarks'; None for an aggregate and for what was skipped by its own wish."""
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str) or not raw["name"]:
        raise PerfError(f"{source}: entry {position} of 'benchmarks' has no name")
    name = raw.get("run_name", raw["name"])
    where = f"{source}: {raw['name']}"
    for key, wanted in (("run_name", name), ("label", raw.get("label", ""))):
        if not isinstance(wanted, str) or not wanted.isprintable() or (key == "run_name" and not wanted):
            raise PerfError(f"{where}: {key} is {wanted!r}, expected a text of one line")
    run_type = raw.get("run_type", "iteration")
    if run_type == "aggregate":
        return None
    if run_type != "iteration":
        raise PerfError(f"{where}: run_type is '{run_type}', expected iteration or aggregate")
    if raw.get("skipped") and not raw.get("error_occurred"):
        return None
    if raw.get("time_unit") not in tuple(SECONDS_PER_UNIT):  # a tuple, since what is in the file may have no hash
        raise PerfError(f"{where}: time_unit is {raw.get('time_unit')!r}, expected one of {', '.join(SECONDS_PER_UNIT)}")
    scale = SECONDS_PER_UNIT[raw["time_unit"]]
    failed = bool(raw.get("error_occurred"))
    counters = {}
    for key, value in raw.items():
        if key in ENTRY_KEYS:
            continue
        number = json_file.number(value)
        if number is None:
            raise PerfError(f"{where}: counter '{key}' is {value!r}, expected a number")
        if not abs(number) <= json_file.LARGEST and not failed:
            raise PerfError(f"{where}: counter '{key}' is {number}")
        counters[key] = number
    return Entry(
        name=name,
        repetition_index=_integer(raw, "repetition_index", 0, where),
        iterations=_integer(raw, "iterations", 0, where),
        real_time=_time(raw, "real_time", where, failed) * scale,
        cpu_time=_time(raw, "cpu_time", where, failed) * scale,
        time_unit=raw["time_unit"],
        threads=_integer(raw, "threads", 1, where),
        label=raw.get("label", ""),
        counters=counters,
        error=str(raw.get("error_message") or "no message") if failed else None,
    )


def _integer(raw: dict, key: str, default: int, where: str) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PerfError(f"{where}: {key} is {value!r}, expected a number of at least 0")
    return value


def _time(raw: dict, key: str, where: str, failed: bool) -> float:
    """A time in the file's unit: finite, and above 0 where it is what counts (checked by who uses it as such)."""
    number = json_file.number(raw.get(key))
    if failed:
        return number if number is not None and 0 <= number <= json_file.LARGEST else 0.0
    if number is None:
        raise PerfError(f"{where}: {key} is {raw.get(key)!r}, expected a number")
    if number != 0 and not 1 / json_file.LARGEST <= number <= json_file.LARGEST:
        raise PerfError(f"{where}: {key} is {number}, expected a finite time")
    return number
