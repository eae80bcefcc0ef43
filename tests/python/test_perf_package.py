"""The wheel brings the package that judges benchmark results; its libraries come with the extra "perf"."""

import subprocess
import sys


def perf(*arguments):
    return subprocess.run([sys.executable, "-m", "polyhead_perf", *arguments], capture_output=True, text=True, timeout=60)


def test_commands():
    listed = perf("--help")
    assert listed.returncode == 0 and "compare" in listed.stdout and "report" in listed.stdout
    assert perf("compare", "--help").stdout.startswith("usage: polyhead_perf compare")


def test_wrong_commands_end_with_2():
    assert perf().returncode == 2
    unknown = perf("compere")
    assert unknown.returncode == 2 and "no command is called 'compere'" in unknown.stderr
