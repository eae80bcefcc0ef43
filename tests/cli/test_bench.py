"""Runs polyhead bench: test_bench.py PATH_TO_POLYHEAD [unittest's arguments]."""

import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import unittest

import harness
from harness import CommandTest, environment_with

QUICK = ["--min-time", "0.01"]


def isas():
    return json.loads(harness.run("info", "--json").stdout)["isa"]["available"]


class BenchTest(CommandTest):
    def bench(self, *arguments, **variables):
        """Runs it, quickly; returns its lines after the header, and its JSON."""
        path = self.path("r.json")
        text = self.succeed("bench", *arguments, *QUICK, "--json", path, **variables)
        lines = text.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("workload"))
        return lines[start + 1 :], self.read(path)

    def read(self, path):
        with open(path) as file:
            return json.load(file, parse_constant=lambda name: self.fail(f"{name} in JSON"))

    def names(self, *patterns):
        listed = json.loads(self.succeed("bench", "--list", "--json", "-", *patterns))
        return [workload["name"] for workload in listed]


class SelectionTest(BenchTest):
    def test_list(self):
        names = [line.split()[0] for line in self.succeed("bench", "--list").splitlines()]
        for name in ("bert-128", "decode-b1", "layer/minilm-b32-l128", "encoder/bert-b1-l512"):
            self.assertIn(name, names)
        self.assertEqual(len(names), len(set(names)))

    def test_list_as_json(self):
        listed = json.loads(self.succeed("bench", "--list", "--json", "-"))
        by_name = {workload["name"]: workload for workload in listed}
        self.assertEqual(len(by_name), len(listed))
        self.assertEqual(by_name["attention/decode-b1"]["key_length"], 8192)
        self.assertEqual(by_name["attention/gpt2-causal"]["causal"], "top-left")
        self.assertEqual(by_name["layer/bert-b8-l128"]["d_model"], 768)
        self.assertEqual(self.succeed("bench", "--list", "--json", self.path("list.json")), "")
        self.assertEqual(self.read(self.path("list.json")), listed)

    def test_patterns(self):
        everything = self.names()
        self.assertEqual(self.names("all"), everything)
        self.assertEqual(self.names("*"), everything)
        self.assertEqual(self.names("bert-*"), ["attention/bert-128", "attention/bert-512"])
        self.assertEqual(self.names("bert-???"), ["attention/bert-128", "attention/bert-512"])
        self.assertEqual(self.names("layer/*"), [name for name in everything if name.startswith("layer/")])
        self.assertEqual(set(self.names("*bert*")), {name for name in everything if "bert" in name})
        self.assertEqual(self.names("*-b1-*16", "tiny", "layer/bert-b1-l16")[-1], "attention/tiny")
        self.assertEqual(self.names("tiny", "attention/tiny", "t*y"), ["attention/tiny"])
        self.assertEqual(self.names("**tiny**"), ["attention/tiny"])

    def test_unknown_names_are_told_what_is_near(self):
        self.refuse(2, "bench", "bert-129", says="bert-128")
        self.refuse(2, "bench", "layer/minilm-b32", says="layer/minilm-b32-l128")
        self.refuse(2, "bench", "nothing-like-it", says="--list")
        self.refuse(2, "bench", "bert-5", "--list", says="there is bert-512")
        self.refuse(2, "bench", "bert-?", says="--list")

    def test_data_types(self):
        self.bench("tiny", "--dtype", "f32", "--threads", 1)
        for dtype in ("bf16", "f16"):
            _, document = self.bench("tiny", "--dtype", dtype, "--threads", 1)
            self.assertIn(f"attention/tiny-{dtype}/", document["benchmarks"][0]["name"])
            self.refuse(2, "bench", "layer/bert-b1-l16", "--dtype", dtype, says="layers compute on f32 only")
        self.refuse(2, "bench", "tiny", "--dtype", "words", says="'words'; it has f32, bf16, f16")

    def test_wrong_requests(self):
        for arguments in (
            [],
            ["--shape", "t=1"],
            ["--shape", "t=1,d=0"],
            ["--shape", "t=1,d=8,x=2"],
            ["--shape", "t=1,d=8,t=2"],
            ["--shape", "h=3,g=2,t=1,d=8"],
            ["--shape", "words"],
            ["--shape", "t=1,d=8", "--causal", "sideways"],
            ["--shape", "t=1,d=8", "--window", "3"],
            ["--shape", "t=1,d=8", "--window", "3,0,1"],
            ["tiny", "--causal", "top-left"],
            ["tiny", "--causal"],
            ["tiny", "--key-lengths"],
            ["tiny", "--min-time", "-1"],
            ["tiny", "--min-time", "nan"],
            ["tiny", "--plugin", ""],
            ["--shape", "b=4611686018427387904,t=1,d=1"],
            ["--shape", "t=4294967296,d=4294967296"],
            ["--shape", "g=1,h=1,t=1,s=4294967296,d=1,e=4294967296"],
            ["tiny", "--repetitions", "0"],
            ["tiny", "--threads", "1,many"],
            ["tiny", "--threads", "-1"],
            ["tiny", "--isa", "mmx"],
            ["tiny", "--isa", "neon" if "sse4" in isas() else "avx512"],
        ):
            self.refuse(2, "bench", *arguments, says="--help")


