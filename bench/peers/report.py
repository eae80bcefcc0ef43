#!/usr/bin/env python3
"""Puts the newest results of bench/peers/compare.py for each kind of CPU and instruction set into README.md: chart and tables.

  report.py [RESULTS FOLDER] [README.md]      draws docs/speed.svg beside the README, and replaces what lies between its lines
                                              <!-- measured --> and <!-- /measured -->
  report.py --check [FOLDER] [README.md]      status 1 when chart or text are not those of the results; needs no library

Every number shown comes from the files. With one kind of CPU the chart has a panel for each number of threads; with several it
has one for each CPU, with the fewest threads measured.
"""

import argparse
import glob
import hashlib
import json
import os
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
sys.path.append(os.path.join(ROOT, "python"))

from polyhead_perf.errors import PerfError
from polyhead_perf.report_peers import (
    ENGINE_NAMES,
    OURS,
    PACKAGE_NAMES,
    PARTS,
    best_peer,
    geometric_mean,
    load,
    looks_like_peers,
    part_order,
    ratio,
)

MARKS = {"torch": ("#e07b39", "s"), "vllm": ("#7a5fa8", "^"), "onnxruntime": ("#4f8f5b", "D"), "openvino": ("#8c8c8c", "v")}
BLUE = "#1660a8"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def newest_runs(folder):
    """The last whole run of each kind of CPU and instruction set, the last measured first."""
    newest = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            try:
                if not looks_like_peers(json.load(file)):
                    continue  # a result of polyhead-bench
            except ValueError as error:
                raise PerfError(f"{path}: is not JSON: {error}") from None
        run = load(path)
        when = run.context.get("started") or run.context["date"]
        kind = (run.context["cpu"], run.context.get("isa"))
        if (
            run.complete
            and any(run.cases(part, threads) for part, threads in run.parts())
            and (kind not in newest or newest[kind][0] <= when)
        ):
            newest[kind] = (when, run)
    if not newest:
        raise PerfError(f"{folder}: no whole results of Polyhead beside a peer's")
    return [run for _, run in sorted(newest.values(), key=lambda pair: pair[0], reverse=True)]


def stamp(runs):
    """What the chart was drawn from."""
    digest = hashlib.sha256()
    for run in runs:
        with open(run.path, "rb") as file:
            digest.update(file.read())
    return "results sha256 " + digest.hexdigest()


def plural(threads):
    return f"{threads} thread{'s' if threads > 1 else ''}"


def panels_of(runs):
    """(title, cases) of each panel of the chart."""
    attention = [
        (run, threads, run.cases("attention", threads)) for run in runs for part, threads in run.parts() if part == "attention"
    ]
    attention = [panel for panel in attention if panel[2]]
    if len(runs) == 1:
        return [(plural(threads), cases) for _, threads, cases in attention]
    fewest = min(threads for _, threads, _ in attention)
    return [
        (f"{run.context['cpu']} ({run.context.get('isa', '')})", cases)
        for run, threads, cases in attention
        if threads == fewest
    ]


