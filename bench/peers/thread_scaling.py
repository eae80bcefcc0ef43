#!/usr/bin/env python3
"""What several threads in one call are worth, beside as many copies of the call with one thread each.

As many processes as there are threads, each pinned to a CPU of its own, run a workload at the same time with one thread: all
that the machine gives when nothing has to be shared out. In turn with them one call runs on as many threads. The share is its
throughput by that of the copies together, the median over the rounds with its quartiles; workloads shorter than --least-ms are
left out. Each result is checked against float64 first.

examples:
  scripts/peers --scaling
  scripts/peers --scaling --only bert,one-head --rounds 31 --json scaling.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

import machine


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads, and copies (2)")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32", help="data type of the operands (f32)")
    parser.add_argument("--only", default="", help="workloads whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=15, help="times that copies and threads are measured, in turn (15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a measurement, at least three calls (0.2)")
    parser.add_argument("--least-ms", type=float, default=0.5, help="leave out workloads that one thread does faster (0.5)")
    parser.add_argument("--json", default="", metavar="FILE")
    parser.add_argument("--copy", default="", metavar="WORKLOAD", help=argparse.SUPPRESS)
    parser.add_argument("--cpus", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads < 1 or options.rounds < 2 or options.seconds <= 0:
        parser.error("--threads above 0, --rounds above 1 and --seconds above 0 expected")
    return options


def calls_for(call, seconds):
    """(calls, seconds they took) for about `seconds`, at least three calls."""
    calls, begin = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        taken = time.perf_counter() - begin
        if calls >= 3 and taken >= seconds:
            return calls, taken


def copy(options):
    """A copy: says its time for a call, then measures as often as a line on standard input tells it how long."""
    cpus = [int(cpu) for cpu in options.cpus.split(",")]
    os.sched_setaffinity(0, cpus)
    os.environ["OMP_NUM_THREADS"] = "1"
    import attention

    problem = attention.AttentionProblem(workload_of(options.copy), options.dtype)
    run, result = problem.engine("polyhead", len(cpus))["polyhead"]
    error = problem.error_of(result())
    if error > problem.largest_error:
        sys.exit(f"{problem.name}: wrong result, error {error:.1e}")
    calls, taken = calls_for(run, 0.05)
    print(taken / calls, flush=True)
    for line in sys.stdin:
        run()  # its operands and threads come back
        calls, taken = calls_for(run, float(line))
        print(calls / taken, flush=True)
    return 0


def workloads():
    with open(os.path.join(HERE, "..", "workloads.json")) as source:
        return json.load(source)["attention"]


def workload_of(name):
    return next(workload for workload in workloads() if workload["name"] == name)


class Copies:
    """Processes that measure at the same time."""

    def __init__(self, name, dtype, cpu_sets):
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--copy", name, "--dtype", dtype, "--cpus", ",".join(map(str, cpus))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for cpus in cpu_sets
        ]
        self.seconds_a_call = max(self._answers())

    def _answers(self):
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            self.close()
            sys.exit("a copy ended early; what it said is above")
        return [float(answer) for answer in answers]

    def throughput(self, seconds):
        """Calls a second of all together."""
        for process in self.processes:
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        return sum(self._answers())

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def measure(name, cpus, options):
    """One workload's row, or None when a call is too short."""
    copies = Copies(name, options.dtype, [[cpu] for cpu in cpus])
    one = Copies(name, options.dtype, [cpus])
    try:
        if copies.seconds_a_call * 1e3 < options.least_ms:
            return None
        shares = []
        for _ in range(options.rounds):
            apart = copies.throughput(options.seconds)
            shares.append(one.throughput(options.seconds) / apart)
    finally:
        copies.close()
        one.close()
    q1, median, q3 = statistics.quantiles(shares, n=4, method="inclusive")
    return {"case": name, "dtype": options.dtype, "threads": len(cpus), "share": median, "q1": q1, "q3": q3, "rounds": len(shares)}


def main():
    options = arguments()
    if options.copy:
        return copy(options)
    cpus = sorted(machine.one_cpu_a_core()[: options.threads])
    if len(cpus) < options.threads:
        sys.exit(f"--threads {options.threads}: this process may use {len(cpus)} cores")
    only = [part for part in options.only.split(",") if part]
    rows = []
    for workload in workloads():
        name = workload["name"]
        if only and not any(part in name for part in only):
            continue
        row = measure(name, cpus, options)
        if row is None:
            print(f"{name:16s} shorter than {options.least_ms} ms", flush=True)
            continue
        rows.append(row)
        print(
            f"{name:16s} {row['threads']} threads: {row['share']:.3f} of {row['threads']} copies "
            f"({row['q1']:.3f} to {row['q3']:.3f})",
            flush=True,
        )
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"cpu": machine.cpu_name(), "date": time.strftime("%Y-%m-%d", time.gmtime()), "results": rows}, file, indent=1)
                file.write("\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
