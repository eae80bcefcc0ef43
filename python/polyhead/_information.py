"""What Polyhead runs on, info(), and how it would compute, explain()."""

import json
import pathlib
import platform

from . import _polyhead


def info() -> dict:
    """What this process's Polyhead is and runs on.

    Keys: version; cpu (model name); isa (in use) and available_isas, plainest first; threads; caches, a list of
    {"level", "type", "bytes"} of the first CPU, empty where the system does not tell; description, the same for people.
    """
    return {**_polyhead._info(), "cpu": _cpu_name(), "caches": _caches()}


def explain(
    *,
    heads,
    query_length,
    key_length,
    head_dim,
    batch=1,
    kv_heads=None,
    value_dim=None,
    dtype="float32",
    key_dtype=None,
    out_dtype=None,
    causal=None,
    window=(-1, -1),
    sink_token_length=0,
    masks=(),
    block_size=None,
    scale=None,
    softcap=0.0,
    alibi=False,
    sink=False,
    relative_bias=None,
    length_invariant=False,
    precision="strict",
    score_mod=None,
    text=False,
):
    """How attention of these sizes would be computed: kernel, tiles, pieces, expected time, what keeps it from being faster.

    dtype: of queries, "float32", "float16" or "bfloat16"; key_dtype, out_dtype: of keys and values, and of the result, where
    they are of others; key_dtype may be "int8", a KvCache's. causal: None, "top_left", "bottom_right" or "offset". window:
    (left, right), -1 is no limit; sink_token_length: so many first keys beside it. masks: names of the mask's other parts,
    "key_lengths", "query_lengths", "offsets", "packed", "prefix", "segments", "boolean", "bias". block_size: (queries, keys) of
    a block mask. score_mod: a ScoreMod; its classifier, where it has one, is asked about the tiles. Returns a dict, whose
    members docs/architecture.md lists ("mask": all of the mask's parts), or with text=True the same for people.
    """
    told = _polyhead._explain(
        batch, heads, kv_heads, query_length, key_length, head_dim, value_dim, dtype, key_dtype, out_dtype, causal,
        tuple(window), sink_token_length, list(masks), block_size, scale, softcap, alibi, sink, relative_bias, length_invariant,
        precision, score_mod, text,
    )
    return told if text else json.loads(told)


def _cpu_name() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _caches() -> list:
    caches = []
    for folder in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / field).read_text().strip() for field in ("level", "type", "size"))
        except OSError:
            continue
        units = {"K": 2**10, "M": 2**20, "G": 2**30}
        number = int(size.rstrip("KMG")) * units.get(size[-1:], 1)
        caches.append({"level": int(level), "type": kind.lower(), "bytes": number})
    return caches
