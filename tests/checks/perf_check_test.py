#!/usr/bin/env python3
"""Tests of scripts/perf-check that need neither build nor measurement."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class PerfCheck(unittest.TestCase):
    """What it refuses, at once and with status 2: 1 would say that something is slower."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(SCRIPTS, self.root / "scripts")

    def refused(self, status, says, *arguments):
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.root.parent), "GIT_CONFIG_GLOBAL": os.devnull}
        for name in ("POLYHEAD_BUILD", "GIT_DIR", "GIT_WORK_TREE"):
            environment.pop(name, None)
        done = subprocess.run([self.root / "scripts/perf-check", *arguments], capture_output=True, text=True, env=environment, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)
        self.assertFalse((self.root / "build").exists(), "nothing was built before")

    def git(self, *arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", "-C", self.root, *identity, *arguments], check=True, capture_output=True)

    def test_wrong_command_lines(self):
        self.refused(2, "no option is called --nothing", "--nothing")
        self.refused(2, "--filter needs a value", "--filter")
        self.refused(2, "one commit, not both a and b", "a", "b")

    def test_without_git_or_history(self):
        self.refused(2, "not a git checkout")
        self.refused(0, "not a git checkout", "--advisory")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "the only one")
        self.refused(2, "no commit HEAD~1 to compare with")
        self.refused(2, "no commit nonsense to compare with", "nonsense")


if __name__ == "__main__":
    unittest.main(verbosity=1)
