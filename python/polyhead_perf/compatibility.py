"""May two results be compared at all? Everything that would make the comparison say something else than it seems to is an error
that names file and entry."""

from __future__ import annotations

from .errors import PerfError
from .results import ResultFile, base_name

# What names the compared things themselves, or says when and from where they ran. Any other key of the context that differs
# means that the two ran under different conditions.
MAY_DIFFER = {
    "date", "executable", "load_avg", "mhz_per_cpu", "commit", "polyhead_version", "compiler", "highway", "highway_version", "onetbb",
    "onetbb_version", "tbb", "tbb_version", "slow_down", "library_version", "json_schema_version", "aslr_enabled",
}
# Differences among those that a reader should know of.
TELL = ("commit", "polyhead_version", "compiler", "slow_down")


def check_names(first: set, second: set, sources: tuple) -> None:
    """first, second: names of benchmarks. Both sides must have the same."""
    for have, other, here, there in ((first, second, *sources), (second, first, *reversed(sources))):
        missing = sorted(have - other)
        if not missing:
            continue
        base_names = {base_name(name): name for name in other}
        changed = base_names.get(base_name(missing[0]))
        if changed is not None and changed not in have:
            raise PerfError(f"{there}: has {changed} where {here} has {missing[0]}: they are timed by different clocks")
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise PerfError(f"{there}: has no {missing[0]}{more}, which {here} has; choose what both have with --filter, or leave out the "
                        "rest with --common")


def check_contexts(first: ResultFile, second: ResultFile, allowed: set) -> None:
    """allowed: further keys that may differ."""
    for key in sorted((set(first.context) | set(second.context)) - MAY_DIFFER - allowed):
        a, b = first.context.get(key), second.context.get(key)
        if a != b and a is not None and b is not None:  # an older build may say less
            raise PerfError(f"{second.source}: context '{key}' is {b!r}, but {a!r} in {first.source}: they ran under different "
                            f"conditions (--allow-context {key} compares them all the same)")


def check_entries(first: ResultFile, second: ResultFile) -> None:
    """Units, clocks, threads, errors and times of two results with the same benchmarks."""
    for result in (first, second):
        result.refuse_errors()
        for entry in result.entries:
            if not entry.time > 0:
                raise PerfError(f"{result.source}: {entry.name}: {entry.time_kind}_time is {entry.time:g}, expected more than 0")
    firsts = first.by_name()
    for name, entries in second.by_name().items():
        for entry in entries:
            for what in ("time_unit", "threads"):
                a, b = getattr(firsts[name][0], what), getattr(entry, what)
                if a != b:
                    raise PerfError(f"{second.source}: {name}: {what} is {b}, but {a} in {first.source}")


def told_differences(first: ResultFile, second: ResultFile) -> list:
    """(key, first's value, second's value) of what a reader should know of."""
    return [(key, first.context.get(key), second.context.get(key)) for key in TELL
            if first.context.get(key) != second.context.get(key)]
