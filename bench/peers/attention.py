"""Attention: the named workloads in float32, bfloat16 and float16, each engine in the form in which its users call it."""

import functools
import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import problem
import vllm_library

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Times max |value|; the project's own tests hold Polyhead to stricter bounds.
LARGEST_ERROR = {"f32": 2e-5, "bf16": 2.0**-6, "f16": 2.0**-8}


@dataclass
class Case:
    name: str
    batch: int
    heads: int
    kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int
    causal: bool = False
    padded: bool = False
    dtype: str = "f32"

    def __post_init__(self):
        torch.manual_seed(0)
        of_dtype = lambda *shape: torch.randn(*shape).to(DTYPES[self.dtype])
        self.query = of_dtype(self.batch, self.heads, self.query_length, self.head_dim)
        self.key = of_dtype(self.batch, self.kv_heads, self.key_length, self.head_dim)
        self.value = of_dtype(self.batch, self.kv_heads, self.key_length, self.value_dim)
        self.lengths = [self.key_length - i * 7 % (self.key_length // 2) for i in range(self.batch)] if self.padded else None

    @property
    def grouped(self):
        return self.heads != self.kv_heads

    def additive_mask(self):
        """[batch, 1, 1, key_length] of 0 and -inf, or None: how engines without key lengths are told about padding."""
        if not self.padded:
            return None
        positions = torch.arange(self.key_length)
        beyond = positions[None] >= torch.tensor(self.lengths)[:, None]
        return torch.zeros(beyond.shape).masked_fill(beyond, -torch.inf)[:, None, None]

    def flops(self):
        """As is usual: padding counts in full, a causal square half."""
        square = self.batch * self.heads * self.query_length * self.key_length
        return 2.0 * square * (self.head_dim + self.value_dim) * (0.5 if self.causal else 1.0)

    def sampled_rows(self):
        items = sorted({0, self.batch - 1})
        return items, torch.linspace(0, self.query_length - 1, min(self.query_length, 8)).long()

    def reference(self):
        """float64 from the operands as they are, on some rows of the first and the last batch item."""
        items, rows = self.sampled_rows()
        group = self.heads // self.kv_heads
        out = []
        for item in items:
            key, value = (x[item].double().repeat_interleave(group, 0) for x in (self.key, self.value))
            scores = self.query[item][:, rows].double() @ key.transpose(-1, -2) * self.head_dim**-0.5
            positions = torch.arange(self.key_length)
            if self.causal:
                scores = scores.masked_fill(positions[None] > rows[:, None], -torch.inf)
            if self.padded:
                scores = scores.masked_fill(positions >= self.lengths[item], -torch.inf)
            out.append(torch.softmax(scores, -1) @ value)
        return torch.stack(out)

    def error_of(self, out, reference):
        items, rows = self.sampled_rows()
        return (out[items][:, :, rows].double() - reference).abs().max().item()


# Each engine: (case, threads) -> name -> (function to time, function that returns [batch, heads, query_length, value_dim]).


def polyhead_engine(case, threads):
    import polyhead

    polyhead.set_num_threads(threads)
    out = torch.empty(case.batch, case.heads, case.query_length, case.value_dim, dtype=case.query.dtype)
    lengths = None if case.lengths is None else torch.tensor(case.lengths)

    def run():
        return polyhead.scaled_dot_product_attention(
            case.query, case.key, case.value, is_causal=case.causal, enable_gqa=case.grouped, key_lengths=lengths, out=out
        )

    return {"polyhead": (run, lambda: (run(), out)[1])}


def torch_engine(case, threads):
    mask = case.additive_mask()
    mask = None if mask is None else mask.to(case.query.dtype)

    def run():
        return F.scaled_dot_product_attention(
            case.query, case.key, case.value, attn_mask=mask, is_causal=case.causal, enable_gqa=case.grouped
        )

    return {"torch": (run, run)}


def vllm_engine(case, threads):
    """vLLM's CPU kernel on its paged cache: `vllm` finds K and V packed, `vllm+pack` packs them, as a one-off call must."""
    if case.head_dim % 16 or case.value_dim != case.head_dim:
        raise RuntimeError(f"head sizes {case.head_dim} and {case.value_dim} are not supported")
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        library = os.environ.get(vllm_library.VARIABLE)
        if not library:
            raise RuntimeError("no library of vLLM's kernels works here")
        torch.ops.load_library(library)
    ops, page = torch.ops._C, 128
    isa = "amx" if case.dtype == "bf16" and case.head_dim % 32 == 0 and vllm_library.has_tiles() else "vec"
    lengths = case.lengths or [case.key_length] * case.batch
    pages = -(-case.key_length // page)
    cache = torch.zeros(case.batch * pages, case.kv_heads, 2 * page, case.head_dim, dtype=case.query.dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    tables = torch.arange(case.batch * pages, dtype=torch.int32).view(case.batch, pages)
    slots = torch.cat([item * pages * page + torch.arange(length) for item, length in enumerate(lengths)])
    key, value = (
        torch.cat([x[item, :, :length].transpose(0, 1) for item, length in enumerate(lengths)]).contiguous()
        for x in (case.key, case.value)
    )
    query = case.query.transpose(1, 2).reshape(-1, case.heads, case.head_dim).contiguous()
    out = torch.empty_like(query)
    starts = torch.arange(0, (case.batch + 1) * case.query_length, case.query_length, dtype=torch.int32)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    schedule = ops.get_scheduler_metadata(
        case.batch,
        case.heads,
        case.kv_heads,
        case.head_dim,
        lengths,
        query.dtype,
        starts,
        case.causal,
        -1,
        isa,
        True,
        None,
        "auto",
    )

    def pack():
        ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, isa, 1.0, 1.0, "auto")

    def attend():
        ops.cpu_attention_with_kv_cache(
            query,
            key_cache,
            value_cache,
            out,
            starts,
            lengths,
            case.head_dim**-0.5,
            case.causal,
            None,
            -1,
            tables,
            0.0,
            schedule,
            None,
            None,
            1.0,
            1.0,
            "auto",
        )

    def result():
        attend()
        return out.view(case.batch, case.query_length, case.heads, case.head_dim).transpose(1, 2)

    pack()
    engines = {"vllm": (attend, result)}
    if case.query_length > 1:
        engines["vllm+pack"] = (lambda: (pack(), attend()), result)
    return engines


def onnxruntime_engine(case, threads):
    if case.dtype != "f32":
        raise RuntimeError(f"its attention operators do not take {case.dtype} on CPUs")
    import onnx_graphs
    from onnx import TensorProto, helper

    feeds = {
        name: np.ascontiguousarray(x.transpose(1, 2).reshape(case.batch, x.shape[2], -1).numpy())
        for name, x in (("q", case.query), ("k", case.key), ("v", case.value))
    }
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name, x in feeds.items()]
    if case.grouped:
        node = helper.make_node(
            "Attention", ["q", "k", "v"], ["o"], q_num_heads=case.heads, kv_num_heads=case.kv_heads, is_causal=int(case.causal)
        )
    else:
        names = ["q", "k", "v"]
        if case.padded:
            names += ["", "lengths"]
            inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [case.batch]))
            feeds["lengths"] = np.array(case.lengths, np.int32)
        node = helper.make_node(
            "MultiHeadAttention", names, ["o"], domain="com.microsoft", num_heads=case.heads, unidirectional=int(case.causal)
        )
    run = onnx_graphs.session([node], inputs, ["o"], [], feeds, threads)

    def result():
        out = torch.from_numpy(run())
        return out.reshape(case.batch, case.query_length, case.heads, case.value_dim).transpose(1, 2)

    return {"onnxruntime": (run, result)}


