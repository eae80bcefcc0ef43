"""Runs polyhead compare and polyhead report: test_perf.py PATH_TO_POLYHEAD [unittest's arguments]."""

import json
import os
import sys

import harness
from harness import CommandTest


class PerfTest(CommandTest):
    """compare and report: the command finds Python and the package, and hands everything over."""

    def interpreter(self, script):
        path = self.path("python")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script + "\n")
        os.chmod(path, 0o755)
        return path

    def result_file(self, name, times):
        entries = [{"name": "one/real_time", "run_name": "one/real_time", "run_type": "iteration", "repetition_index": index,
                    "iterations": 1, "threads": 1, "real_time": time, "cpu_time": time, "time_unit": "us"}
                   for index, time in enumerate(times)]
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump({"context": {"cpu": "any"}, "benchmarks": entries}, file)
        return self.path(name)

    def test_arguments_and_status_pass_through(self):
        python = self.interpreter('printf "%s\\n" "$@"; ls "$PYTHONPATH/polyhead_perf/__main__.py" >&2; exit 7')
        result = harness.run("compare", "--baseline", "a b", "--help", "--", "--threads=1", "--", "", POLYHEAD_PYTHON=python)
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertEqual(result.stdout.split("\n"), ["-m", "polyhead_perf", "compare", "--baseline", "a b", "--help", "--",
                                                     "--threads=1", "--", "", ""])
        self.assertTrue(result.stderr.endswith("polyhead_perf/__main__.py\n"), result.stderr)
        self.assertEqual(harness.run("report", POLYHEAD_PYTHON=self.interpreter("exit 3")).returncode, 3)

    def test_searched_folders_are_kept(self):
        python = self.interpreter('printf "%s" "$PYTHONPATH"')
        result = harness.run("report", POLYHEAD_PYTHON=python, PYTHONPATH="/one:/two")
        self.assertRegex(result.stdout, r"/python:/one:/two\Z")

    def test_missing_interpreter(self):
        for command in ("compare", "report"):
            result = self.refuse(2, command, "x", says="POLYHEAD_PYTHON", POLYHEAD_PYTHON=self.path("nowhere"))
            self.assertIn(self.path("nowhere"), result.stderr)

    def test_missing_library(self):
        bare = self.interpreter(f'exec "{sys.executable}" -S "$@"')  # without its site-packages
        files = [self.result_file(name, [1.0, 1.1]) for name in ("a.json", "b.json")]
        result = harness.run("compare", *files, POLYHEAD_PYTHON=bare)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, r"\Apolyhead compare: needs the Python library (numpy|scipy), .*pip install[^\n]*\n\Z")

    def test_help_and_bad_input_name_this_command(self):
        self.assertIn("usage: polyhead compare", self.succeed("compare", "--help", POLYHEAD_PYTHON=sys.executable))
        missing = harness.run("compare", self.path("a.json"), self.path("b.json"), POLYHEAD_PYTHON=sys.executable)
        self.assertEqual(missing.returncode, 2)
        self.assertRegex(missing.stderr, r"\Apolyhead compare: [^\n]*a\.json: can't be read[^\n]*\n\Z")


if __name__ == "__main__":
    harness.main(__doc__)
