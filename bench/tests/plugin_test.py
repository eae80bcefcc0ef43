#!/usr/bin/env python3
"""polyhead-bench with other people's attention: plugin_test.py POLYHEAD-BENCH HOSTILE_PLUGIN. Python's standard library alone."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

program = plugin = None


def run(wish, *arguments, filter_="attention/tiny/hostile/"):
    """Exit status, what it said, and its results."""
    environment = {**os.environ, "POLYHEAD_HOSTILE": wish}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.json"
        command = [program, f"--plugin={plugin}", "--threads=1", f"--benchmark_filter={filter_}", "--benchmark_min_time=0.02",
                   f"--benchmark_out={path}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        text = path.read_text() if path.exists() else ""
    try:
        return done.returncode, done.stdout + done.stderr, json.loads(text)
    except json.JSONDecodeError:
        return done.returncode, done.stdout + done.stderr, None


class Plugins(unittest.TestCase):
    def test_in_turn_with_ours(self):
        status, said, document = run("")
        self.assertEqual(status, 0, said)
        (entry,) = document["benchmarks"]
        self.assertEqual(entry["name"], "attention/tiny/hostile/threads:1/process_time/manual_time")
        self.assertGreater(entry["ratio"], 1.5, "float64 one by one is slower than vectors")
        self.assertTrue(0 < entry["ours_ms"] < entry["real_time"], entry)
        self.assertLess(entry["error"], 1e-5)
        self.assertGreater(entry["GFLOP/s"], 0)
        self.assertIn(plugin, document["context"]["plugin hostile"])

    def test_several_repetitions(self):
        status, said, document = run("", "--benchmark_repetitions=3")
        self.assertEqual(status, 0, said)
        self.assertEqual(sum(entry["run_type"] == "iteration" for entry in document["benchmarks"]), 3)

    def test_what_is_wrong_has_no_time(self):
        for wish, what in (("wrong", "wrong result"), ("write-behind", "outside its output"), ("fail", "the moon is wrong"),
                           ("keep-the-first-result", "wrong result"), ("lazy", "wrong result"), ("throw", "out of ideas"),
                           ("fail-to-prepare", "no licence")):
            status, said, document = run(wish)
            self.assertEqual(status, 1, (wish, said))
            (entry,) = document["benchmarks"]
            self.assertTrue(entry["error_occurred"], wish)
            self.assertIn(what, entry["error_message"])

    def test_crashes_name_the_engine(self):
        status, said, _ = run("crash")
        self.assertEqual(status, 1, said)
        self.assertIn("engine 'hostile', running on b=1 h=8", said)

    def test_what_is_not_served_is_not_there(self):
        status, said, document = run("refuse", filter_="attention/tiny/")
        self.assertEqual(status, 0, said)
        self.assertFalse([entry for entry in document["benchmarks"] if "hostile" in entry["name"]])
        self.assertTrue(document["benchmarks"])

    def test_libraries_that_cannot_be_used(self):
        status, said, _ = run("newer-version")
        self.assertEqual(status, 2, said)
        self.assertIn("serves version 1", said)


if __name__ == "__main__":
    program, plugin = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
