"""The calls that mask_cost.py times: attention under masks and with changed scores, ours and torch's compiled FlexAttention, each
with the formula that it is checked against."""

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Callable

import polyhead
import torch

import mask_cost

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
LARGEST_ERROR = 2e-5  # times the largest value, as attention.py has it

# What polyhead_add_score_mod compiles a source with.
ISA_FLAGS = {
    "sse4": ["-msse4.2"],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"],
}
ISA_FLAGS["avx512_bf16"] = ISA_FLAGS["amx"] = ISA_FLAGS["avx512"]


class Alibi(ctypes.Structure):
    _fields_ = [("slopes", ctypes.c_void_p), ("offset", ctypes.c_int32)]


class Softcap(ctypes.Structure):
    _fields_ = [("cap", ctypes.c_float)]


class Documents(ctypes.Structure):
    _fields_ = [("documents", ctypes.c_void_p)]


class Window(ctypes.Structure):
    _fields_ = [("left", ctypes.c_int32)]


class ScoreMods:
    """score_mods.cpp, compiled for the instruction set that Polyhead runs on."""

    def __init__(self):
        isa = polyhead.info()["isa"]
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "score_mods.so")
            command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-shared", "-fPIC", "-w", *ISA_FLAGS.get(isa, [])]
            for include in ("include", os.path.join("examples", "score_mod")):
                command += ["-I", os.path.join(ROOT, include)]
            done = subprocess.run([*command, os.path.join(HERE, "score_mods.cpp"), "-o", library], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"score_mods.cpp does not compile:\n{done.stderr[-2000:]}")
            self.library = ctypes.CDLL(library)  # stays loaded when the file is gone
        self.kept = []

    def make(self, name, context, *keep, classifies=False):
        """polyhead.ScoreMod of <name>_change; `keep`: whose memory the context points to."""
        self.kept += [context, *keep]
        functions = [getattr(self.library, f"{name}_change")] + [getattr(self.library, f"{name}_classify")] * classifies
        return polyhead.ScoreMod(*functions, context=ctypes.addressof(context), name=name)


@dataclass
class Problem:
    """[batch, heads, length, dim] of queries, keys and values, float32."""

    batch: int
    heads: int
    length: int
    dim: int

    def __post_init__(self):
        torch.manual_seed(0)
        self.query, self.key, self.value = (torch.randn(self.batch, self.heads, self.length, self.dim) for _ in range(3))
        self.rows = torch.linspace(0, self.length - 1, min(self.length, 16)).long()
        self.items = sorted({0, self.batch - 1})

    def reference(self, change):
        """float64, on some rows of the first and the last batch item; change(score, batch, head, query, key) -> score."""
        heads, keys = torch.arange(self.heads)[:, None, None], torch.arange(self.length)
        out = []
        for item in self.items:
            query, key, value = (x[item].double() for x in (self.query, self.key, self.value))
            scores = query[:, self.rows] @ key.transpose(-1, -2) * self.dim**-0.5
            scores = change(scores, torch.tensor(item), heads, self.rows[None, :, None], keys[None, None])
            out.append(torch.softmax(scores, -1) @ value)
        return torch.stack(out)

    def error_of(self, out, change):
        """By the largest value; infinite for a NaN."""
        error = (out[self.items][:, :, self.rows].double() - self.reference(change)).abs().max() / self.value.abs().max()
        return error.item() if torch.isfinite(error) else float("inf")


def plain(score, batch, head, query, key):
    return score


def only(sees):
    """A formula that hides what sees(batch, head, query, key) is false for."""
    return lambda score, *places: torch.where(sees(*places), score, -torch.inf)


