#!/usr/bin/env python3
"""What masks and changed scores cost, in float32 on one thread, and whether it is as little as promised.

Time under a mask beside the area that it allows, changed scores beside plain ones, score modifications through xsimd beside what
is built in, and beside torch's compiled FlexAttention for the same functions. What is compared is timed in turn in one process;
a ratio is the median over the rounds, with quartiles. Each result is checked against float64 first; a wrong one is not timed and
makes the exit status 1, as a limit that is not kept does.

examples:
  scripts/peers --masks
  scripts/peers --masks --only 1,024 --seconds 3 --json masks.json
  scripts/peers --masks --without-flex                 does without torch's compiler, which takes a minute the first time
"""

import argparse
import json
import os
import statistics
import sys
import time

import machine

OURS, BUILT_IN, FLEX = "through xsimd", "built in", "FlexAttention"
FLEX_FUNCTIONS, FLEX_DIMS = ("ALiBi", "tanh cap", "documents", "window 256"), (64, 128)


def flex_name(function, dim):
    return f"{function}, D {dim}"


class Row:
    """`case`'s time by `base`'s, both of `group`; with by_area, by the share that is allowed of the base's pairs as well."""

    def __init__(self, group, case, base, limit=None, by_area=False):
        self.group, self.case, self.base, self.limit, self.by_area = group, case, base, limit, by_area


ROWS = [
    Row("4,096", "causal", "dense", 0.53),
    Row("4,096", "blocks 25 %", "dense", 0.30),
    Row("4,096", "boolean 25 %", "dense"),
    Row("4,096", "prefix 1,024", "dense", by_area=True),
    Row("4,096", "documents", "dense", by_area=True),
    Row("4,096", "scattered segments", "dense"),
    Row("16,384", "causal window 256", "dense", 1.35, by_area=True),
    Row("16,384", "window 256 both ways", "dense", 1.35, by_area=True),
    Row("16,384", "window 256, 4 kept", "dense", 1.35, by_area=True),
    Row("64 sequences", "packed", "padded", 1.15, by_area=True),
    Row("64 sequences", "packed causal", "padded", by_area=True),
    Row("1,024", "bias [1,H,T,S]", "plain", 1.3),
    Row("1,024", "ALiBi", "plain", 1.1),
    Row("1,024", "softcap", "plain", 1.35),
    Row("1,024", "boolean [T,S]", "plain"),
    Row("1,024", "T5 bias", "plain"),
    Row("1,024", "Swin bias 32x32", "plain"),
    Row("1,024", "ALiBi by xsimd", "ALiBi", 1.15),
    Row("1,024", "tanh cap by xsimd", "softcap", 1.3),
    Row("windows of images", "Swin bias 7x7", "plain"),
    Row("block tables", "pages of 16", "one array"),
    Row("block tables", "pages of 128", "one array"),
] + [Row(flex_name(function, dim), OURS, FLEX, 1.0) for function in FLEX_FUNCTIONS for dim in FLEX_DIMS]


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="groups whose names contain it; may be repeated")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each call, at least seven rounds (1.0)")
    parser.add_argument("--without-flex", action="store_true", help="leave FlexAttention out")
    parser.add_argument("--json", default="", metavar="FILE")
    options = parser.parse_args(given)
    if options.seconds <= 0:
        parser.error(f"--seconds: is {options.seconds}, expected a number above 0")
    groups = list(dict.fromkeys(row.group for row in ROWS))
    unknown = [text for text in options.only if not any(text in group for group in groups)]
    if unknown:
        parser.error(f"--only: is '{unknown[0]}', expected a part of one of: {'; '.join(groups)}")
    options.groups = [group for group in groups if not options.only or any(text in group for text in options.only)]
    if options.without_flex:
        options.groups = [group for group in options.groups if not any(row.group == group and row.base == FLEX for row in ROWS)]
    return options


