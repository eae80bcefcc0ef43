"""bench/peers without any peer: fair timing, results that survive crashes and interruptions, and a README made of the results."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

import report_files

ROOT = pathlib.Path(__file__).parents[2]
PEERS = ROOT / "bench" / "peers"
sys.path.append(str(PEERS))

import machine
import result_file
import supervisor
import timing
import vllm_library
from progress import Progress

# ---- timing


def test_engines_are_timed_in_turn_and_warmed_up():
    calls = []
    times = timing.interleave({name: lambda name=name: calls.append(name) for name in "abc"}, budget=0.002, threads=1)
    assert set(times) == set("abc") and len({len(of) for of in times.values()}) == 1
    assert all(len(of) >= timing.LEAST_ROUNDS and min(of) > 0 for of in times.values())
    turns = [name for index, name in enumerate(calls) if index == 0 or calls[index - 1] != name]
    followers = {(first, second) for first, second in zip(turns, turns[1:])}
    assert followers >= {
        ("a", "b"),
        ("b", "a"),
        ("a", "c"),
        ("c", "a"),
        ("b", "c"),
        ("c", "b"),
    }, "the order of rounds does not change"


def test_results_have_quartiles():
    entry = timing.entry("attention", "tiny", "torch", 2, [3e-3, 1e-3, 2e-3, 5e-3, 4e-3], 6e6, 1e-7)
    assert (entry["min_ms"], entry["q1_ms"], entry["median_ms"], entry["q3_ms"]) == pytest.approx((1, 2, 3, 4))
    assert entry["gflops"] == pytest.approx(2.0) and entry["runs"] == 5


def test_pinning_takes_a_cpu_of_each_core_first():
    siblings = lambda cpu: {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}[cpu]
    assert machine.one_cpu_a_core([0, 4, 1, 5], siblings) == [0, 1, 4, 5]
    assert machine.one_cpu_a_core([4, 5], siblings) == [4, 5]


def test_cpus_that_name_no_product_are_told_apart_by_family_and_model():
    def cpuinfo(name):
        return f"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {name}\nprocessor\t: 1\nmodel name\t: another\n"

    assert machine.cpu_name(cpuinfo("AMD EPYC")) == "AMD EPYC, family 26 model 2"
    assert machine.cpu_name(cpuinfo("Intel(R) Xeon(R) Processor @ 2.80GHz")) == (
        "Intel(R) Xeon(R) Processor @ 2.80GHz, family 26 model 2"
    )
    assert machine.cpu_name(cpuinfo("AMD EPYC 9654 96-Core Processor")) == "AMD EPYC 9654 96-Core Processor"
    assert machine.cpu_name("model name : AMD EPYC\n") == "AMD EPYC"
    assert machine.cpu_name("processor\t: 0\nBogoMIPS\t: 50\n") == "unknown CPU"


def test_load_of_others_is_seen():
    cpus = sorted(os.sched_getaffinity(0))
    load = machine.Load(cpus)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time\nend = time.monotonic() + 0.8\nwhile time.monotonic() < end: pass"]
    )
    other.wait()
    busy = load.read()
    assert busy["others"] >= 0.4 / len(cpus) and 0 <= busy["steal"] <= 1, busy


# ---- the file of results


def context(**more):
    return {
        "cpu": "x",
        "isa": "avx2",
        "commit": "abc",
        "versions": {"torch": "2"},
        "budget": 1.0,
        "started": "2026-01-01T00:00:00Z",
        **more,
    }


def results(case, engine="torch", measured="2026-01-01T01:00:00Z", threads=1):
    return [{"part": "attention", "case": case, "engine": engine, "threads": threads, "median_ms": 1.0, "measured": measured}]


def test_an_interrupted_run_goes_on_and_replaces_the_file_when_whole(tmp_path):
    path = str(tmp_path / "r.json")
    pathlib.Path(path).write_text("the results of yesterday")
    first = result_file.ResultFile(path, context(), resume=True)
    first.write()
    first.add(results("a"))
    again = result_file.ResultFile(path, context(started="2026-01-02T00:00:00Z"), resume=True)
    assert again.done() == {("attention", "a", 1)} and again.context["started"] == "2026-01-01T00:00:00Z"
    assert json.loads(pathlib.Path(path + ".part").read_text())["complete"] is False
    assert pathlib.Path(path).read_text() == "the results of yesterday"
    again.add(results("b"))
    again.finish()
    document = json.loads(pathlib.Path(path).read_text())
    assert document["complete"] is True and [result["case"] for result in document["results"]] == ["a", "b"]
    assert not os.path.exists(path + ".part")


@pytest.mark.parametrize(
    "change", [{"commit": "def"}, {"versions": {"torch": "3"}}, {"cpu": "y"}, {"isa": "sse4"}, {"budget": 2.0}]
)
def test_results_of_other_versions_are_not_mixed(tmp_path, change):
    path = str(tmp_path / "r.json")
    result_file.ResultFile(path, context(), resume=True).add(results("a"))
    assert result_file.ResultFile(path, context(**change), resume=True).done() == set()
    shutil.move(path + ".part", path)
    with pytest.raises(SystemExit, match=f"another {next(iter(change))}"):
        result_file.ResultFile(path, context(**change))


def test_a_case_measured_again_takes_the_place_of_the_old(tmp_path):
    file = result_file.ResultFile(str(tmp_path / "r.json"), context())
    file.add(results("a"))
    file.leave_out("attention", "a", "vllm", 1, "crashed", crash=True)
    file.leave_out("attention", "a", "openvino", 1, "no grouped heads")
    assert file.crashed(1) == {("attention", "a", "vllm")} and file.crashed(2) == set()
    assert file.crashed(1, since="9999") == set() and file.done("2026-01-01T02:00:00Z") == set()
    file.add(results("a", "vllm+pack"))
    assert [result["engine"] for result in file.results] == ["vllm+pack"]
    assert [note["engine"] for note in file.left_out] == ["openvino"]


def test_what_others_disturbed_is_measured_again_and_the_quieter_stays(tmp_path):
    file = result_file.ResultFile(str(tmp_path / "r.json"), context(), since="2026")
    busy = lambda case, others, ms: [{**results(case)[0], "others": others, "steal": 0.01, "median_ms": ms}]
    file.add(busy("a", 0.30, 3.0))
    file.add(busy("b", 0.01, 1.0))
    file.add(busy("c", 0.06, 2.0))
    assert file.disturbed(0.05) == {("attention", "a", 1), ("attention", "c", 1)}
    file.add(busy("a", 0.02, 1.5))
    file.add(busy("c", 0.50, 9.0))
    assert file.disturbed(0.05) == set(), "a third time"
    assert {result["case"]: result["median_ms"] for result in file.results} == {"a": 1.5, "b": 1.0, "c": 2.0}
    again = result_file.ResultFile(str(tmp_path / "r.json"), context(), since="2027")  # another day
    again.add(busy("a", 0.40, 4.0))
    assert {result["case"]: (result["median_ms"], result["tries"]) for result in again.results}["a"] == (4.0, 1)


# ---- processes that die

WORKER = """
import os, signal, sys, time
sys.path[:0] = [{peers!r}, {python!r}]
import result_file
from progress import Progress
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
progress = Progress(arguments["--worker"])
file = result_file.ResultFile(arguments["--json"])
threads = int(arguments["--threads"])
for case in ("a", "b", "c"):
    if ("attention", case, threads) in file.done(arguments["--since"]):
        continue
    measured = []
    for engine in ("polyhead", "torch", "vllm"):
        if ("attention", case, engine) in file.crashed(threads, arguments["--since"]):
            continue
        progress.at("attention", case, engine)
        if (case, engine) == ("b", "vllm"):
            {end}
        measured.append({{"part": "attention", "case": case, "engine": engine, "threads": threads, "median_ms": 1.0,
                         "measured": result_file.now()}})
    progress.nobody()
    file.add(measured)
