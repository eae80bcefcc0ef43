"""Result files: what is read, and that whatever is wrong is an error that names file and entry."""

import copy
import json
import os

import pytest

from polyhead_perf import compatibility, results
from polyhead_perf.errors import PerfError


def entry(name="gemm/avx2/threads:1/real_time", **changes):
    return {"name": name, "run_name": name, "run_type": "iteration", "repetitions": 2, "repetition_index": 0, "threads": 1,
            "iterations": 10, "real_time": 2.0, "cpu_time": 1.0, "time_unit": "us", "GFLOP/s": 50.0, "label": "bound: fma avx2", **changes}


def document(*entries, **context):
    return {"context": {"cpu": "Some CPU", "isa": "avx2", "num_cpus": 2, **context}, "benchmarks": list(entries)}


def load(tmp_path, content, name="result.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return results.load(path)


def test_reads_times_in_seconds_and_drops_aggregates(tmp_path):
    other = "attention/tiny/process_time"
    loaded = load(tmp_path, document(entry(), entry(repetition_index=1, real_time=3.0), entry(other, time_unit="ms"),
                                     entry(run_type="aggregate", aggregate_name="mean", name="gemm_mean")))
    assert [(one.name, one.repetition_index) for one in loaded.entries] == [(entry()["name"], 0), (entry()["name"], 1), (other, 0)]
    first, _, last = loaded.entries
    assert first.time_kind == "real" and first.time == pytest.approx(2e-6)
    assert last.time_kind == "cpu" and last.time == pytest.approx(1e-3)
    assert first.base_name == "gemm/avx2/threads:1" and last.base_name == "attention/tiny"
    assert first.counters == {"GFLOP/s": 50.0} and first.bound == "fma avx2"
    assert list(loaded.by_name()) == [entry()["name"], other]


@pytest.mark.parametrize("content, says", [
    ("{", "is not JSON"),
    ("[]", "no list 'benchmarks'"),
    ({"context": {}, "benchmarks": {}}, "no list 'benchmarks'"),
    ({"benchmarks": [entry()]}, "no object 'context'"),
    (document(), "no measurements"),
    (document(entry(run_type="aggregate")), "no measurements"),
    (document({**entry(), "name": ""}), "entry 0 of 'benchmarks' has no name"),
    (document(entry(), entry()), "gemm/avx2/threads:1/real_time occurs twice"),
    (document(entry(real_time=float("nan"))), "gemm/avx2/threads:1/real_time: real_time is nan"),
    (document(entry(cpu_time=float("inf"))), "cpu_time is inf"),
    (document(entry(real_time=-1.0)), "real_time is -1.0"),
    (document(entry(real_time="2.0")), "real_time is '2.0'"),
    (document(entry(time_unit="min")), "time_unit is 'min'"),
    (document(entry(iterations=-1)), "iterations is -1"),
    (document(entry(run_type="other")), "run_type is 'other'"),
    (document(entry(**{"GB/s": float("nan")})), "counter 'GB/s' is nan"),
    (document(entry(**{"GB/s": "fast"})), "counter 'GB/s' is 'fast'"),
    (document(entry(**{"GB/s": 10**400})), "counter 'GB/s' is inf"),
    (document(entry(real_time=10**400)), "real_time is inf"),
    (document(entry(real_time=1e300)), "real_time is 1e+300"),
    (document(entry(real_time=1e-300)), "real_time is 1e-300"),
    (document(entry(time_unit=["us"])), "time_unit is ['us']"),
    (document(entry(run_type={"of": 1})), "run_type is '{'of': 1}'"),
    (document(entry(run_name=5)), "run_name is 5"),
    (document(entry(run_name=None)), "run_name is None"),
    (document(entry(run_name="\x1b[31mred")), r"run_name is '\x1b[31mred'"),
    (document(entry(label=["bound"])), "label is ['bound']"),
    (document(entry(run_name="\ud800")), "half of a character"),
    ("[" * 100000, "nested too deeply"),
    ('{"context": {}, "benchmarks": [' + "9" * 5000 + "]}", "Exceeds the limit"),
])
def test_refuses(tmp_path, content, says):
    with pytest.raises(PerfError) as error:
        load(tmp_path, content)
    assert str(error.value).startswith(str(tmp_path / "result.json"))
    assert says in str(error.value)


def test_refuses_missing_file_and_other_bytes(tmp_path):
    with pytest.raises(PerfError, match="nowhere.json: can't be read"):
        results.load(tmp_path / "nowhere.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PerfError, match="bytes.json: can't be read"):
        results.load(tmp_path / "bytes.json")


def test_a_byte_order_mark_does_no_harm_and_a_pipe_is_not_waited_for(tmp_path):
    assert load(tmp_path, "\ufeff" + json.dumps(document(entry()))).entries
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(PerfError, match="pipe.json: can't be read: it is not a file"):
        results.load(tmp_path / "pipe.json")


def test_a_wrong_result_keeps_its_message_and_is_refused_by_comparisons(tmp_path):
    loaded = load(tmp_path, document(entry(error_occurred=True, error_message="off by 1", real_time=0.0)))
    assert loaded.entries[0].error == "off by 1"
    with pytest.raises(PerfError, match="result.json: gemm/.* reports an error: off by 1"):
        loaded.refuse_errors()


def test_what_a_benchmark_skips_by_itself_is_no_measurement(tmp_path):
    loaded = load(tmp_path, document(entry(), entry("other", skipped=True, skip_message="not here")))
    assert [one.name for one in loaded.entries] == [entry()["name"]]


def pair(first, second, tmp_path):
    return load(tmp_path, first, "a.json"), load(tmp_path, second, "b.json")


def test_contexts(tmp_path):
    harmless = {"date": "later", "load_avg": [9], "commit": "abc", "compiler": "clang 19", "slow_down": "3"}
    compatibility.check_contexts(*pair(document(entry()), document(entry(), **harmless), tmp_path), set())
    for key, value in (("cpu", "Another CPU"), ("isa", "avx512"), ("num_cpus", 4)):
        files = pair(document(entry()), document(entry(), **{key: value}), tmp_path)
        with pytest.raises(PerfError, match=f"b.json: context '{key}' is .*a.json"):
            compatibility.check_contexts(*files, set())
        compatibility.check_contexts(*files, {key})


@pytest.mark.parametrize("change, says", [
    ({"time_unit": "ms"}, "b.json: gemm.*: time_unit is ms, but us in .*a.json"),
    ({"threads": 2}, "b.json: gemm.*: threads is 2, but 1 in"),
    ({"real_time": 0.0}, "b.json: gemm.*: real_time is 0, expected more than 0"),
    ({"error_occurred": True, "error_message": "off"}, "b.json: gemm.* reports an error: off"),
])
def test_entries(tmp_path, change, says):
    files = pair(document(entry()), document(entry(**change)), tmp_path)
    with pytest.raises(PerfError, match=says):
        compatibility.check_entries(*files)
    compatibility.check_entries(files[0], copy.deepcopy(files[0]))


def test_names():
    compatibility.check_names({"x", "y"}, {"y", "x"}, ("A", "B"))
    with pytest.raises(PerfError, match=r"B: has no y \(and 1 more\), which A has"):
        compatibility.check_names({"x", "y", "z"}, {"x"}, ("A", "B"))
    with pytest.raises(PerfError, match="A: has no y, which B has"):
        compatibility.check_names({"x"}, {"x", "y"}, ("A", "B"))
    with pytest.raises(PerfError, match="B: has x/real_time where A has x: they are timed by different clocks"):
        compatibility.check_names({"x"}, {"x/real_time"}, ("A", "B"))