def openvino_engine(case, threads):
    if case.grouped:
        raise RuntimeError("its attention operator takes no grouped heads")
    if case.dtype == "f16":
        raise RuntimeError("it computes f16 models in other types on CPUs")
    from openvino import Type, opset13

    import openvino_graphs

    feeds = [case.query, case.key, case.value] + ([case.additive_mask()] if case.padded else [])
    parameters = [opset13.parameter(list(x.shape), Type.f32) for x in feeds]
    graph = opset13.scaled_dot_product_attention(*parameters, causal=case.causal)
    # Operands of the graph are f32; the hint makes it compute in bf16, which holds these values exactly.
    run, result = openvino_graphs.compiled(graph, parameters, [feed.float() for feed in feeds], threads, case.dtype)
    return {"openvino": (run, lambda: torch.from_numpy(result()))}


ENGINES = {
    "polyhead": polyhead_engine,
    "torch": torch_engine,
    "vllm": vllm_engine,
    "onnxruntime": onnxruntime_engine,
    "openvino": openvino_engine,
}


def part_of(dtype):
    """The name under which results of this data type stand."""
    return "attention" if dtype == "f32" else f"attention-{dtype}"


class AttentionProblem:
    def __init__(self, workload, dtype="f32"):
        self.part = part_of(dtype)
        self.case = Case(**workload, dtype=dtype)
        self.name, self.flops = self.case.name, self.case.flops()
        self.reference = self.case.reference()
        self.largest_error = LARGEST_ERROR[dtype] * self.case.value.abs().max().item()

    def engine(self, name, threads):
        return ENGINES[name](self.case, threads)

    def error_of(self, out):
        return self.case.error_of(out, self.reference)

    def measure(self, *arguments):
        return problem.measure(self, *arguments)


PROBLEMS = {part_of(dtype): functools.partial(AttentionProblem, dtype=dtype) for dtype in DTYPES}