"""


def run_with(tmp_path, end, limit=60.0):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER.format(peers=str(PEERS), python=str(ROOT / "python"), end=end))
    path = str(tmp_path / "r.json")
    options = types.SimpleNamespace(budget=0.1, part="attention", only="", engines="x", resume=False, since=result_file.now())
    file = result_file.ResultFile(path, context())
    file.add(results("a", measured="2020-01-01T00:00:00Z"))  # of an earlier run: measured again
    status = supervisor.run_workers(options, path, 1, [sys.executable, str(worker)], limit)
    return status, json.loads(pathlib.Path(path).read_text())


@pytest.mark.parametrize(
    "end, reason",
    [("os.kill(os.getpid(), signal.SIGILL)", "SIGILL"), ("os.abort()", "SIGABRT"), ("time.sleep(600)", "did not answer")],
)
def test_a_peer_that_ends_the_process_loses_its_case_alone(tmp_path, end, reason):
    status, document = run_with(tmp_path, end, 2.0 if "sleep" in end else 60.0)
    assert status == 0
    found = {(result["case"], result["engine"]) for result in document["results"]}
    assert found == {(case, engine) for case in "abc" for engine in ("polyhead", "torch", "vllm")} - {("b", "vllm")}
    (note,) = document["left_out"]
    assert (note["case"], note["engine"], note["crash"]) == ("b", "vllm", True) and reason in note["reason"]


def test_a_fault_of_our_own_ends_the_run(tmp_path):
    status, document = run_with(tmp_path, "sys.exit(3)")
    assert status == 3 and document["left_out"] == []


def test_progress_outlives_its_process(tmp_path):
    path = tmp_path / "progress"
    code = (
        f"import sys, os; sys.path.append({str(PEERS)!r}); from progress import Progress; Progress({str(path)!r}).at('p', 'c',"
        " 'e'); os.abort()"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    progress = Progress(str(path))
    assert progress.read() == ("p", "c", "e")
    progress.nobody()
    assert progress.read() is None


def test_the_first_library_that_works_is_taken(tmp_path):
    trial = tmp_path / "trial.py"
    trial.write_text(
        "import os, signal, sys\nname = sys.argv[1]\n"
        "if 'kill' in name: os.kill(os.getpid(), signal.SIGILL)\nif 'bad' in name: sys.exit('wrong result, error 1e0')\n"
    )
    found, notes = vllm_library.find(["kill.so", "bad.so", "good.so", "other.so"], [sys.executable, str(trial)])
    assert found == "good.so"
    assert notes == ["kill.so ends with signal 4", "bad.so fails: wrong result, error 1e0"]
    assert vllm_library.find(["kill.so"], [sys.executable, str(trial)])[0] is None
    assert vllm_library.find([])[0] is None


# ---- the README

REPORT = [sys.executable, str(PEERS / "report.py")]


def test_the_readme_shows_the_newest_results():
    checked = subprocess.run(REPORT + ["--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_committed_results_are_named_by_their_instruction_set():
    """Virtual machines call Zen 3 and Zen 4 alike: without it one's results would replace the other's."""
    files = sorted((PEERS.parent / "results").glob("*.json"))
    assert files
    for path in files:
        context = json.loads(path.read_text(encoding="utf-8"))["context"]
        assert f"-{context['isa']}-" in path.name, path.name


def check(folder):
    return subprocess.run(
        REPORT + ["--check", str(folder / "results"), str(folder / "README.md")], capture_output=True, text=True
    )


def made(folder, cpus):
    """A README with the text that report.py makes, and a chart's stamp, without drawing it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("peers_report", PEERS / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (folder / "results").mkdir()
    (folder / "docs").mkdir()
    for number, cpu in enumerate(cpus):
        report_files.peers_file(folder / "results" / f"{number}.json", number, cpu=cpu)
    report_files.suite_file(folder / "results" / "suite.json", 0)
    runs = module.newest_runs(str(folder / "results"))
    (folder / "README.md").write_text(f"# A\n{module.BEGIN}{module.summary(runs, str(folder / 'README.md'))}{module.END}\nB\n")
    (folder / "docs" / "speed.svg").write_text(module.stamp(runs))
    return runs