class ResultsTest(BenchTest):
    def test_a_workload_and_a_shape(self):
        shape = ["--shape", "b=2,h=4,g=2,t=9,s=33,d=24,e=16", "--causal", "bottom-right", "--window", "7,0", "--key-lengths"]
        lines, document = self.bench("tiny", *shape, "--threads", 1)
        self.assertEqual([line.split()[0] for line in lines], ["tiny", "shape"])
        context = document["context"]
        for key in ("date", "host_name", "num_cpus", "mhz_per_cpu", "caches", "load_avg", "library_build_type", "cpu", "isa",
                    "governor", "polyhead_version", "commit", "compiler", "threads_allowed"):
            self.assertIn(key, context)
        self.assertEqual(len(document["benchmarks"]), 2)
        for entry in document["benchmarks"]:
            self.assertEqual((entry["run_type"], entry["time_unit"]), ("iteration", "ms"))
            self.assertGreater(entry["iterations"], 0)
            self.assertTrue(0 < entry["min_ms"] <= entry["real_time"])
            self.assertGreater(entry["cpu_time"], 0)
            self.assertTrue(math.isfinite(entry["GFLOP/s"]) and entry["GFLOP/s"] > 0)
            self.assertLess(entry["error"], 1e-4)
            self.assertNotIn("ratio", entry)
        isa = context["isa"]
        self.assertEqual(document["benchmarks"][0]["name"], f"attention/tiny/{isa}/threads:1/process_time/real_time")

    def test_a_window_may_be_as_large_as_a_number(self):
        lines, _ = self.bench("--shape", "t=9,d=8", "--window", "9223372036854775807,9223372036854775807", "--threads", 1)
        self.assertEqual([line.split()[0] for line in lines], ["shape"])

    def test_causal_alone_is_bottom_right(self):
        def name(*causal):
            _, document = self.bench("--shape", "t=4,s=9,d=8", *causal, "--threads", 1)
            return document["benchmarks"][0]["name"], document["benchmarks"][0]["GFLOP/s"] * document["benchmarks"][0]["real_time"]

        plain, plain_work = name()
        alone, alone_work = name("--causal")
        self.assertEqual(name("--causal", "bottom-right")[0], alone)
        self.assertEqual(name("--causal=bottom-right")[0], alone)
        top_left, top_left_work = name("--causal=top-left")
        self.assertEqual(len({plain, alone, top_left}), 3)
        # Pairs of query and key: 4 x 9; 1 + 2 + 3 + 4; 6 + 7 + 8 + 9.
        self.assertAlmostEqual(top_left_work / plain_work, 10 / 36, places=6)
        self.assertAlmostEqual(alone_work / plain_work, 30 / 36, places=6)

    def test_layers_and_encoders(self):
        lines, document = self.bench("layer/minilm-b1-l16", "encoder/minilm-b1-l16", "--threads", 1)
        self.assertEqual([line.split()[0] for line in lines], ["layer/minilm-b1-l16", "encoder/minilm-b1-l16"])
        layer, encoder = document["benchmarks"]
        self.assertTrue(layer["name"].startswith("layer/minilm-b1-l16/"))
        self.assertGreater(encoder["real_time"], layer["real_time"])
        self.assertGreater(layer["GFLOP/s"], 0)

    def test_instruction_sets_and_threads(self):
        threads = json.loads(self.succeed("info", "--json"))["threads"]
        counts = sorted({1, threads})
        for option in ("all", "1,0", f"1,{threads},1"):
            lines, document = self.bench("tiny", "--isa", "all", "--threads", option)
            self.assertEqual(len(lines), len(counts) * len(isas()))
            names = [entry["name"] for entry in document["benchmarks"]]
            wanted = [f"attention/tiny/{isa}/threads:{n}/process_time/real_time" for n in counts for isa in reversed(isas())]
            self.assertEqual(names, wanted)
            ratios = [entry.get("ratio") for entry in document["benchmarks"]]
            self.assertEqual([ratio is None for ratio in ratios], [isa == isas()[-1] for _ in counts for isa in reversed(isas())])
            if len(isas()) > 1:
                self.assertGreater(ratios[len(isas()) - 1], 1.5, "plain C++ is slower than the best instruction set")

    def test_repetitions_for_a_comparison(self):
        lines, document = self.bench("tiny", "--repetitions", 3, "--threads", 1)
        self.assertEqual(len(lines), 1)
        entries = document["benchmarks"]
        self.assertEqual([entry["repetition_index"] for entry in entries], [0, 1, 2])
        self.assertEqual({entry["repetitions"] for entry in entries}, {3})
        self.assertEqual(len({entry["name"] for entry in entries}), 1)
        self.assertEqual({entry["run_type"] for entry in entries}, {"iteration"})
        # The table's median is that of the repetitions, as far as its digits go.
        shown = float(lines[0].split()[3])
        self.assertAlmostEqual(shown, statistics.median(entry["real_time"] for entry in entries), delta=2e-5)

    def test_roofline(self):
        lines, document = self.bench("tiny", "--threads", 1, "--roofline")
        (entry,) = document["benchmarks"]
        self.assertRegex(entry["label"], r"\Abound: (fma|read) \w+")
        self.assertGreater(entry["roof"], 0)
        counter = entry["GFLOP/s"] if "fma" in entry["label"] else entry["GB/s"]
        self.assertAlmostEqual(entry["roof_share"], counter / entry["roof"], places=6)
        self.assertIn(f"{round(entry['roof_share'] * 100)} %", lines[0])

    def test_what_compares_results_can_read_them(self):
        self.bench("tiny", "layer/minilm-b1-l16", "--repetitions", 2, "--threads", 1)
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
        from polyhead_perf import results

        file = results.load(self.path("r.json"))
        file.refuse_errors()
        self.assertEqual([len(entries) for entries in file.by_name().values()], [2, 2])
        for entry in file.entries:
            self.assertEqual(entry.time_kind, "real")
            self.assertGreater(entry.time, 0)

    def test_a_workload_without_memory_does_not_end_the_others(self):
        shape = "t=1,s=100000000000,d=128"
        result = self.refuse(1, "bench", "--shape", shape, "--shape", "t=4,d=8", "--threads", 1, *QUICK, "--json", self.path("r.json"),
                             says="shape by")
        self.assertRegex(result.stdout, r"not timed: its operands take 1.02e\+05 GB, and \S+ GB of memory are available")
        failed, timed = self.read(self.path("r.json"))["benchmarks"]
        self.assertTrue(failed["error_occurred"])
        self.assertIn(shape, failed["name"])
        self.assertGreater(timed["real_time"], 0)

    def test_json_on_standard_output(self):
        document = json.loads(self.succeed("bench", "tiny", "--threads", 1, *QUICK, "--json", "-"))
        self.assertEqual(len(document["benchmarks"]), 1)

    def test_json_that_cannot_be_written(self):
        start = time.monotonic()
        for path in (self.path("missing/r.json"), self.folder):
            self.refuse(1, "bench", "tiny", "--threads", 1, "--min-time", 30, "--json", path, says=path)
        self.assertLess(time.monotonic() - start, 20, "it is seen before anything is measured")
        self.assertEqual(os.listdir(self.folder), [])

    def test_json_on_a_device(self):
        self.succeed("bench", "tiny", "--threads", 1, *QUICK, "--json", "/dev/null")
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_json_through_a_link(self):
        with open(self.path("target.json"), "w") as file:
            file.write("old")
        os.symlink(self.path("target.json"), self.path("link.json"))
        self.succeed("bench", "tiny", "--threads", 1, *QUICK, "--json", self.path("link.json"))
        self.assertTrue(os.path.islink(self.path("link.json")))
        self.assertEqual(len(self.read(self.path("target.json"))["benchmarks"]), 1)

    def test_an_old_result_stays_until_there_is_a_new_one(self):
        with open(self.path("r.json"), "w") as file:
            file.write("old")
        self.refuse(1, "bench", "tiny", "--plugin", self.path("none.so"), "--json", self.path("r.json"), says="none.so")
        with open(self.path("r.json")) as file:
            self.assertEqual(file.read(), "old")