@dataclass
class Call:
    run: Callable  # to be timed
    result: Callable  # [batch, heads, length, dim]
    problem: Problem
    change: Callable  # the formula

    def is_right(self):
        return self.problem.error_of(self.result(), self.change) <= LARGEST_ERROR

    def pairs(self):
        """Of query and key that are allowed, in all heads."""
        problem = self.problem
        queries, keys, pairs = torch.arange(problem.length), torch.arange(problem.length)[None], 0
        for item in range(problem.batch):
            for rows in queries.split(128):
                score = torch.zeros(1, len(rows), problem.length)
                score = self.change(score, torch.tensor(item), torch.zeros(1, 1, 1).long(), rows[None, :, None], keys[None])
                pairs += int((score > -torch.inf).sum())
        return pairs * problem.heads


def ours(problem, change=plain, **options):
    """scaled_dot_product_attention with these options."""
    out = torch.empty_like(problem.query)

    def run():
        return polyhead.scaled_dot_product_attention(problem.query, problem.key, problem.value, out=out, **options)

    return Call(run, lambda: (run(), out)[1], problem, change)


def ours_flash(problem, change, **options):
    """flash_attn_func, which has windows."""
    operands = [x.transpose(1, 2) for x in (problem.query, problem.key, problem.value)]  # of the same memory
    out = torch.empty_like(problem.query)

    def run():
        return polyhead.flash_attn_func(*operands, out=out.transpose(1, 2), **options)

    return Call(run, lambda: (run(), out)[1], problem, change)


def ours_packed(problem, lengths, change, **options):
    """flash_attn_varlen_func over the one batch item of the problem."""
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    operands = [x[0].transpose(0, 1) for x in (problem.query, problem.key, problem.value)]
    out = torch.empty_like(problem.query)

    def run():
        return polyhead.flash_attn_varlen_func(*operands, ends, ends, max(lengths), max(lengths), out=out[0].transpose(0, 1), **options)

    return Call(run, lambda: (run(), out)[1], problem, change)


def ours_pages(problem, tokens):
    """A block table's pages of `tokens` keys that lie in any order; 0: the same function over one array."""
    query, out = problem.query.transpose(1, 2), torch.empty_like(problem.query)
    lengths = torch.full((problem.batch,), problem.length, dtype=torch.int32)
    key, value = (x.transpose(1, 2).contiguous() for x in (problem.key, problem.value))  # [batch, length, heads, dim]
    options = {}
    if tokens:
        count = problem.batch * problem.length // tokens
        order = torch.randperm(count)
        key, value = (x.view(count, tokens, problem.heads, problem.dim)[order] for x in (key, value))
        options["block_table"] = order.argsort().view(problem.batch, -1).int()

    def run():
        return polyhead.flash_attn_with_kvcache(query, key, value, cache_seqlens=lengths, out=out.transpose(1, 2), **options)

    return Call(run, lambda: (run(), out)[1], problem, plain)


def flex(problem, change, score_mod=None, mask_mod=None):
    """torch's FlexAttention, compiled for this shape; the block mask is made once, as its users do."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.config.recompile_limit = 64  # a compilation for each function and shape
    length = problem.length
    block_mask = create_block_mask(mask_mod, None, None, length, length, device="cpu") if mask_mod else None
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def run():
        return compiled(problem.query, problem.key, problem.value, score_mod=score_mod, block_mask=block_mask)

    return Call(run, run, problem, change)


def uneven_lengths(count):
    """16 to 512 each, in no order, the same on every machine, as in masks_bench.cpp."""
    return [16 + i * i * 37 % 497 for i in range(count)]


def numbers_of(lengths):
    """[total]: which document each token belongs to."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def slopes_of(heads):
    return torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)])


def alibi_formula(slopes):
    return lambda score, batch, head, query, key: score - slopes[head] * (query - key).abs()


def softcap_formula(cap):
    return lambda score, batch, head, query, key: cap * torch.tanh(score / cap)


def same_document(documents):
    return lambda batch, head, query, key: documents[query] == documents[key]


def within(left, right):
    return lambda batch, head, query, key: (query - key <= left) & (key - query <= right)


def within_or_kept(left, kept):
    """A causal window; `kept` first keys stay in sight whatever its left side says."""
    return lambda batch, head, query, key: ((query - key <= left) | (key < kept)) & (key <= query)