def test_a_number_typed_into_the_readme_is_found(tmp_path):
    made(tmp_path, report_files.CPUS[:1])
    assert check(tmp_path).returncode == 0, check(tmp_path).stderr
    text = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(text.replace("**1.", "**2.", 1))
    assert check(tmp_path).returncode == 1 and "not what the results say" in check(tmp_path).stderr
    (tmp_path / "README.md").write_text(text)
    report_files.peers_file(tmp_path / "results" / "9.json", 9)
    assert check(tmp_path).returncode == 1 and "drawn from other results" in check(tmp_path).stderr


def test_each_kind_of_cpu_has_its_newest_run_and_interrupted_ones_have_none(tmp_path):
    runs = made(tmp_path, [report_files.CPUS[0], report_files.CPUS[1], report_files.CPUS[0]])
    assert [os.path.basename(run.path) for run in runs] == ["2.json", "1.json"]
    text = (tmp_path / "README.md").read_text()
    assert text.count("<details>") == 2 and "0.json" not in text
    assert "| attention, 1 thread | **" in text
    document = json.loads((tmp_path / "results" / "2.json").read_text())
    (tmp_path / "results" / "2.json").write_text(json.dumps({**document, "complete": False}))
    assert check(tmp_path).returncode == 1, "an interrupted run is shown"


def test_an_older_instruction_set_on_the_same_cpu_is_a_kind_of_its_own(tmp_path):
    (run,) = made(tmp_path, report_files.CPUS[:1])
    report_files.peers_file(tmp_path / "results" / "before.json", -1)
    assert check(tmp_path).returncode == 0, "an older run of the same kind is not shown"
    report_files.peers_file(tmp_path / "results" / "forced.json", -1, isa="sse4")
    assert run.context["isa"] != "sse4" and check(tmp_path).returncode == 1


def test_a_readme_without_its_marks_is_an_error(tmp_path):
    made(tmp_path, report_files.CPUS[:1])
    (tmp_path / "README.md").write_text("# A\n")
    assert check(tmp_path).returncode == 1 and "expected one line" in check(tmp_path).stderr
