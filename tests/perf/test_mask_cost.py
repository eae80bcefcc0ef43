"""bench/peers/mask_cost.py without any peer: how its rows are judged, told and chosen."""

import ast
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench" / "peers"))

import mask_cost
from mask_cost import BUILT_IN, FLEX, OURS, Row

TIMES = {"dense": [1.0, 2.0, 4.0], "causal": [0.5, 1.2, 2.0]}


def test_a_ratio_is_the_median_of_the_rounds():
    result = mask_cost.judge(Row("4,096", "causal", "dense", 0.53), TIMES, {}, {})
    assert result["ratio"] == pytest.approx(0.5) and result["met"] is True  # not 1.2 / 2, which the medians of the times give
    assert (result["q1"], result["q3"]) == pytest.approx((0.5, 0.55))
    assert (result["median_ms"], result["base_ms"], result["rounds"]) == (1200, 2000, 3)
    assert "area_share" not in result
    assert mask_cost.judge(Row("4,096", "causal", "dense", 0.49), TIMES, {}, {})["met"] is False
    assert "met" not in mask_cost.judge(Row("4,096", "causal", "dense"), TIMES, {}, {})


def test_a_share_counts_the_pairs_that_are_allowed():
    result = mask_cost.judge(Row("g", "causal", "dense", 1.15, by_area=True), TIMES, {"causal": 30, "dense": 60}, {})
    assert result["area_share"] == 0.5 and result["ratio"] == pytest.approx(1.0) and result["met"] is True


def test_what_could_not_run_is_told_and_fails_unless_it_is_the_rival():
    ours = mask_cost.judge(Row("g", OURS, FLEX, 1.0), {FLEX: [1.0, 1.0]}, {}, {OURS: "its result is wrong"})
    rival = mask_cost.judge(Row("g", OURS, FLEX, 1.0), {OURS: [1.0, 1.0]}, {}, {FLEX: "NotImplementedError: on CPUs"})
    assert mask_cost.status_of([ours]) == 1 and mask_cost.status_of([rival]) == 0
    assert "left out: through xsimd: its result is wrong" in mask_cost.line_of(ours)
    assert "left out: FlexAttention: NotImplementedError: on CPUs" in mask_cost.line_of(rival)


def test_a_limit_that_is_not_kept_fails():
    kept, not_kept = ({"met": met} for met in (True, False))
    assert mask_cost.status_of([kept, {}]) == 0 and mask_cost.status_of([kept, not_kept]) == 1


def test_lines_say_limit_and_verdict():
    line = mask_cost.line_of(mask_cost.judge(Row("4,096", "causal", "dense", 0.53), TIMES, {}, {}))
    assert line.split() == (
        "4,096 causal 1200.000 ms, dense 2000.000 ms: 0.500 (0.500 to 0.550), at most 0.53: met".split()
    )
    line = mask_cost.line_of(mask_cost.judge(Row("g", "causal", "dense", 0.4, by_area=True), TIMES, {"causal": 1, "dense": 1}, {}))
    assert "0.500 of its 1.0000 share" in line and line.endswith("at most 0.4: NOT MET")
    times = {OURS: [1.0, 1.0], BUILT_IN: [0.9, 0.9], FLEX: [2.0, 2.0]}
    line = mask_cost.line_of(mask_cost.judge(Row("g", OURS, FLEX, 1.0), times, {}, {}))
    assert "FlexAttention 2000.000 ms, built in 900.000 ms: 0.500" in line
    assert mask_cost.line_of(mask_cost.judge(Row("g", "causal", "dense"), TIMES, {}, {})).endswith("no limit")


class Call:
    """As mask_cases.py's."""

    def __init__(self, right=True, pairs=8):
        self.right, self.count, self.calls = right, pairs, 0

    def run(self):
        self.calls += 1

    def is_right(self):
        return self.right

    def pairs(self):
        return self.count