# ---- the groups of mask_cost.py: each returns name -> Call


def at_4096(mods):
    problem = Problem(1, 4, 4096, 64)
    block = 128
    blocks = torch.tensor([[(i * 5 + j * 3) % 4 == 0 for j in range(32)] for i in range(32)])
    allowed = blocks.repeat_interleave(block, 0).repeat_interleave(block, 1)  # the same keys by a tensor of [T, S]
    lengths = [512 - 96 + 64 * (i % 4) for i in range(8)]
    lengths.append(problem.length - sum(lengths))
    documents, scattered = numbers_of(lengths), torch.randint(0, 4, (problem.length,))
    prefix = torch.tensor([1024])
    segments = lambda of: {"query_segments": of[None], "key_segments": of[None]}
    return {
        "dense": ours(problem),
        "causal": ours(problem, only(lambda b, h, q, k: k <= q), is_causal=True),
        "blocks 25 %": ours(
            problem, only(lambda b, h, q, k: blocks[q // block, k // block]), block_mask=blocks, block_size=(block, block)
        ),
        "boolean 25 %": ours(problem, only(lambda b, h, q, k: allowed[q, k]), attn_mask=allowed),
        "prefix 1,024": ours(problem, only(lambda b, h, q, k: (k <= q) | (k < 1024)), is_causal=True, prefix_lengths=prefix),
        "documents": ours(problem, only(same_document(documents)), **segments(documents)),
        "scattered segments": ours(problem, only(same_document(scattered)), **segments(scattered)),
    }


def at_16384(mods):
    problem = Problem(1, 1, 16384, 64)
    return {
        "dense": ours(problem),
        "causal window 256": ours_flash(problem, only(within(256, 0)), causal=True, window_size=(256, 0)),
        "window 256 both ways": ours_flash(problem, only(within(256, 256)), window_size=(256, 256)),
        "window 256, 4 kept": ours_flash(
            problem, only(within_or_kept(256, 4)), causal=True, window_size=(256, 0), sink_token_length=4
        ),
    }


def packed(mods):
    lengths = uneven_lengths(64)
    documents = numbers_of(lengths)
    problem, padded = Problem(1, 8, sum(lengths), 64), Problem(len(lengths), 8, max(lengths), 64)
    causal = only(lambda b, h, q, k: (documents[q] == documents[k]) & (k <= q))
    return {
        "padded": ours(padded),
        "packed": ours_packed(problem, lengths, only(same_document(documents))),
        "packed causal": ours_packed(problem, lengths, causal, causal=True),
    }


def at_1024(mods):
    heads, length, cap = 8, 1024, 3.0
    problem = Problem(1, heads, length, 64)
    bias, slopes = torch.randn(1, heads, length, length), slopes_of(heads)
    allowed = torch.rand(length, length) < 0.7
    t5, swin = torch.randn(32, heads), torch.randn(63 * 63, heads)
    alibi, softcap = alibi_formula(slopes), softcap_formula(cap)

    def t5_formula(score, batch, head, query, key):
        """Raffel et al.: half of the buckets for each direction, the nearer half of these exact, the others by logarithm."""
        distance = key - query
        far = 8 + (torch.log(distance.abs().clamp(min=8).double() / 8) / torch.log(torch.tensor(16.0).double()) * 8).long()
        near = torch.where(distance.abs() < 8, distance.abs(), far.clamp(max=15))
        return score + t5[near + 16 * (distance > 0), head]

    def swin_formula(score, batch, head, query, key):
        rows, columns = query // 32 - key // 32 + 31, query % 32 - key % 32 + 31
        return score + swin[rows * 63 + columns, head]

    return {
        "plain": ours(problem),
        "bias [1,H,T,S]": ours(problem, lambda s, b, h, q, k: s + bias[0, h, q, k], attn_mask=bias),
        "boolean [T,S]": ours(problem, only(lambda b, h, q, k: allowed[q, k]), attn_mask=allowed),
        "T5 bias": ours(problem, t5_formula, relative_bias=polyhead.T5Bias(t5)),
        "Swin bias 32x32": ours(problem, swin_formula, relative_bias=polyhead.SwinBias(swin, (32, 32))),
        "ALiBi": ours(problem, alibi, alibi_slopes=slopes),
        "softcap": ours(problem, softcap, softcap=cap),
        "ALiBi by xsimd": ours(problem, alibi, score_mod=mods.make("alibi", Alibi(slopes.data_ptr(), 0), slopes)),
        "tanh cap by xsimd": ours(problem, softcap, score_mod=mods.make("softcap", Softcap(cap))),
    }


def swin_windows(mods):
    problem = Problem(64, 4, 49, 32)
    table = torch.randn(13 * 13, 4)

    def formula(score, batch, head, query, key):
        return score + table[(query // 7 - key // 7 + 6) * 13 + query % 7 - key % 7 + 6, head]

    return {"plain": ours(problem), "Swin bias 7x7": ours(problem, formula, relative_bias=polyhead.SwinBias(table, (7, 7)))}


def pages(mods):
    problem = Problem(2, 8, 1024, 64)
    return {"one array": ours_pages(problem, 0), "pages of 16": ours_pages(problem, 16), "pages of 128": ours_pages(problem, 128)}


def flex_group(function, heads, length, dim):
    """One function three ways: through xsimd, as it is built in, and torch's."""

    def make(mods):
        problem = Problem(1, heads, length, dim)
        if function == "ALiBi":
            slopes = slopes_of(heads)
            change = alibi_formula(slopes)
            score_mod = lambda score, b, h, q, k: score - slopes[h] * (q - k).abs()
            return {
                mask_cost.OURS: ours(problem, change, score_mod=mods.make("alibi", Alibi(slopes.data_ptr(), 0), slopes)),
                mask_cost.BUILT_IN: ours(problem, change, alibi_slopes=slopes),
                mask_cost.FLEX: lambda: flex(problem, change, score_mod=score_mod),
            }
        if function == "tanh cap":
            cap = 3.0
            change = softcap_formula(cap)
            return {
                mask_cost.OURS: ours(problem, change, score_mod=mods.make("softcap", Softcap(cap))),
                mask_cost.BUILT_IN: ours(problem, change, softcap=cap),
                mask_cost.FLEX: lambda: flex(problem, change, score_mod=change),
            }
        if function == "documents":
            lengths = [length // 8 + (37 if i % 2 else -37) for i in range(8)]
            numbers = numbers_of(lengths)
            narrow, sees = numbers.int(), same_document(numbers)
            mod = mods.make("document", Documents(narrow.data_ptr()), narrow, classifies=True)
            return {
                mask_cost.OURS: ours(problem, only(sees), score_mod=mod),
                mask_cost.BUILT_IN: ours(problem, only(sees), query_segments=numbers[None], key_segments=numbers[None]),
                mask_cost.FLEX: lambda: flex(problem, only(sees), mask_mod=sees),
            }
        sees = within(256, 0)
        return {
            mask_cost.OURS: ours(problem, only(sees), score_mod=mods.make("window", Window(256), classifies=True)),
            mask_cost.BUILT_IN: ours_flash(problem, only(sees), causal=True, window_size=(256, 0)),
            mask_cost.FLEX: lambda: flex(problem, only(sees), mask_mod=sees),
        }

    return make


GROUPS = {
    "4,096": at_4096,
    "16,384": at_16384,
    "64 sequences": packed,
    "1,024": at_1024,
    "windows of images": swin_windows,
    "block tables": pages,
    **{
        mask_cost.flex_name(function, dim): flex_group(function, 12, 1024, dim)
        for function in mask_cost.FLEX_FUNCTIONS
        for dim in mask_cost.FLEX_DIMS
    },
}
