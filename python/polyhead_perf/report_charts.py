"""What the page's charts show, as plain data: ratios to peers, rooflines, time lines. The page's script draws it with plotly."""

from __future__ import annotations

import statistics

from . import history, report_peers

PEAK_GROUP = "peak"  # the suite's measurements of the machine itself
SWEEP_GROUP = "sweep"  # polyhead-sweep's: sweep/<family>/<size>


def iso(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_sweep(result):
    """Thousands of sizes would drown table and time lines: they have charts of their own."""
    return result.group == SWEEP_GROUP and result.size is not None


def ratio_panels(inputs):
    """One panel for each machine, instruction set, part and number of threads: its newest results. Speeds are relative to the best
    peer's. (Hosts give CPUs of several generations one name; their instruction sets tell them apart.)"""
    newest = {}
    for run in inputs.runs:
        if run.peers is None:
            continue
        for part, threads in run.peers.parts():
            cases = run.peers.cases(part, threads)
            if cases:
                newest[run.machine, str(run.context.get("isa") or ""), part, threads] = (run, cases)
    place = lambda key: (key[:2], report_peers.part_order(key[2:]))
    panels = []
    for machine, isa, part, threads in sorted(newest, key=place):
        run, cases = newest[machine, isa, part, threads]
        ratios = {case: report_peers.ratio(engines) for case, engines in cases.items()}
        rows = []
        for case, engines in cases.items():
            best = report_peers.best_peer(engines)
            rows.append(
                {
                    "case": case,
                    "ratio": ratios[case],
                    "best": report_peers.ENGINE_NAMES.get(best.engine, best.engine),
                    "engines": [
                        {
                            "engine": result.engine,
                            "name": report_peers.ENGINE_NAMES.get(result.engine, result.engine),
                            "ms": result.median_ms,
                            "q1": result.q1_ms,
                            "q3": result.q3_ms,
                            "speed": best.median_ms / result.median_ms,
                        }
                        for result in sorted(engines.values(), key=lambda result: result.median_ms)
                    ],
                }
            )
        least = min(ratios, key=ratios.get)
        most = max(ratios, key=ratios.get)
        panels.append(
            {
                "machine": machine,
                "part": part,
                "title": report_peers.PARTS.get(part, part),
                "threads": threads,
                "isa": isa,
                "date": run.date.strftime("%Y-%m-%d"),
                "file": run.file,
                "mean": report_peers.geometric_mean(list(ratios.values())),
                "least": [least, ratios[least]],
                "most": [most, ratios[most]],
                "cases": rows,
            }
        )
    return panels


def _roofs_of(results):
    """(kind, name) -> rates: from the bounds that results carry, else from the suite's own peak benchmarks."""
    rates = {}
    for result in results:
        if result.bound and result.roof:
            kind = "read" if result.bound.startswith("read ") else "arithmetic"
            rates.setdefault((kind, result.bound), []).append(result.roof)
    if rates:
        return rates
    for result in results:
        if result.group == PEAK_GROUP and result.problem is None:
            label = " ".join(result.name.split("/")[1:] + ([result.isa] if result.isa else []))
            if result.gflops:
                rates.setdefault(("arithmetic", label), []).append(result.gflops)
            elif result.gbps:
                rates.setdefault(("read", label), []).append(result.gbps)
    return rates


def _intensity(result):
    """Operations a byte; None where the result has not both counters, or none that a chart could show."""
    if not result.gflops or not result.gbps:
        return None
    return result.gflops / result.gbps if 1e-9 < result.gflops / result.gbps < 1e9 else None


def roofline_panels(inputs, index_of):
    """One panel for each machine and number of threads, from its newest run that has both rates of any benchmark.

    index_of: id(result) -> row of the page's table.
    """
    by_panel = {}
    for result in inputs.newest():
        if result.run.kind == "suite" and not is_sweep(result):
            by_panel.setdefault((result.run.machine, result.threads), []).append(result)
    panels = []
    for (machine, threads), results in sorted(by_panel.items()):
        points = [
            result
            for result in results
            if result.group != PEAK_GROUP and _intensity(result) and result.problem is None
        ]
        if not points:
            continue
        roofs = [
            {"kind": kind, "name": name, "rate": statistics.median(rates), "least": min(rates), "most": max(rates)}
            for (kind, name), rates in sorted(_roofs_of(results).items())
        ]
        shares = [result for result in results if result.group != PEAK_GROUP and result.share is not None]
        dates = sorted({result.run.date.strftime("%Y-%m-%d") for result in points})
        panels.append(
            {
                "machine": machine,
                "threads": threads,
                "roofs": roofs,
                "dates": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
                "shares": [index_of[id(result)] for result in shares],
                "points": [
                    {"row": index_of[id(result)], "x": _intensity(result), "y": result.gflops} for result in points
                ],
            }
        )
    return panels


def sweep_panels(inputs):
    """One panel for each family of sizes on a machine, an instruction set and a number of threads: its newest run's times."""
    newest = {}
    for result in inputs.results:  # oldest run first
        if is_sweep(result) and result.seconds is not None:
            key = (result.run.machine, result.name.rpartition("/")[0], result.isa, result.threads)
            if newest.get(key, [result])[0].run is not result.run:
                newest[key] = []
            newest.setdefault(key, []).append(result)
    panels = []
    for (machine, family, isa, threads), results in newest.items():
        unit, _, held = results[0].label.partition(" with ")
        panels.append(
            {
                "machine": machine,
                "family": family.partition("/")[2],
                "isa": isa,
                "threads": threads,
                "unit": unit or "size",
                "held": held,
                "date": results[0].run.date.strftime("%Y-%m-%d"),
                "points": [
                    {"size": result.size, "ms": result.seconds * 1e3, "cliff": result.cliff}
                    for result in sorted(results, key=lambda result: result.size)
                ],
            }
        )
    return panels


def timelines(inputs):
    """The series with results of at least two runs; those with change points first, the largest last change leading."""
    grouped = {}
    for result in inputs.results:
        if result.seconds is not None and not is_sweep(result) and not result.run.context.get("slow_down"):
            grouped.setdefault(result.series, []).append(result)
    lines = []
    for (machine, engine, name, isa, threads), results in grouped.items():
        if len({id(result.run) for result in results}) < 2:
            continue
        changes = history.change_points([result.seconds for result in results])
        lines.append(
            {
                "machine": machine,
                "engine": engine,
                "name": name,
                "isa": isa,
                "threads": threads,
                "points": [
                    {
                        "date": iso(result.run.date),
                        "commit": result.run.commit or "",
                        "ms": result.seconds * 1e3,
                        "file": result.run.file,
                        "q1": result.quartiles[0] * 1e3 if result.quartiles else None,
                        "q3": result.quartiles[1] * 1e3 if result.quartiles else None,
                    }
                    for result in results
                ],
                "changes": [
                    {
                        "index": change.index,
                        "before": change.before * 1e3,
                        "after": change.after * 1e3,
                        "change": change.change,
                        "p": change.p_value,
                    }
                    for change in changes
                ],
            }
        )
    lines.sort(
        key=lambda line: (-abs(line["changes"][-1]["change"]) if line["changes"] else 0, -len(line["points"]), line["name"])
    )
    return lines