def draw(runs, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "polyhead"  # the same file for the same results
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panels = panels_of(runs)
    names = list(dict.fromkeys(case for _, cases in panels for case in cases))
    width = 4.6 if len(panels) < 3 else 3.6
    figure, axes = plt.subplots(
        1,
        len(panels),
        sharey=True,
        squeeze=False,
        figsize=(width * len(panels) + 1.2, 0.27 * len(names) + 1.6),
        layout="constrained",
    )
    axes = axes[0]
    for axis, (title, cases) in zip(axes, panels):
        axis.axvline(1.0, color="#444444", linewidth=0.8)
        speeds = []
        for row, case in enumerate(names):
            engines = cases.get(case)
            if engines is None:
                continue
            fastest = best_peer(engines).median_ms
            ours = ratio(engines)
            axis.barh(row, ours - 1, left=1, height=0.62, color=BLUE, alpha=0.18, linewidth=0)
            axis.plot(ours, row, "o", color=BLUE, markersize=7, zorder=3)
            for engine, (colour, marker) in MARKS.items():
                if engine in engines:
                    axis.plot(fastest / engines[engine].median_ms, row, marker, color=colour, markersize=4.5, zorder=2)
            speeds += [ours] + [fastest / engines[engine].median_ms for engine in MARKS if engine in engines]
        mean = geometric_mean([ratio(engines) for engines in cases.values()])
        axis.axvline(mean, color=BLUE, linewidth=0.9, linestyle=(0, (4, 3)))
        axis.set_xscale("log")
        axis.set_xlim(min(speeds) * 0.85, max(speeds) * 1.2)
        axis.xaxis.set_major_locator(FixedLocator([0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_title(
            (
                f"{textwrap.fill(title, 34)}\n{mean:.2f}x the best peer"
                if len(runs) > 1
                else f"{title}: {mean:.2f}x the best peer"
            ),
            fontsize=10,
        )
        axis.set_xlabel("speed, best peer = 1", fontsize=9)
        axis.tick_params(labelsize=8.5)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    handles = [plt.Line2D([], [], marker="o", color=BLUE, linestyle="", markersize=7, label="Polyhead")]
    handles += [
        plt.Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5, label=ENGINE_NAMES[engine])
        for engine, (colour, marker) in MARKS.items()
    ]
    handles.append(plt.Line2D([], [], color=BLUE, linewidth=0.9, linestyle=(0, (4, 3)), label="geometric mean"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    if len(runs) == 1:
        context = runs[0].context
        figure.suptitle(f"f32 attention on {context['cpu']} ({context.get('isa', '')}), {context['date']}", fontsize=10.5)
    else:
        fewest = min(threads for run in runs for part, threads in run.parts() if part == "attention")
        figure.suptitle(f"f32 attention, {plural(fewest)}", fontsize=10.5)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Source": stamp(runs)}, facecolor="white")


def milliseconds(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def name_of(engine):
    return ENGINE_NAMES.get(engine, engine)


def table(run, part):
    counts = [threads for of, threads in run.parts() if of == part and run.cases(part, threads)]
    by_count = {threads: run.cases(part, threads) for threads in counts}
    lines = [
        "| "
        + " | ".join([PARTS.get(part, part)] + [f"ms, {plural(threads)} | best peer | ratio" for threads in counts])
        + " |",
        "| --- |" + " ---: | --- | ---: |" * len(counts),
    ]
    for case in dict.fromkeys(case for cases in by_count.values() for case in cases):
        cells = [case]
        for threads in counts:
            engines = by_count[threads].get(case)
            if engines is None:
                cells += ["-", "-", "-"]
                continue
            peer = best_peer(engines)
            cells += [
                milliseconds(engines[OURS].median_ms),
                f"{milliseconds(peer.median_ms)} {name_of(peer.engine)}",
                f"{ratio(engines):.2f}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    means = [geometric_mean([ratio(engines) for engines in by_count[threads].values()]) for threads in counts]
    lines.append("| geometric mean |" + "".join(f" | | **{mean:.2f}** |" for mean in means))
    return "\n".join(lines)


def overview(runs):
    """Of several machines: geometric means, with the least and the most."""
    rows = sorted({pair for run in runs for pair in run.parts()}, key=part_order)
    lines = [
        "| times the best peer | " + " | ".join(f"{run.context['cpu']} ({run.context.get('isa', '')})" for run in runs) + " |",
        "| --- |" + " ---: |" * len(runs),
    ]
    for part, threads in rows:
        cells = []
        for run in runs:
            ratios = [ratio(engines) for engines in run.cases(part, threads).values()]
            cells.append(f"**{geometric_mean(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-")
        lines.append(f"| {part}, {plural(threads)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def about(run, folder):
    context = run.context
    versions = ", ".join(
        f"{name} {context['versions'][package]}"
        for package, name in PACKAGE_NAMES.items()
        if package in context.get("versions", {})
    )
    commit = f" at commit {context['commit']}" if context.get("commit", "unknown") != "unknown" else ""
    path = os.path.relpath(run.path, folder).replace(os.sep, "/")
    return (
        f"{context['cpu']} ({context.get('isa', 'its best instruction set')}) on {context['date']}: Polyhead"
        f"{' ' + context['versions']['polyhead'] if 'polyhead' in context.get('versions', {}) else ''}{commit}, {versions} "
        f"([{os.path.basename(path)}]({path}))."
    )


def summary(runs, readme):
    folder = os.path.dirname(os.path.abspath(readme))
    fill = lambda text: textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False)
    blocks = ["![Speed of attention relative to the best peer](docs/speed.svg)"]
    if len(runs) > 1:
        blocks.append(overview(runs))
    method = (
        "All engines are timed in turn in one process, each result checked against float64 first. vLLM is timed with K and V"
        " already in its packed cache. Reproduce it with `scripts/peers`."
    )
    if len(runs) == 1:
        blocks.append(fill("Measured on " + about(runs[0], folder) + " " + method))
    else:
        bullets = "\n".join(fill("- " + about(run, folder)).replace("\n", "\n  ") for run in runs)
        blocks.append(fill("Measured on") + "\n\n" + bullets + "\n\n" + fill(method))
    for run in runs:
        title = "All numbers: medians of wall time"
        if len(runs) > 1:
            title += f" on {run.context['cpu']} ({run.context.get('isa', '')})"
        tables = "\n\n".join(
            table(run, part)
            for part in dict.fromkeys(part for part, _ in run.parts())
            if any(run.cases(of, threads) for of, threads in run.parts() if of == part)
        )
        blocks.append(f"<details><summary>{title}</summary>\n\n{tables}\n\n</details>")
    return "\n" + "\n\n".join(blocks) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("folder", nargs="?", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument("readme", nargs="?", default=os.path.join(ROOT, "README.md"))
    options = parser.parse_args()
    runs = newest_runs(options.folder)
    chart = os.path.join(os.path.dirname(os.path.abspath(options.readme)), "docs", "speed.svg")
    with open(options.readme, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise PerfError(f"{options.readme}: expected one line {BEGIN} and one line {END}")
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    wanted = summary(runs, options.readme)
    if options.check:
        faults = (
            [] if shown == wanted else [f"{options.readme}: what stands between {BEGIN} and {END} is not what the results say"]
        )
        with open(chart, encoding="utf-8") as file:
            if stamp(runs) not in file.read():
                faults.append(f"{chart}: drawn from other results")
        for fault in faults:
            print(f"{fault}; scripts/peers or bench/peers/report.py writes it anew", file=sys.stderr)
        return 1 if faults else 0
    draw(runs, chart)
    with open(options.readme, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + wanted + END + after)
    print(f"{options.readme} and {chart} show {', '.join(os.path.basename(run.path) for run in runs)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PerfError as error:
        sys.exit(f"report.py: {error}")
