"""polyhead compare as a user calls it, on programs that make their times up and on files; where POLYHEAD_BENCH names
polyhead-bench, on the real one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python"
# Without site-packages Python starts in a fraction of the time; a comparison starts it fifty times.
_FOLDER = tempfile.TemporaryDirectory(prefix="polyhead-fake-bench-")
FAKE = str(Path(_FOLDER.name) / "fake-bench")
Path(FAKE).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(__file__).with_name("fake_bench.py")}" "$@"\n')
os.chmod(FAKE, 0o755)
FAST, SLOW = "fast/threads:1/real_time", "slow/threads:1/real_time"


def polyhead_perf(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    # The same noise each time: of all noise, a part must look like a difference.
    environment["FAKE_BENCH_RUNS"] = str(Path(tempfile.mkdtemp(dir=_FOLDER.name)) / "runs")
    return subprocess.run([sys.executable, "-m", "polyhead_perf", *map(str, arguments)], capture_output=True, text=True,
                          env=environment, timeout=300)


def compare(*arguments, status, baseline=FAKE, candidate=FAKE):
    result = polyhead_perf("compare", "--baseline", baseline, "--candidate", candidate, "--budget", 30, "--seed", 1, *arguments)
    assert result.returncode == status, (result.stdout, result.stderr)
    return result


def refused(result, says):
    """One line on standard error after what was said while measuring."""
    assert result.returncode == 2, (result.stdout, result.stderr)
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("polyhead_perf compare: ") and says in line, result.stderr
    return line


def test_one_slow_benchmark_is_found_and_the_rest_is_the_same(tmp_path):
    out = tmp_path / "out.json"
    result = compare("--candidate-flags", f"--slow-down=6 --only-slow={FAST}", "--seed", 7, "--json", out, status=1)
    assert "seed 7" in result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith(("fast", "slow", "geometric"))]
    assert [row.split()[0] for row in rows] == ["fast/threads:1", "slow/threads:1", "geometric"]
    assert rows[0].endswith("slower") and rows[1].endswith("same")
    assert "SLOWER: 1 of 2 benchmarks takes longer, by " in result.stdout and "1 is the same." in result.stdout
    document = json.loads(out.read_text())
    assert (document["schema"], document["verdict"], document["exit_status"]) == ("polyhead-compare/1", "slower", 1)
    assert document["settings"]["seed"] == 7 and document["settings"]["paired"] is True
    fast, slow = document["benchmarks"]
    assert (fast["name"], slow["name"]) == (FAST, SLOW)
    assert fast["ratio_low"] < 1.06 < fast["ratio_high"] and slow["ratio_low"] < 1.0 < slow["ratio_high"]
    assert len(fast["baseline_seconds"]) == len(fast["candidate_seconds"]) == fast["repetitions"] >= 9
    assert document["summary"] in result.stdout


def test_faster_ends_with_0_and_quiet_leaves_the_table_out():
    result = compare("--baseline-flags=--slow-down=10", "--quiet", "--filter", "fast", status=0)
    assert result.stdout.splitlines()[-1].startswith("FASTER: nothing takes longer. 1 of 1 benchmark takes less time, by ")
    assert "benchmark  " not in result.stdout


@pytest.mark.parametrize("noise, says", [(0.03, "repetitions would tell (--budget "), (1.0, "The machine is too noisy now")])
def test_noise_cannot_be_told_and_says_what_would(noise, says):
    result = compare("--budget", 0.5, "--filter", "fast", "--", f"--noise={noise}", status=2)
    assert "COULD NOT TELL for 1 of 1 benchmark" in result.stdout and says in result.stdout


@pytest.mark.parametrize("flags, says", [
    (["--crash"], "ended with status 3: out of luck"),
    ([f"--wrong={FAST}"], f"{FAST} reports an error: wrong result: off by 1"),
    ([f"--nan={FAST}"], f"{FAST}: real_time is nan"),
    (["--unit=ms"], "time_unit is ms, but us in"),
    (["--context=isa=avx512"], "context 'isa' is 'avx512', but 'avx2' in"),
    ([f"--names={FAST}"], f"has no {SLOW}, which"),
    (["--names=fast/threads:1,slow/threads:1"], "timed by different clocks"),
    ([f"--forget={FAST}"], ""),
])
def test_bad_candidates(flags, says):
    line = refused(compare(*(f"--candidate-flags={flag}" for flag in flags), status=2), says)
    assert flags[0] in line, "names the program and its flags"


def test_what_only_one_side_has_can_be_left_out():
    result = compare(f"--candidate-flags=--names={FAST},new/threads:1", "--common", status=0)
    assert f"has them: {SLOW}" in result.stdout and "has them: new/threads:1" in result.stdout


@pytest.mark.parametrize("arguments, says", [
    (["--baseline", "nowhere", "--candidate", FAKE], "nowhere: there is no such program"),
    (["--baseline", "/", "--candidate", FAKE], "is not a program that can be run"),
    (["--baseline", "/bin/false", "--candidate", FAKE], "/bin/false: ended with status 1"),
    (["--baseline", "/bin/true", "--candidate", FAKE], "/bin/true: has no benchmark"),
    (["--baseline", FAKE, "--candidate", FAKE, "--filter", "nothing"], "has no benchmark that matches 'nothing'"),
    (["--baseline", FAKE, "--candidate", FAKE, "--json", "/nowhere/out.json"], "--json /nowhere/out.json: there is no folder"),
    (["--baseline", FAKE, "--candidate", FAKE, "--json", "/"], "--json /: can't be written: it is a folder"),
])
def test_bad_programs(arguments, says):
    refused(polyhead_perf("compare", *arguments), says)


@pytest.mark.parametrize("arguments", [
    [], ["a.json"], ["a.json", "b.json", "c.json"], ["--baseline", FAKE], ["--baseline", FAKE, "--candidate", FAKE, "a.json"],
    ["a.json", "b.json", "--alpha", "0"], ["a.json", "b.json", "--alpha", "0.7"], ["a.json", "b.json", "--min-effect", "-1"],
    ["a.json", "b.json", "--budget", "nan"], ["a.json", "b.json", "--pin", "4000"], ["a.json", "b.json", "--", "--threads=1"],
    ["a.json", "b.json", "--bud", "3"], ["a.json", "b.json", "--alpha", "little"], ["a.json", "b.json", "--pin", "first"],
    ["a.json", "b.json", "--per-process", "1.5"],
])
def test_wrong_command_lines(arguments):
    result = polyhead_perf("compare", *arguments)
    assert result.returncode == 2 and "usage: " in result.stderr, (result.stdout, result.stderr)
    assert " _p" not in result.stderr, "names of our functions say nothing to users"


def test_a_process_that_hangs_ends_the_comparison():
    from polyhead_perf import builds
    from polyhead_perf.errors import PerfError

    runner = builds.Runner((builds.Build(FAKE), builds.Build(FAKE, ("--hang",))))
    builds.calibrate(runner, [FAST], builds.Settings())
    assert runner.patience >= builds.PATIENCE_SECONDS
    runner.patience = 0.5
    with pytest.raises(PerfError, match="--hang: still running after 0.5 s"):
        runner.measure(builds.CANDIDATE, [FAST], 0.002, 3)


def write_result(path, times, name="one/real_time", **context):
    entries = [{"name": name, "run_name": name, "run_type": "iteration", "repetition_index": index, "iterations": 1, "threads": 1,
                "real_time": time, "cpu_time": time, "time_unit": "ms"} for index, time in enumerate(times)]
    path.write_text(json.dumps({"context": {"cpu": "any", **context}, "benchmarks": entries}))
    return path


def test_files(tmp_path):
    base = [10 + 0.01 * (index * 7 % 11) for index in range(12)]
    first = write_result(tmp_path / "a.json", base)
    for factor, status, verdict in ((1.2, 1, "slower"), (0.8, 0, "faster"), (1.001, 0, "same")):
        second = write_result(tmp_path / "b.json", [factor * time for time in base[::-1]], commit="next")
        result = polyhead_perf("compare", first, second)
        assert result.returncode == status, (result.stdout, result.stderr)
        assert [line for line in result.stdout.splitlines() if line.startswith("one ")][0].endswith(verdict)
        assert "note: commit: none in the baseline, next in the candidate" in result.stdout
        assert "measured at different times" in result.stdout


def test_files_of_many_measurements_take_seconds(tmp_path):
    """One by one, leaving out each of 2,000 measurements takes minutes; so does asking a new set for each of 40,000 names."""
    first = write_result(tmp_path / "a.json", [10 + 0.01 * (index * 7 % 11) for index in range(1000)])
    second = write_result(tmp_path / "b.json", [12 + 0.01 * (index * 7 % 11) for index in range(1000)])
    started = os.times()
    result = polyhead_perf("compare", first, second)
    assert result.returncode == 1, (result.stdout, result.stderr)
    assert os.times().children_user - started.children_user < 10


def test_filters_of_files_are_google_benchmarks(tmp_path):
    entries = [json.loads(write_result(tmp_path / f"{name}.json", [1.0 + 0.001 * index for index in range(9)], name).read_text())
               for name in ("one", "two")]
    both = tmp_path / "both.json"
    both.write_text(json.dumps({**entries[0], "benchmarks": entries[0]["benchmarks"] + entries[1]["benchmarks"]}))
    for wanted, left in (("--filter=one", "one"), ("--filter=-one", "two")):
        result = polyhead_perf("compare", both, both, wanted)
        assert [line.split()[0] for line in result.stdout.splitlines() if line.startswith(("one ", "two "))] == [left]
        assert "note: both are the same file" in result.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_results_that_nobody_can_read_are_an_error(tmp_path):
    first = write_result(tmp_path / "a.json", [1.0 + 0.001 * index for index in range(9)])
    command = [sys.executable, "-m", "polyhead_perf", "compare", str(first), str(first)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (2, "polyhead_perf compare: can't write: No space left on device\n")
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_files_with_too_few_repetitions_cannot_tell(tmp_path):
    first, second = write_result(tmp_path / "a.json", [1.0, 1.01]), write_result(tmp_path / "b.json", [2.0, 2.01])
    result = polyhead_perf("compare", first, second)
    assert result.returncode == 2
    assert "one/real_time was measured 2 and 2 times, too few" in result.stdout and "any answer" in result.stdout


def test_files_that_cannot_be_compared(tmp_path):
    first = write_result(tmp_path / "a.json", [1.0] * 9)
    refused(polyhead_perf("compare", first, tmp_path / "nowhere.json"), "nowhere.json: can't be read")
    refused(polyhead_perf("compare", first, write_result(tmp_path / "b.json", [1.0] * 9, name="two")), "b.json: has no one/real_time")
    refused(polyhead_perf("compare", first, write_result(tmp_path / "b.json", [1.0] * 9, cpu="other")), "context 'cpu' is 'other'")
    refused(polyhead_perf("compare", first, first, "--filter", "("), "--filter (: is not a regular expression")
    assert polyhead_perf("compare", first, write_result(tmp_path / "b.json", [1.0] * 9, cpu="other"), "--allow-context",
                         "cpu").returncode == 0


def test_a_fault_of_ours_is_not_taken_for_slower(tmp_path, monkeypatch):
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy/__init__.py").write_text("raise RuntimeError('broken library')\n")
    first = write_result(tmp_path / "a.json", [1.0] * 9)
    done = subprocess.run([sys.executable, "-m", "polyhead_perf", "compare", first, first], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PACKAGE}", "PYTHONDONTWRITEBYTECODE": "1"}, timeout=60)
    assert done.returncode == 2 and "broken library" in done.stderr


def test_self_test_writes_figures_and_checks_docs(tmp_path):
    out, docs = tmp_path / "self-test.json", tmp_path / "docs.md"
    docs.write_text("before\n<!-- self-test -->\nold\n<!-- /self-test -->\nafter\n")
    result = polyhead_perf("self-test", "--binary", FAKE, "--runs", 1, "--slow-downs", "0,10", "--filter", "fast", "--json", out, "--docs",
                           docs)
    assert result.returncode == 0, (result.stdout, result.stderr)
    equal, slowed = json.loads(out.read_text())["cases"]
    assert (equal["slow_down_percent"], equal["slower"], equal["faster"], equal["goal_met"]) == (0.0, 0, 0, True)
    assert (slowed["slow_down_percent"], slowed["slower"], slowed["goal_met"]) == (10.0, 1, True)
    assert slowed["by_benchmark"][FAST]["slower"] == 1 and slowed["slower_together_only"] == 0 and list(equal["by_benchmark"]) == [FAST]
    text = docs.read_text()
    assert text.startswith("before\n<!-- self-test -->\nMeasured by") and text.endswith("<!-- /self-test -->\nafter\n")
    assert "| 10 % | 1 of 1 |" in text and "old" not in text
    assert polyhead_perf("self-test", "--json", out, "--check-docs", docs).returncode == 0
    docs.write_text(text.replace("| 10 % | 1 of 1 |", "| 10 % | 2 of 2 |"))
    changed = polyhead_perf("self-test", "--json", out, "--check-docs", docs)
    assert changed.returncode == 2 and "does not say what" in changed.stderr
    slowed["slower"], slowed["goal_met"] = 0, False
    out.write_text(json.dumps({**json.loads(out.read_text()), "cases": [equal, slowed]}))
    missed = polyhead_perf("self-test", "--json", out)
    assert missed.returncode == 1 and "missed: injected 10 %: said slower in 0 of 1, wanted 1 or more" in missed.stdout


def test_docs_have_the_self_tests_figures():
    """docs/benchmarking.md says what was counted; before anything was, it says nothing."""
    docs = PACKAGE.parent / "docs"
    summary = docs / "compare-self-test.json"
    if summary.exists():
        result = polyhead_perf("self-test", "--json", summary, "--check-docs", docs / "benchmarking.md")
        assert result.returncode == 0, (result.stdout, result.stderr)
    else:
        assert "<!-- self-test -->\n<!-- /self-test -->" in (docs / "benchmarking.md").read_text(encoding="utf-8")


real = pytest.mark.skipif("POLYHEAD_BENCH" not in os.environ, reason="POLYHEAD_BENCH names no polyhead-bench")
# A chance of a false alarm of one in ten thousand, so that this test doesn't fail by itself.
REAL = ["--alpha", "0.0001", "--filter", "^attention/tiny/[^/]+/threads:1/process_time", "--", "--threads=1"]


@real
def test_real_build_against_itself_raises_no_alarm():
    build = os.environ["POLYHEAD_BENCH"]
    result = polyhead_perf("compare", "--baseline", build, "--candidate", build, "--budget", 10, *REAL)
    assert result.returncode in (0, 2), (result.stdout, result.stderr)
    assert "slower" not in result.stdout and "faster" not in result.stdout and "attention/tiny" in result.stdout


@real
def test_real_build_slowed_by_10_percent_is_caught():
    build = os.environ["POLYHEAD_BENCH"]
    result = polyhead_perf("compare", "--baseline", build, "--candidate", build, "--candidate-flags=--slow-down=10", "--budget", 60, *REAL)
    assert result.returncode == 1, (result.stdout, result.stderr)
    assert "SLOWER" in result.stdout and "slow_down: none in the baseline, 10 in the candidate" in result.stdout
