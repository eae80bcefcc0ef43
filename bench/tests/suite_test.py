#!/usr/bin/env python3
"""polyhead-bench, driven as a user drives it: suite_test.py POLYHEAD-BENCH. Python's standard library alone."""

import array
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

program = None


def run(*arguments, expect=0):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode != expect:
        raise AssertionError(f"{arguments}: exit status {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    return done


def measure(filter_, *arguments, expect=0, min_time="0.01"):
    """The JSON document of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.json"
        run(f"--benchmark_filter={filter_}", f"--benchmark_min_time={min_time}", f"--benchmark_out={path}", *arguments, expect=expect)
        return json.loads(path.read_text())


def list_names(*arguments):
    return run("--benchmark_list_tests", *arguments).stdout.split()


class Suite(unittest.TestCase):
    def test_every_group_is_there(self):
        groups = {name.split("/")[0] for name in list_names()}
        self.assertEqual(groups, {"attention", "gemm", "gemm_weights", "softmax", "decode", "cache", "masks", "layer", "encoder", "task_graph", "peak"})

    def test_every_instruction_set_thread_count_and_cache_state(self):
        isas = {name.split("/")[2] for name in list_names("--isa=all") if name.startswith("attention/bert-512/")}
        self.assertIn("reference", isas)
        names = [name for name in list_names("--isa=reference", "--threads=1,2,3") if name.startswith("attention/tiny/")]
        expected = []
        for threads in (1, 2, 3):
            start = f"attention/tiny/reference/threads:{threads}"
            expected += [f"{start}/process_time/real_time", f"{start}/cold/process_time/manual_time"]
        self.assertEqual(names, expected)
        self.assertFalse([name for name in list_names("--caches=warm") if "/cold" in name])
        self.assertEqual(list_names("--isa=reference,reference", "--threads=2,2"), list_names("--isa=reference", "--threads=2"))
        cold = [name for name in list_names("--caches=cold", "--benchmark_filter=^(attention|gemm|softmax|layer|encoder|decode)/")]
        self.assertTrue(cold)
        self.assertTrue(all("/cold" in name for name in cold))

    def test_results_and_their_context(self):
        document = measure("^(attention/tiny|gemm/16x768x768|softmax/512x512|layer/minilm-b1-l16|task_graph)/.*threads:1/")
        for key in ("cpu", "isa", "governor", "polyhead_version", "commit", "compiler", "threads_allowed", "caches", "real_operands"):
            self.assertIn(key, document["context"])
        self.assertNotIn("slow_down", document["context"])
        self.assertEqual(len(document["benchmarks"]), 10, [entry["name"] for entry in document["benchmarks"]])
        for entry in document["benchmarks"]:
            self.assertNotIn("error_occurred", entry)
            self.assertGreater(entry["real_time"], 0)
            self.assertEqual(entry["time_unit"], "ms")
            self.assertGreater(entry["GB/s"], 0)
            self.assertEqual("GFLOP/s" in entry, not entry["name"].startswith("softmax"))
            self.assertGreater(entry["error"], 0)
            self.assertNotIn("roof", entry)

    def test_a_wrong_result_has_no_time(self):
        for case in ("attention/tiny", "gemm/1x768x768", "softmax/512x512", "decode/mqa", "layer/minilm-b1-l16", "encoder/minilm-b1-l16",
                     "task_graph/graph"):
            document = measure(f"^{case}/.*threads:1/", f"--wrong-result={case}", "--caches=warm", expect=1)
            (entry,) = document["benchmarks"]
            self.assertIs(entry["error_occurred"], True, entry)
            self.assertIn("wrong result: error 0.1", entry["error_message"])
            self.assertFalse(entry.get("real_time"))
            self.assertFalse(entry.get("GFLOP/s"))

    def test_one_wrong_case_does_not_hide_the_others(self):
        document = measure("^attention/(tiny|bert-128)/.*threads:1/", "--wrong-result=tiny", expect=1)
        wrong = {entry["name"]: entry.get("error_occurred", False) for entry in document["benchmarks"]}
        self.assertEqual(len(wrong), 4)
        for name, is_wrong in wrong.items():
            self.assertEqual(is_wrong, "/tiny/" in name)

    def test_roofline(self):
        document = measure("^(attention/bert-128|softmax/64x4096|gemm/1x768x768)/.*threads:1/", "--roofline")
        self.assertEqual(len(document["benchmarks"]), 6)
        for entry in document["benchmarks"]:
            self.assertRegex(entry["label"], r"^bound: (fma \w+|read (L\d|DRAM))$")
            bounded = "GFLOP/s" if "fma" in entry["label"] else "GB/s"
            self.assertAlmostEqual(entry["roof_share"], entry[bounded] / entry["roof"], delta=1e-6)
            # Above 1 only by a clock that jumps in between; this is no test of speed.
            self.assertTrue(0 < entry["roof_share"] < 2, entry)
            if entry["name"].startswith("softmax"):
                self.assertIn("read", entry["label"])
                self.assertEqual("DRAM" in entry["label"], "/cold" in entry["name"])

    def test_peaks_name_the_best_way_of_reading(self):
        entries = measure("^peak/(multiply_add|read/L1)/.*threads:1/")["benchmarks"]
        self.assertEqual([entry["name"].split("/")[1] for entry in entries], ["multiply_add", "read"])
        self.assertGreater(entries[0]["GFLOP/s"], 0)
        self.assertGreater(entries[1]["GB/s"], 0)
        self.assertRegex(entries[1]["label"], r"^[24][KM] pages, (plain|prefetch \d+ B ahead|[24] streams)$")

    def test_slow_down(self):
        filter_ = "^attention/tiny/.*threads:1/"
        plain = measure(filter_, "--caches=warm")
        slow = measure(filter_, "--caches=warm", "--slow-down=300")
        self.assertEqual(slow["context"]["slow_down"], "300")
        ratio = slow["benchmarks"][0]["real_time"] / plain["benchmarks"][0]["real_time"]
        self.assertGreater(ratio, 2)  # 4 but for noise
        cold = measure(filter_, "--caches=cold", "--slow-down=300")
        self.assertGreater(cold["benchmarks"][0]["real_time"] / plain["benchmarks"][0]["real_time"], 2)

    def test_real_operands(self):
        with tempfile.TemporaryDirectory() as folder:
            shape = (2, 3, 16, 8)
            for layer in (0, 2, 5):
                for offset, name in enumerate(("query", "key", "value")):
                    count = shape[0] * shape[1] * shape[2] * shape[3]
                    values = array.array("f", [((index * 37 + offset * 11 + layer) % 64 - 32) / 16 for index in range(count)])
                    write_npy(pathlib.Path(folder) / f"layer{layer}_{name}.npy", "<f4", shape, values)
            write_npy(pathlib.Path(folder) / "key_lengths.npy", "<i8", (2,), array.array("q", [16, 5]))
            document = measure("minilm-r.*threads:1/", f"--real-operands={folder}", "--caches=warm")
            self.assertEqual(
                [entry["name"].split("/")[1] for entry in document["benchmarks"]],
                ["minilm-real-layer0", "minilm-real-layer2", "minilm-real-layer5", "minilm-random"],
            )
            self.assertEqual(document["context"]["real_operands"], folder)
            (pathlib.Path(folder) / "layer5_key.npy").unlink()
            document = measure("minilm-r.*threads:1/", f"--real-operands={folder}", "--caches=warm", expect=1)
            self.assertIn("layer5_key.npy", document["benchmarks"][2]["error_message"])
        self.assertIn("layer0_query.npy", run("--real-operands=/nowhere", expect=2).stderr)
        self.assertIn("bench/real_operands.py", measure("attention/tiny")["context"]["real_operands"])

    def test_wrong_command_lines(self):
        for argument, part in (
            ("--isa=avx9", "avx9"),
            ("--isa=", "--isa"),
            ("--threads=0", "'0'"),
            ("--threads=two", "'two'"),
            ("--caches=hot", "'hot'"),
            ("--slow-down=-1", "-1"),
            ("--slow-down=10%", "10%"),
            ("--slow-down=nan", "nan"),
            ("--plugin=", "--plugin"),
        ):
            self.assertIn(part, run(argument, expect=2).stderr)
        run("--no-such-flag", expect=2)
        run("--benchmark_filter=no-such-benchmark", expect=2)

    def test_help_names_every_flag(self):
        text = run("--help").stdout
        source = (pathlib.Path(__file__).resolve().parent.parent / "main.cpp").read_text()
        flags = set(re.findall(r'(?:flag|argument) == "(--[a-z-]+)"', source))
        self.assertGreater(len(flags), 5)
        for flag in flags:
            self.assertIn(flag, text)


def write_npy(path, dtype, shape, values):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values.tobytes())


if __name__ == "__main__":
    program = sys.argv.pop(1)
    unittest.main()
