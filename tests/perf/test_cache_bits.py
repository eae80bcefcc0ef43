"""bench/cache_bits.py on operands of our own."""

import pathlib
import subprocess
import sys

import numpy as np

SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "cache_bits.py"


def run(folder):
    return subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)


def test_fewer_bits_are_less_exact(tmp_path):
    random = np.random.default_rng(3)
    for layer in (0, 4):
        for what in ("query", "key", "value"):
            np.save(tmp_path / f"layer{layer}_{what}.npy", random.standard_normal((2, 3, 40, 32)).astype(np.float32))
    np.save(tmp_path / "key_lengths.npy", np.array([40, 9]))
    result = run(tmp_path)
    assert result.returncode == 0, result.stderr
    header, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]
    assert header == ["keys", "values", "layer 0", "layer 4"] and len(rule) == 4
    errors = {(row[0], row[1]): [float(cell) for cell in row[2:]] for row in rows}
    exact = errors["8 bits", "8 bits"]
    assert all(0.1 < percent < 2 for percent in exact), exact
    for bits, others in errors.items():
        if bits != ("8 bits", "8 bits"):
            assert all(other > 4 * percent for other, percent in zip(others, exact)), (bits, others)


def test_a_folder_without_operands_is_named(tmp_path):
    result = run(tmp_path)
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr and "real_operands.py" in result.stderr
