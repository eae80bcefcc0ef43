#!/usr/bin/env python3
"""A program with Google Benchmark's command line that makes its times up, for tests of who runs and reads such programs.

    fake_bench.py [--slow-down=PERCENT] [--only-slow=NAME] [--noise=FRACTION] [--names=A,B] [--wrong=NAME] [--context=KEY=VALUE]
                  [--unit=us] [--nan=NAME] [--forget=NAME] [--crash] [--hang] --benchmark_...

The noise is another in every run. A file named by FAKE_BENCH_RUNS counts the runs and makes their noise repeatable.
"""
import json
import math
import os
import random
import re
import sys
import time


def main():
    own, google = {}, {}
    for argument in sys.argv[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        (google if name.startswith("benchmark_") else own)[name] = value
    names = own.get("names", "fast/threads:1/real_time,slow/threads:1/real_time").split(",")
    wanted = google.get("benchmark_filter", ".")
    names = [name for name in names if re.search(wanted, name)]
    if google.get("benchmark_list_tests") == "true":
        print("\n".join(names) if names else f"Failed to match any benchmarks against regex: {wanted}")
        return 0
    if "crash" in own:
        print("out of luck", file=sys.stderr)
        return 3
    if "hang" in own:
        time.sleep(600)
    draw = random.SystemRandom()
    if "FAKE_BENCH_RUNS" in os.environ:
        with open(os.environ["FAKE_BENCH_RUNS"], "a", encoding="ascii") as runs:
            runs.write(".")
            draw = random.Random(runs.tell())
    noise = float(own.get("noise", 0.005))
    entries = []
    for name in names:
        if name == own.get("forget"):
            continue
        slow = 1 + float(own.get("slow-down", 0)) / 100 if own.get("only-slow", name) == name else 1.0
        process = draw.gauss(0, noise)
        repetitions = int(google.get("benchmark_repetitions", 1))
        for repetition in range(repetitions):
            micro = (5.0 if "fast" in name else 80.0) * slow * math.exp(process + draw.gauss(0, noise))
            entry = {"name": name, "run_name": name, "run_type": "iteration", "repetitions": repetitions,
                     "repetition_index": repetition, "threads": 1, "iterations": 1000, "real_time": micro, "cpu_time": micro,
                     "time_unit": own.get("unit", "us"), "GFLOP/s": 12.5}
            if name == own.get("nan"):
                entry["real_time"] = float("nan")
            if name == own.get("wrong"):
                entry.update(error_occurred=True, error_message="wrong result: off by 1", real_time=0.0, cpu_time=0.0)
            entries.append(entry)
        if repetitions > 1:
            entries.append({**entries[-1], "name": name + "_mean", "run_type": "aggregate", "aggregate_name": "mean"})
    context = {"date": "2026-11-30T00:00:00+00:00", "host_name": "fake", "num_cpus": 2, "cpu": "Fake CPU", "isa": "avx2",
               "executable": sys.argv[0], "load_avg": [0.1], "commit": "abc"}
    key, _, value = own.get("context", "commit=abc").partition("=")
    context[key] = value
    with open(google["benchmark_out"], "w", encoding="utf-8") as file:
        json.dump({"context": context, "benchmarks": entries}, file)
    return 0


sys.exit(main())