def test_calls_are_checked_before_they_are_timed(monkeypatch):
    monkeypatch.setattr(mask_cost, "ROWS", [Row("g", "good", "dense", by_area=True), Row("g", "wrong", "dense")])
    calls = {"dense": Call(), "good": Call(pairs=2), "wrong": Call(right=False)}

    def refuses():
        raise NotImplementedError("not on CPUs\nand more")

    make = lambda mods: {**calls, "refused": refuses}
    (times, areas, left_out), load = mask_cost.measure("g", make, None, 0.001, sorted(os.sched_getaffinity(0)))
    assert set(times) == {"dense", "good"} and len(times["good"]) == len(times["dense"]) >= 7
    assert calls["wrong"].calls == 0 and set(load) == {"others", "steal"}
    assert areas == {"dense": 8, "good": 2}
    assert left_out == {"wrong": "its result is wrong", "refused": "NotImplementedError: not on CPUs"}


def test_groups_are_chosen_by_name(capsys):
    everything = mask_cost.arguments([]).groups
    assert everything[0] == "4,096" and mask_cost.flex_name("tanh cap", 128) in everything
    assert mask_cost.arguments(["--only", "16,384", "--only", "ALiBi"]).groups == ["16,384", "ALiBi, D 64", "ALiBi, D 128"]
    without = mask_cost.arguments(["--without-flex"]).groups
    assert "block tables" in without and not any("D 64" in group for group in without)
    for wrong, message in ((["--only", "4096"], "is '4096', expected a part of one of: 4,096"), (["--seconds", "0"], "is 0.0, expected")):
        with pytest.raises(SystemExit):
            mask_cost.arguments(wrong)
        assert message in capsys.readouterr().err


def test_promises_are_the_documented_ones():
    limits = {(row.group, row.case): (row.base, row.limit, row.by_area) for row in mask_cost.ROWS if row.limit is not None}
    assert limits[("4,096", "causal")] == ("dense", 0.53, False)
    assert limits[("4,096", "blocks 25 %")] == ("dense", 0.30, False)
    for window in ("causal window 256", "window 256 both ways", "window 256, 4 kept"):
        assert limits[("16,384", window)] == ("dense", 1.35, True)
    assert limits[("64 sequences", "packed")] == ("padded", 1.15, True)
    assert {case: limits[("1,024", case)][1] for case in ("bias [1,H,T,S]", "ALiBi", "softcap", "ALiBi by xsimd", "tanh cap by xsimd")} == {
        "bias [1,H,T,S]": 1.3, "ALiBi": 1.1, "softcap": 1.35, "ALiBi by xsimd": 1.15, "tanh cap by xsimd": 1.3,
    }
    assert limits[("1,024", "ALiBi by xsimd")][0] == "ALiBi" and limits[("1,024", "tanh cap by xsimd")][0] == "softcap"
    assert all(limits[(mask_cost.flex_name(function, dim), OURS)] == (FLEX, 1.0, False)
               for function in mask_cost.FLEX_FUNCTIONS for dim in mask_cost.FLEX_DIMS)


def test_every_row_has_its_calls():
    """mask_cases.py needs torch, so its text is read: the groups of the rows, and in each the names that they compare."""
    tree = ast.parse((ROOT / "bench" / "peers" / "mask_cases.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    groups = next(node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GROUPS")
    calls = {}
    for key, value in zip(groups.keys, groups.values):
        if not isinstance(key, ast.Constant):
            continue  # FlexAttention's, whose names are mask_cost.py's own
        made = [node for node in ast.walk(functions[value.id]) if isinstance(node, ast.Dict)]
        calls[key.value] = {name.value for node in made for name in node.keys if isinstance(name, ast.Constant)}
    rows = [row for row in mask_cost.ROWS if row.base != FLEX]
    assert set(calls) == {row.group for row in rows}
    for row in rows:
        assert {row.case, row.base} <= calls[row.group], (row.group, row.case)