def judge(row, times, areas, left_out):
    """A row's result. times: case -> seconds in each round; areas: case -> allowed pairs; left_out: case -> why it is not there."""
    result = {"group": row.group, "case": row.case, "base": row.base}
    for case in (row.case, row.base):
        if case in left_out:
            return {**result, "limit": row.limit, "left_out": f"{case}: {left_out[case]}"}
    share = areas[row.case] / areas[row.base] if row.by_area else 1.0
    ratios = [own / of / share for own, of in zip(times[row.case], times[row.base])]
    q1, median, q3 = statistics.quantiles(ratios, n=4, method="inclusive")
    result.update(
        median_ms=statistics.median(times[row.case]) * 1e3,
        base_ms=statistics.median(times[row.base]) * 1e3,
        ratio=median,
        q1=q1,
        q3=q3,
        limit=row.limit,
        rounds=len(ratios),
    )
    if row.by_area:
        result["area_share"] = share
    if row.limit is not None:
        result["met"] = median <= row.limit
    if BUILT_IN in times:
        result["built_in_ms"] = statistics.median(times[BUILT_IN]) * 1e3
    return result


def status_of(results):
    """1: a limit is not kept, or one of our results is wrong or missing."""
    ours_missing = any("left_out" in result and not result["left_out"].startswith(FLEX) for result in results)
    return 1 if ours_missing or any(result.get("met") is False for result in results) else 0


def line_of(result):
    name = f"{result['group']:18s} {result['case']:20s}"
    if "left_out" in result:
        return f"{name} left out: {result['left_out']}"
    share = f" of its {result['area_share']:.4f} share" if "area_share" in result else ""
    limit = "no limit" if result["limit"] is None else f"at most {result['limit']:g}: {'met' if result['met'] else 'NOT MET'}"
    built_in = f", {BUILT_IN} {result['built_in_ms']:.3f} ms" if "built_in_ms" in result else ""
    return (
        f"{name} {result['median_ms']:9.3f} ms, {result['base']} {result['base_ms']:.3f} ms{built_in}: "
        f"{result['ratio']:.3f}{share} ({result['q1']:.3f} to {result['q3']:.3f}), {limit}"
    )


def measure(group, make, mods, seconds, cpus):
    """((times, areas, left_out), load): a group's calls as judge() takes them, and who else used the CPUs while they were timed.
    make(mods) gives a Call for each name, or a function that makes one and may fail."""
    import timing

    calls, areas, left_out = {}, {}, {}
    by_area = {case for row in ROWS if row.group == group and row.by_area for case in (row.case, row.base)}
    for name, call in make(mods).items():
        try:
            call = call() if callable(call) else call
            if not call.is_right():
                left_out[name] = "its result is wrong"
                continue
        except Exception as trouble:  # what torch's compiler refuses ends no other row
            left_out[name] = f"{type(trouble).__name__}: {(str(trouble).splitlines() or [''])[0][:160]}"
            continue
        calls[name] = call.run
        if name in by_area:
            areas[name] = call.pairs()
    load = machine.Load(cpus)
    times = timing.interleave(calls, seconds, 1)
    return (times, areas, left_out), load.read()


def main():
    options = arguments()
    cpus = machine.pin(1)
    # Compiled kernels stay beside the peers, so that a second run does not compile them again.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(sys.prefix, "inductor"))
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import polyhead
    import torch

    import mask_cases

    torch.set_num_threads(1)
    polyhead.set_num_threads(1)
    mods = mask_cases.ScoreMods()
    found = {
        "cpu": machine.cpu_name(),
        "isa": polyhead.info()["isa"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {"polyhead": polyhead.__version__, "torch": torch.__version__},
        "commit": os.environ.get("POLYHEAD_PEERS_COMMIT", "unknown"),
        "dtype": "f32",
        "threads": 1,
    }
    results = []
    for group in options.groups:
        with torch.inference_mode():
            measured, busy = measure(group, mask_cases.GROUPS[group], mods, options.seconds, cpus)
        if busy["others"] + busy["steal"] > 0.05:
            print(f"# {group}: others had {busy['others'] + busy['steal']:.0%} of the CPU: not to be trusted", flush=True)
        for row in ROWS:
            if row.group != group:
                continue
            results.append({**judge(row, *measured), **busy})
            print(line_of(results[-1]), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump({**found, "results": results}, file, indent=1)
                file.write("\n")
    return status_of(results)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
