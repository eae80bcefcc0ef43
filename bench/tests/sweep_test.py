#!/usr/bin/env python3
"""polyhead-sweep, driven as a user drives it, and its files as the report reads them: sweep_test.py POLYHEAD-SWEEP. Python's standard
library alone."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from polyhead_perf import report_inputs, results

program = None


def run(*arguments, expect=(0, 1)):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode not in expect:
        raise AssertionError(f"{arguments}: exit status {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    return done


class Sweep(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_times_of_every_size_and_what_the_report_makes_of_them(self):
        path = self.folder / "sweep.json"
        done = run("--only=batch", "--rounds=1", f"--json={path}")
        cliffs = [line for line in done.stdout.splitlines() if line.startswith("  ")]
        self.assertEqual(done.returncode, 1 if cliffs else 0)
        self.assertRegex(done.stdout, rf"\Abatch +b=1,h=1,t=16,s=16,d=64 +96 sizes, 1 to 96: {len(cliffs)} cliffs?\n")
        read = results.load(path)
        self.assertEqual({entry.time_kind for entry in read.entries}, {"real"})
        inputs = report_inputs.read_folder(self.folder)
        self.assertEqual([result.size for result in inputs.results], list(range(1, 97)))
        self.assertTrue(all(result.seconds > 0 and result.group == "sweep" and result.threads == 1 for result in inputs.results))
        self.assertEqual({result.label for result in inputs.results}, {"sequences with b=1,h=1,t=16,s=16,d=64"})
        told = {int(line.split()[0]) for line in cliffs}
        self.assertEqual({result.size for result in inputs.results if result.cliff is not None}, told)
        context = json.loads(path.read_text())["context"]
        for key in ("date", "num_cpus", "caches", "load_avg", "cpu", "isa", "governor", "commit", "compiler"):
            self.assertIn(key, context)

    def test_wrong_command_lines(self):
        for arguments, part in (
            (["--only=nothing"], "there are queries, "),
            (["--isa=avx9"], "'avx9'"),
            (["--threads=0"], "--threads"),
            (["--rounds=many"], "--rounds"),
            (["--no-such-flag"], "--no-such-flag"),
            (["--only=batch", f"--json={self.folder}/missing/sweep.json"], "cannot be written"),
        ):
            done = run(*arguments, expect=(2,))
            self.assertIn(part, done.stderr)
            self.assertEqual(done.stdout, "")

    def test_help_tells_the_exit_status(self):
        self.assertIn("Exit status: 0", run("--help", expect=(0,)).stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: sweep_test.py POLYHEAD-SWEEP")
    program = sys.argv.pop(1)
    unittest.main()
