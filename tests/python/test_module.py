"""The module as a binary and as a guest in other people's processes."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import polyhead
import pytest
from polyhead import _polyhead

library = pathlib.Path(_polyhead.__file__)


def readelf(*options):
    return subprocess.run(["readelf", "--wide", *options, str(library)], capture_output=True, text=True, check=True).stdout


def test_no_openmp_is_needed():
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic"))
    assert any(name.startswith("libstdc++") for name in needed), needed
    assert not [name for name in needed if re.match(r"lib(gomp|omp|iomp)", name)]


def test_thread_local_storage_is_not_initial_exec():
    """Static TLS makes an import fail or succeed by its place in the order of imports."""
    assert "STATIC_TLS" not in readelf("--dynamic")
    assert "TPOFF" not in readelf("--relocs")


def test_only_the_entry_point_is_exported():
    symbols = readelf("--dyn-syms").splitlines()
    exported = [line.split()[-1] for line in symbols if re.search(r"\b(GLOBAL|WEAK)\s+DEFAULT\s+\d+\s", line)]
    assert exported == ["PyInit__polyhead"]


others = [name for name in ("numpy", "torch", "sklearn", "tokenizers") if importlib.util.find_spec(name)]


@pytest.mark.parametrize("other", others)
@pytest.mark.parametrize("first", [True, False])
def test_order_of_imports(other, first):
    names = ["polyhead", other] if first else [other, "polyhead"]
    code = f"import {names[0]}, {names[1]}, numpy as np; q = np.ones((1, 4, 256, 64), 'f4'); "
    code += "print(abs(polyhead.scaled_dot_product_attention(q, q, q) - 1).max() < 4e-6)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout == "True\n", result.stderr


def test_importing_starts_no_thread():
    code = "import os, polyhead; print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert result.stdout == "1\n", result.stderr


def test_info():
    info = polyhead.info()
    assert info["version"] == polyhead.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["isa"] in info["available_isas"] and "reference" in info["available_isas"]
    assert info["threads"] >= 1 and info["cpu"]
    assert all(cache["bytes"] > 0 for cache in info["caches"])
    assert info["version"] in info["description"]


def test_every_public_name_exists_and_is_documented():
    for name in polyhead.__all__:
        assert name == "__version__" or getattr(polyhead, name).__doc__, name
