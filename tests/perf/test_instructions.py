"""Instruction counts: the judgement, the record, and where POLYHEAD_INSTRUCTION_COUNTS names the built driver, callgrind itself."""

import json
import os
import shutil

import pytest

from polyhead_perf import instructions
from polyhead_perf.errors import PerfError


def test_rises_fail_and_falls_are_told():
    lines, failed = instructions.judge({"a": 1000, "b": 1000, "c": 1000}, {"a": 1049, "b": 1050, "c": 940})
    assert failed == "b takes 5% or more instructions more"
    assert lines[1].split() == ["b", "1000", "1050", "+5.00%"] and lines[-1].startswith("fallen by 5% or more: c;")
    assert instructions.judge({"a": 1000}, {"a": 951}) == ([*instructions.judge({"a": 1000}, {"a": 951})[0]], "")


def test_record_and_calls_must_agree():
    _, failed = instructions.judge({"a": 1000, "gone": 5}, {"a": 1000, "new": 7})
    assert failed == "new is not recorded; gone is recorded but no longer counted"


def test_record(tmp_path):
    path = tmp_path / "counts.json"
    instructions.write_record(path, "gcc 12", {"a": 1})
    instructions.write_record(path, "clang 19", {"a": 2})
    instructions.write_record(path, "gcc 12", {"a": 3})
    assert instructions.read_record(path) == {"gcc 12": {"a": 3}, "clang 19": {"a": 2}}
    path.write_text(json.dumps({"schema": "other", "counts": {}}))
    with pytest.raises(PerfError, match="counts.json: is not a record"):
        instructions.read_record(path)


driver = pytest.mark.skipif("POLYHEAD_INSTRUCTION_COUNTS" not in os.environ or shutil.which("valgrind") is None,
                            reason="POLYHEAD_INSTRUCTION_COUNTS names no driver, or there is no valgrind")


@driver
def test_counts_are_the_same_twice_and_a_doubled_call_is_found(tmp_path, capsys):
    program, record = os.environ["POLYHEAD_INSTRUCTION_COUNTS"], tmp_path / "counts.json"
    assert instructions.main([program, "--record", str(record), "--accept"], "instructions") == 0
    counts = instructions.read_record(record)[instructions.build_of(program)]
    doubled = next(name for name in counts if name.startswith("gemm/1x"))
    capsys.readouterr()
    assert instructions.main([program, "--record", str(record), f"--twice={doubled}"], "instructions") == 1
    said = capsys.readouterr().out
    assert f"FAILED: {doubled} takes 5% or more instructions more." in said
    changes = {line.split()[0]: float(line.split()[-1].rstrip("%")) for line in said.splitlines() if line.endswith("%")}
    assert set(changes) == set(counts)
    assert changes.pop(doubled) == pytest.approx(100, abs=2)
    assert max(map(abs, changes.values())) < 0.1, "counts of the same build"


@driver
def test_without_a_record_of_this_compiler_it_is_skipped(tmp_path, capsys):
    record = tmp_path / "counts.json"
    instructions.write_record(record, "another compiler", {"a": 1})
    assert instructions.main([os.environ["POLYHEAD_INSTRUCTION_COUNTS"], "--record", str(record)], "instructions") == 77
    assert "skipped: " in capsys.readouterr().out
