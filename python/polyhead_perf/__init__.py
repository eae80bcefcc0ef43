"""Polyhead's yardstick: compares benchmark results, reports on them, and watches for regressions.

    python3 -m polyhead_perf compare --baseline OLD/polyhead-bench --candidate NEW/polyhead-bench
    python3 -m polyhead_perf report FOLDER_OF_RESULTS

`polyhead compare` and `polyhead report` start the same commands. The programs that are measured write result files (Google
Benchmark's JSON); everything that judges or draws them is here.
"""
