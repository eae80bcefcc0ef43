"""Tests of the installed Python package. Those in with_torch/ are collected where PyTorch is installed."""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # reference.py, for the subfolder too

collect_ignore = [] if importlib.util.find_spec("torch") else ["with_torch"]


@pytest.fixture
def generator(request):
    """Random numbers that differ between tests and repeat from run to run."""
    return np.random.default_rng(list(request.node.name.encode()))
