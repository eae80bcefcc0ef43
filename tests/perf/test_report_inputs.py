"""What the report takes from a folder, and what it refuses by name."""

import json

import pytest

import report_files
from polyhead_perf import report_inputs
from polyhead_perf.errors import PerfError


def edited(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_names_give_instruction_set_and_threads():
    split = report_inputs.split_name
    assert split("attention/tiny/avx2/threads:2/process_time/real_time", "sse4") == ("attention/tiny", "avx2", 2)
    assert split("gemm/512x512/avx512_bf16/min_time:0.5", "") == ("gemm/512x512", "avx512_bf16", 1)
    assert split("attention/b=1,h=2", "neon") == ("attention/b=1,h=2", "neon", 1)
    assert split("avx2", "sse4") == ("avx2", "avx2", 1)


def test_plugins_are_engines(tmp_path):
    report_files.suite_file(tmp_path / "a.json", 0, **{"plugin mine": "a plugin", "plugin": "no engine"})

    def add(document):
        document["benchmarks"].append(report_files.entry("attention/tiny/mine/threads:2/process_time/real_time", 1.0, 5.0, 1.0))

    edited(tmp_path / "a.json", add)
    found = [of for of in report_inputs.read_folder(tmp_path).results if (of.name, of.threads) == ("attention/tiny", 2)]
    assert [(of.engine, of.isa) for of in found] == [("Polyhead", "avx2"), ("mine", "")]


def test_repetitions_become_a_median_with_quartiles(tmp_path):
    times = [1.0, 9.0, 2.0, 3.0, 2.5]
    entries = [
        report_files.entry("a/avx2/threads:1/real_time", ms, 10 / ms, 1, repetition=index) for index, ms in enumerate(times)
    ]
    aggregate = {
        **entries[0],
        "name": "a/avx2/threads:1/real_time_mean",
        "run_type": "aggregate",
        "aggregate_name": "mean",
        "real_time": 3.5,
    }
    (tmp_path / "a.json").write_text(json.dumps({"context": report_files.context(0), "benchmarks": entries + [aggregate]}))
    (result,) = report_inputs.read_folder(tmp_path).results
    assert result.seconds == pytest.approx(2.5e-3) and result.quartiles == pytest.approx((2e-3, 3e-3))
    assert result.gflops == pytest.approx(4.0) and (result.name, result.isa, result.threads) == ("a", "avx2", 1)


def test_newest_result_of_each_series_counts(tmp_path):
    report_files.suite_file(tmp_path / "z.json", 1, {"attention/tiny": 1.0})
    report_files.suite_file(tmp_path / "a.json", 5, {"attention/tiny": 4.0})
    inputs = report_inputs.read_folder(tmp_path)
    newest = {result.series: result for result in inputs.newest()}
    assert [run.file for run in inputs.runs] == ["z.json", "a.json"]
    assert len(newest) == len(report_files.SUITE) * 2 and {result.run.file for result in newest.values()} == {"a.json"}


def test_other_files_are_named_and_left_out(tmp_path):
    report_files.peers_file(tmp_path / "peers.json", 0)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "older").mkdir()
    inputs = report_inputs.read_folder(tmp_path)
    assert [warning.partition(":")[0] for warning in inputs.warnings] == ["list.json", "notes.txt", "older/", "other.json"]
    assert len(inputs.runs) == 1


