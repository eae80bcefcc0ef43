"""Polyhead: fast multi-head attention for CPUs.

    import polyhead
    out = polyhead.scaled_dot_product_attention(query, key, value, is_causal=True)   # NumPy arrays or PyTorch tensors
    vectors = polyhead.SentenceEncoder().encode(["a sentence", "another one"])

The environment variable POLYHEAD_NUM_THREADS sets the number of threads, POLYHEAD_ISA forces an instruction set.
"""

from ._polyhead import (
    BertEncoder,
    CancelledError,
    Error,
    FileError,
    InternalError,
    InvalidArgumentError,
    KvCache,
    OutOfMemoryError,
    UnsupportedError,
    __version__,
    attention_weights,
    flash_attn_func,
    flash_attn_varlen_func,
    get_num_threads,
    merge,
    scaled_dot_product_attention,
    set_num_threads,
)
from ._information import explain, info
from .flash_attention import flash_attn_with_kvcache
from .multi_head_attention import MultiHeadAttention
from .relative_bias import SwinBias, T5Bias
from .score_mod import ScoreMod
from .sentence_encoder import SentenceEncoder
from .torch_multi_head_attention import TorchMultiHeadAttention

__all__ = [
    "BertEncoder",
    "CancelledError",
    "Error",
    "FileError",
    "InternalError",
    "InvalidArgumentError",
    "KvCache",
    "MultiHeadAttention",
    "OutOfMemoryError",
    "ScoreMod",
    "SentenceEncoder",
    "SwinBias",
    "T5Bias",
    "TorchMultiHeadAttention",
    "UnsupportedError",
    "__version__",
    "attention_weights",
    "explain",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_num_threads",
    "info",
    "merge",
    "scaled_dot_product_attention",
    "set_num_threads",
]