class InterruptionTest(BenchTest):
    def interrupt(self, number):
        path = self.path("r.json")
        command = [harness.COMMAND, "bench", "tiny", "bert-128", "--threads", "1", "--min-time", "0.05", "--repetitions", "1000",
                   "--json", path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment_with({}))
        deadline = time.monotonic() + 60
        while not os.path.exists(path) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, -number, errors)
        self.assertRegex(errors, r"\Apolyhead: interrupted [^\n]+\n\Z")
        entries = self.read(path)["benchmarks"]
        self.assertGreater(len(entries), 0)
        self.assertEqual([entry["repetition_index"] for entry in entries], list(range(len(entries))))
        self.assertIn("tiny", out, "what was measured is shown")
        self.assertEqual(os.listdir(self.folder), ["r.json"])

    def test_control_c_keeps_what_was_measured(self):
        self.interrupt(signal.SIGINT)

    def test_termination_keeps_what_was_measured(self):
        self.interrupt(signal.SIGTERM)


@unittest.skipIf(sys.platform == "win32", "pseudo-terminals")
class TerminalTest(BenchTest):
    def on_terminal(self, columns, *arguments, **variables):
        """Runs it with standard output and error on one terminal of this width; returns what it wrote there."""
        import fcntl
        import pty
        import struct
        import termios

        try:
            main, terminal = pty.openpty()
        except OSError as error:  # a machine without /dev/pts, as bare containers are
            self.skipTest(f"no terminal can be had here: {error}")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = environment_with({"TERM": "xterm", **variables})
        process = subprocess.Popen([harness.COMMAND, *map(str, arguments)], stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        written = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # what Linux says when the other end is closed
                break
            if not part:
                break
            written += part
        os.close(main)
        self.assertEqual(process.wait(timeout=60), 0, written)
        return written.decode()

    def screen(self, written):
        """The lines that stay: a carriage return and "erase to the end of the line" are all that the bar uses."""
        lines = []
        for line in written.replace("\r\n", "\n").split("\n"):
            shown = ""
            for part in line.split("\r"):
                rest = part.split("\x1b[K")[-1] if "\x1b[K" in part else None
                shown = part + shown[len(part) :] if rest is None else part.replace("\x1b[K", "") if rest == "" else rest
            lines.append(shown)
        return lines

    def test_progress_bar_leaves_nothing_behind(self):
        written = self.on_terminal(200, "bench", "tiny", "bert-128", "--threads", 1, "--min-time", "0.3")
        self.assertIn("[#", written)
        self.assertIn("bert-128, 1 thread", written)
        screen = self.screen(written)
        self.assertFalse([line for line in screen if "[" in line or "\x1b" in line], screen)
        self.assertEqual([line.split()[0] for line in screen if line][-2:], ["tiny", "bert-128"])

    def test_no_progress_bar_on_a_simple_terminal(self):
        self.assertNotIn("\x1b", self.on_terminal(200, "bench", "tiny", "--threads", 1, "--min-time", "0.3", TERM="dumb"))

    def test_columns_fit(self):
        widest = None
        for columns in (200, 100, 80, 60, 45):
            written = self.on_terminal(columns, "bench", "tiny", "--threads", 1, *QUICK, TERM="dumb")
            table = [line for line in written.replace("\r\n", "\n").split("\n") if line.startswith(("workload", "tiny"))]
            self.assertEqual(len(table), 2)
            self.assertLessEqual(max(map(len, table)), columns)
            titles = table[0].replace("median ms", "median_ms").replace("minimum ms", "minimum_ms").split()
            self.assertEqual(titles[:4], ["workload", "engine", "threads", "median_ms"])
            if widest is not None:
                self.assertLessEqual(len(titles), widest)
            widest = len(titles)
        self.assertEqual(titles, ["workload", "engine", "threads", "median_ms"][: len(titles)] + titles[4:])
        self.assertIn("shape", self.on_terminal(200, "bench", "tiny", "--threads", 1, *QUICK))

    def test_a_pipe_has_every_column_and_no_bar(self):
        result = harness.run("bench", "tiny", "--threads", 1, *QUICK)
        self.assertEqual(result.stderr, "")
        header = next(line for line in result.stdout.splitlines() if line.startswith("workload"))
        for title in ("+-%", "minimum ms", "GFLOP/s", "GB/s", "error", "shape"):
            self.assertIn(title, header)


if __name__ == "__main__":
    harness.main(__doc__)
