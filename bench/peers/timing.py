"""Timing several engines fairly: in turn, in one process, each warmed up right before it is timed."""

import statistics
import time


def interleave(engines, budget, threads):
    """engines: name -> function. Rounds go on until `budget` seconds an engine are used; at least 5 rounds.

    In a round every engine makes one untimed call, which brings its own code, weights and threads back into caches, and one
    that counts. With several threads a pause lets the workers of the engine before stop spinning. Returns name -> seconds.
    """
    times = {name: [] for name in engines}
    for call in engines.values():
        call()
    start = time.perf_counter()
    while engines:
        for name, call in engines.items():
            if threads > 1:
                time.sleep(0.004)
            call()
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
        rounds = min(map(len, times.values()))
        if rounds >= 3000 or (rounds >= 5 and time.perf_counter() - start > 2 * budget * len(engines)):
            break
    return times


def entry(part, case, engine, threads, seconds, flops, error):
    median = statistics.median(seconds)
    return {
        "part": part,
        "case": case,
        "engine": engine,
        "threads": threads,
        "median_ms": median * 1e3,
        "min_ms": min(seconds) * 1e3,
        "gflops": flops / median * 1e-9,
        "error": error,
        "runs": len(seconds),
    }
