"""Timing several engines fairly: in turn, in one process, in a new order each round, each warmed up right before it is timed."""

import gc
import math
import random
import statistics
import time

LEAST_ROUNDS = 7  # so that quartiles mean something
MOST_ROUNDS = 3000
SAMPLE = 50e-6  # seconds: shorter calls are timed several at once, so that reading the clock does not count
WARM_UP = 200e-6  # seconds of untimed calls before a sample, at least one
# The same with several threads: after a pause some systems wake a worker on the caller's CPU while another one idles, and take
# 8 ms to move it (Linux 6.18 on a virtual machine, whose halted CPUs count as taken).
WARM_UP_THREADS = 10e-3
# Seconds until an engine's idle workers have left the CPUs: libgomp's turn for up to 8 ms here, and within 4 ms calls of 2 ms had
# half of the time a CPU less.
PAUSE = 0.02


def _calls_in(seconds, call):
    """How many calls take `seconds`, at least one."""
    begin = time.perf_counter()
    call()
    return max(1, min(1000, math.ceil(seconds / max(time.perf_counter() - begin, 1e-9))))


def interleave(engines, budget, threads, at=lambda engine: None):
    """engines: name -> function. Rounds go on until `budget` seconds an engine are used. Returns name -> seconds a call.

    In a round every engine makes untimed calls, which bring its own code, weights and threads back into caches, and then those
    that count. The order of a round is drawn by lot, so that no engine always follows the same one. With several threads a pause
    lets the workers of the engine before stop spinning. `at` is told who is about to run.
    """
    times = {name: [] for name in engines}
    repeats = {}
    for name, call in engines.items():
        at(name)
        call()
        repeats[name] = (_calls_in(WARM_UP if threads == 1 else WARM_UP_THREADS, call), _calls_in(SAMPLE, call))
    order = list(engines)
    lots = random.Random(0)
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        while order:
            lots.shuffle(order)
            for name in order:
                call = engines[name]
                warm_ups, calls = repeats[name]
                at(name)
                if threads > 1:
                    time.sleep(PAUSE)
                for _ in range(warm_ups):
                    call()
                begin = time.perf_counter()
                for _ in range(calls):
                    call()
                times[name].append((time.perf_counter() - begin) / calls)
            rounds = len(times[order[0]])
            if rounds >= MOST_ROUNDS or (rounds >= LEAST_ROUNDS and time.perf_counter() - start > 2 * budget * len(order)):
                break
    finally:
        gc.enable()
    return times


def entry(part, case, engine, threads, seconds, flops, error):
    q1, median, q3 = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "part": part,
        "case": case,
        "engine": engine,
        "threads": threads,
        "median_ms": median * 1e3,
        "q1_ms": q1 * 1e3,
        "q3_ms": q3 * 1e3,
        "min_ms": min(seconds) * 1e3,
        "gflops": flops / median * 1e-9,
        "error": error,
        "runs": len(seconds),
    }