def test_empty_and_missing_folders(tmp_path):
    with pytest.raises(PerfError, match="no result files"):
        report_inputs.read_folder(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(PerfError, match="no result files.*notes.txt"):
        report_inputs.read_folder(tmp_path)
    with pytest.raises(PerfError, match="expected a folder.*found nothing"):
        report_inputs.read_folder(tmp_path / "none")
    with pytest.raises(PerfError, match="expected a folder.*found a file"):
        report_inputs.read_folder(tmp_path / "notes.txt")


SUITE_FAULTS = {
    "benchmarks[0] without a time": (lambda d: d["benchmarks"][0].pop("real_time"), "attention/bert-128/.*real_time"),
    "a time of 0": (
        lambda d: d["benchmarks"][0].update(real_time=0),
        "attention/bert-128/.*real_time is 0.0, expected a time above 0",
    ),
    "not a number": (lambda d: d["benchmarks"][1].update({"GFLOP/s": float("nan")}), "attention/bert-512/.*GFLOP/s"),
    "a counter that is a text": (lambda d: d["benchmarks"][1].update({"GB/s": "fast"}), "attention/bert-512/.*GB/s"),
    "another unit": (lambda d: d["benchmarks"][0].update(time_unit="h"), "attention/bert-128/.*time_unit"),
    "a negative roof": (lambda d: d["benchmarks"][0].update(roof=-1.0), "attention/bert-128/.*'roof' is -1"),
    "no context": (lambda d: d.pop("context"), "context"),
    "no date": (lambda d: d["context"].pop("date"), r"context\.date: expected a date"),
    "a date that is none": (lambda d: d["context"].update(date="yesterday"), r"context\.date: expected a date.*yesterday"),
    "no machine": (lambda d: (d["context"].pop("cpu"), d["context"].pop("host_name")), r"context\.cpu"),
    "no measurement": (lambda d: d["benchmarks"].clear(), "no measurements"),
}


@pytest.mark.parametrize("fault", SUITE_FAULTS)
def test_a_damaged_suite_file_is_an_error_that_names_file_and_field(tmp_path, fault):
    change, message = SUITE_FAULTS[fault]
    report_files.suite_file(tmp_path / "good.json", 0)
    report_files.suite_file(tmp_path / "bad.json", 1)
    edited(tmp_path / "bad.json", change)
    with pytest.raises(PerfError, match=rf"bad\.json.*{message}"):
        report_inputs.read_folder(tmp_path)


PEER_FAULTS = {
    "a missing median": (lambda d: d["results"][3].pop("median_ms"), r"results\[3\]\.median_ms"),
    "a median of 0": (lambda d: d["results"][0].update(median_ms=0), r"results\[0\]\.median_ms"),
    "infinity": (lambda d: d["results"][0].update(gflops=float("inf")), r"results\[0\]\.gflops"),
    "threads as a text": (lambda d: d["results"][0].update(threads="2"), r"results\[0\]\.threads"),
    "a quartile that is none": (lambda d: d["results"][0].update(q1_ms=-1), r"results\[0\]\.q1_ms"),
    "no engine": (lambda d: d["results"][2].update(engine=""), r"results\[2\]\.engine"),
    "a result twice": (lambda d: d["results"].append(d["results"][0]), "is there twice"),
    "an entry that is a list": (lambda d: d["results"].append([]), "expected an object"),
    "no results": (lambda d: d["results"].clear(), "results: expected a list"),
    "no cpu": (lambda d: d["context"].pop("cpu"), r"context\.cpu"),
    "versions as a list": (lambda d: d["context"].update(versions=[1]), r"context\.versions"),
}


@pytest.mark.parametrize("fault", PEER_FAULTS)
def test_a_damaged_peers_file_is_an_error_that_names_file_and_field(tmp_path, fault):
    change, message = PEER_FAULTS[fault]
    report_files.peers_file(tmp_path / "bad.json", 1)
    edited(tmp_path / "bad.json", change)
    with pytest.raises(PerfError, match=rf"bad\.json.*{message}"):
        report_inputs.read_folder(tmp_path)


def test_half_a_file_is_an_error_and_all_faults_are_told(tmp_path):
    report_files.peers_file(tmp_path / "cut.json", 0)
    (tmp_path / "cut.json").write_text((tmp_path / "cut.json").read_text()[:-20])
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PerfError, match="binary.json: can't be read: it is not UTF-8 text.*cut.json: is not JSON"):
        report_inputs.read_folder(tmp_path)


def test_doubts_about_a_run_are_kept(tmp_path):
    report_files.suite_file(
        tmp_path / "a.json", 0, slow_down="10", load_avg=[1.5, 1, 1], commit="1234567-dirty", governor="powersave"
    )
    (run,) = report_inputs.read_folder(tmp_path).runs
    assert run.doubts == ["slowed down on purpose (slow_down 10)"]
    assert run.cautions == ["uncommitted changes", "frequency scaling", "busy machine: load 1.5 at the start"]


def test_the_committed_results_are_read():
    import pathlib

    inputs = report_inputs.read_folder(pathlib.Path(__file__).parents[2] / "bench" / "results")
    assert any(run.peers is not None for run in inputs.runs)
