"""The folder of a report: which files are results, and all of them in one form.

Two kinds of file are read: Google Benchmark's JSON (results.py) and that of bench/peers (report_peers.py). A JSON file of either
kind with a fault is an error, since a page without it would look whole; other files are named in a warning and left out.
"""

from __future__ import annotations

import datetime
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from . import json_file, report_peers, results
from .errors import PerfError

ISAS = ("reference", "sse4", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16", "sve")


@dataclass
class Run:
    """One file: one program's run on one machine."""

    file: str
    kind: str  # "suite" or "peers"
    machine: str
    date: datetime.datetime  # UTC
    context: dict
    commit: str | None = None
    peers: report_peers.PeerRun | None = None
    doubts: list = field(default_factory=list)  # what makes its times unfit to be shown without a word
    cautions: list = field(default_factory=list)  # what is good to know of them


@dataclass
class Result:
    """One benchmark of one run. Times are seconds a call, by the wall: the median over repetitions."""

    run: Run
    name: str  # without instruction set, threads and Google Benchmark's suffixes
    group: str  # the first part of the name
    engine: str
    isa: str
    threads: int
    seconds: float | None = None
    quartiles: tuple | None = None  # of repetitions, where there are at least four, or as the file has them
    gflops: float | None = None  # 1e9 operations a second
    gbps: float | None = None  # 1e9 bytes a second
    error: float | None = None
    roof: float | None = None  # the bound's rate, in the unit of the counter that it bounds
    share: float | None = None  # of the bound, 0..1
    bound: str | None = None
    label: str = ""
    size: float | None = None  # of a sweep: what grows
    cliff: float | None = None  # of a sweep: how much longer it takes than a size that limits it, where that is too much
    problem: str | None = None  # what the benchmark reported instead of a time

    @property
    def series(self):
        """What makes results of several runs one history."""
        return (self.run.machine, self.engine, self.name, self.isa, self.threads)


@dataclass
class Inputs:
    folder: str
    runs: list
    results: list
    warnings: list

    def newest(self):
        """The latest result of each series, in the order of the files."""
        last = {}
        for result in self.results:  # runs are in the order of their dates
            last[result.series] = result
        return list(last.values())


def _date(text, where):
    """ISO 8601, with or without a time; without an offset it is UTC."""
    if isinstance(text, str):
        cleaned = re.sub(r"Z$", "+00:00", text.strip())
        cleaned = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", cleaned)
        try:
            found = datetime.datetime.fromisoformat(cleaned)
            if found.tzinfo is None:
                found = found.replace(tzinfo=datetime.timezone.utc)
            return found.astimezone(datetime.timezone.utc)
        except (ValueError, OverflowError):
            pass
    raise PerfError(f"{where}: context.date: expected a date as in 2026-11-30T12:00:00+00:00, found {text!r}")


def _machine(context, where):
    """CPUs of one brand count as one kind of machine: a history goes on when a virtual machine gets another name."""
    name = context.get("cpu") or context.get("host_name")
    if not isinstance(name, str) or not name.strip():
        raise PerfError(f"{where}: context.cpu: expected the CPU's name (or host_name), found {name!r}")
    return re.sub(r"\((?:R|TM)\)", "", " ".join(name.split()))


def split_name(name, default_isa, plugins=()):
    """A benchmark's name -> (what it measures, isa, threads): attention/tiny/avx2/threads:2 -> (attention/tiny, avx2, 2).

    Where the instruction set of ours stands, a plugin's benchmark has the plugin's name.
    """
    kept, isa, threads = [], None, 1
    for part in name.split("/"):
        if part in results.TIME_KIND_SUFFIXES or re.fullmatch(r"(min_time|min_warmup_time|repeats|iterations):.*", part):
            continue
        if re.fullmatch(r"threads:\d+", part):
            threads = int(part[8:])
        elif (part in ISAS or part in plugins) and isa is None:
            isa = part
        else:
            kept.append(part)
    return "/".join(kept) or name, isa or default_isa, threads


def _median(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _suite_result(run, name, entries):
    plugins = [key[len("plugin ") :] for key in run.context if key.startswith("plugin ")]
    label, isa, threads = split_name(name, str(run.context.get("isa") or ""), plugins)
    result = Result(run, label, label.split("/")[0], "Polyhead", isa, threads)
    if isa in plugins:
        result.engine, result.isa = isa, ""
    failed = [entry for entry in entries if entry.error is not None]
    if failed:
        result.problem = failed[0].error
        return result
    times = [entry.real_time for entry in entries]
    if min(times) <= 0:
        raise PerfError(f"{run.file}: {name}: real_time is {min(times)}, expected a time above 0")
    result.seconds = statistics.median(times)
    if len(times) >= 4:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        result.quartiles = (low, high)
    counter = lambda key: _median([entry.counters.get(key) for entry in entries])
    result.gflops, result.gbps, result.error = counter("GFLOP/s"), counter("GB/s"), counter("error")
    result.roof, result.share = counter("roof"), counter("roof_share")
    result.bound, result.label = entries[0].bound, entries[0].label
    result.size, result.cliff = counter("size"), counter("cliff")
    for key, value in (("roof", result.roof), ("roof_share", result.share)):
        if value is not None and value < 0:
            raise PerfError(f"{run.file}: {name}: counter '{key}' is {value}, expected at least 0")
    return result


def _remarks(context):
    """(doubts, cautions)"""
    doubts, cautions = [], []
    if context.get("slow_down"):
        doubts.append(f"slowed down on purpose (slow_down {context['slow_down']})")
    if str(context.get("commit", "")).endswith("-dirty"):
        cautions.append("uncommitted changes")
    if context.get("cpu_scaling_enabled") is True or context.get("governor") in (
        "powersave",
        "ondemand",
        "conservative",
        "schedutil",
    ):
        cautions.append("frequency scaling")
    load, cpus = context.get("load_avg"), context.get("num_cpus")
    if isinstance(load, list) and load and isinstance(load[0], (int, float)) and isinstance(cpus, int) and load[0] > cpus / 2:
        cautions.append(f"busy machine: load {load[0]:.1f} at the start")
    return doubts, cautions


def _run(name, kind, context, date, peers=None):
    commit = context.get("commit")
    doubts, cautions = _remarks(context)
    if peers is not None and not peers.complete:
        doubts.append("interrupted: cases are missing")
    if peers is not None and peers.busy():
        doubts.append(f"other programs ran beside {len(peers.busy())} of {len(peers.results)} results")
    return Run(
        name,
        kind,
        _machine(context, name),
        _date(date, name),
        context,
        str(commit) if commit not in (None, "", "unknown") else None,
        peers,
        doubts,
        cautions,
    )


def _read_suite(document, name):
    parsed = results.from_document(document, name)
    run = _run(name, "suite", parsed.context, parsed.context.get("date"))
    return run, [_suite_result(run, benchmark, entries) for benchmark, entries in parsed.by_name().items()]


def _read_peers(document, name):
    peers = report_peers.parse(name, document)
    run = _run(name, "peers", peers.context, peers.context.get("started") or peers.context["date"], peers)
    found = []
    for entry in peers.results:
        quartiles = (entry.q1_ms * 1e-3, entry.q3_ms * 1e-3) if entry.q1_ms and entry.q3_ms else None
        found.append(
            Result(
                run,
                f"peers/{entry.part}/{entry.case}",
                "peers",
                report_peers.ENGINE_NAMES.get(entry.engine, entry.engine),
                str(peers.context.get("isa") or ""),
                entry.threads,
                entry.median_ms * 1e-3,
                quartiles,
                entry.gflops,
                error=entry.error,
            )
        )
    return run, found


def read_folder(folder):
    """Reads every result file directly in `folder`, oldest run first. PerfError lists all faults found."""
    path = Path(folder)
    if not path.is_dir():
        raise PerfError(f"{folder}: expected a folder of result files, found {'a file' if path.exists() else 'nothing'}")
    runs, found, warnings, faults = [], [], [], []
    for file in sorted(path.iterdir()):
        name = file.name.encode("utf-8", "backslashreplace").decode()  # the page is UTF-8, names of files need not be
        if file.is_dir():
            warnings.append(f"{name}/: a folder; folders inside are not read")
            continue
        if file.suffix.lower() != ".json":
            warnings.append(f"{name}: not a .json file, left out")
            continue
        try:
            document = json_file.read(file)
        except PerfError as error:
            faults.append(str(error).replace(str(file), name, 1))
            continue
        is_suite = isinstance(document, dict) and "benchmarks" in document
        if not is_suite and not report_peers.looks_like_peers(document):
            warnings.append(
                f"{name}: JSON, but neither Google Benchmark's ('benchmarks') nor of bench/peers ('results'), left out"
            )
            continue
        try:
            run, of_run = (_read_suite if is_suite else _read_peers)(document, name)
        except PerfError as error:
            faults.append(str(error))
            continue
        runs.append(run)
        found.extend(of_run)
    if faults:
        raise PerfError(f"{folder}: " + "; ".join(faults))
    if not runs:
        left_out = f" ({'; '.join(warnings)})" if warnings else ""
        raise PerfError(
            f"{folder}: no result files: expected .json files of polyhead-bench, polyhead bench or bench/peers{left_out}"
        )
    runs.sort(key=lambda run: (run.date, run.file))
    order = {id(run): index for index, run in enumerate(runs)}
    found.sort(key=lambda result: order[id(result.run)])
    return Inputs(str(folder), runs, found, warnings)
