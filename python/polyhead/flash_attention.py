"""flash_attn_with_kvcache over arrays, which the native module serves, and over a KvCache."""

import functools

from . import _polyhead
from ._polyhead import InvalidArgumentError, KvCache, UnsupportedError


@functools.wraps(_polyhead.flash_attn_with_kvcache, assigned=("__name__", "__doc__"))
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False, *, out=None, precision="strict", sink_token_length=0, sink=None):
    if not isinstance(k_cache, KvCache):
        return _polyhead.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
            softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes, num_splits, return_softmax_lse,
            out=out, precision=precision, sink_token_length=sink_token_length, sink=sink,
        )
    # A KvCache knows its lengths, pages and rotation; what it would not take is refused by name.
    kept = "which a KvCache keeps by itself"
    for name, given, reason in [
        ("v_cache", v_cache, "since the KvCache given as k_cache holds the values too"),
        ("rotary_cos", rotary_cos, f"{kept} (rotary=)"),
        ("rotary_sin", rotary_sin, f"{kept} (rotary=)"),
        ("cache_seqlens", cache_seqlens, kept),
        ("cache_leftpad", cache_leftpad, "since caches begin with their first key"),
        ("block_table", block_table, f"{kept} (kind='paged')"),
    ]:
        if given is not None:
            raise UnsupportedError(f"{name}: is given, expected None, {reason}")
    left, right = window_size
    if right not in ((-1, 0) if causal else (-1,)) or (left != -1 and not causal):
        raise UnsupportedError(
            f"window_size: is ({left}, {right}), expected (keys before the query's own, 0) with causal=True over a KvCache, or (-1, -1)"
        )
    if k_cache.rotary is not None and not causal and q.shape[1] > 1:
        raise UnsupportedError("causal: is False, expected True for several queries over a KvCache with rotation: each has its own place")
    if (k is None) != (v is None):
        raise InvalidArgumentError("k and v: one of them is given, expected both or neither")
    heads_first = lambda array: None if array is None else array.swapaxes(1, 2)
    if k is not None:
        k_cache.append(heads_first(k), heads_first(v), sequences=cache_batch_idx)
    query = heads_first(q)
    if k_cache.rotary is not None:
        query = k_cache.rotate_queries(query, sequences=cache_batch_idx)
    offsets = None
    if alibi_slopes is not None and not causal:  # slopes count from the last token either way
        items = range(q.shape[0]) if cache_batch_idx is None else cache_batch_idx
        offsets = [k_cache.length(int(item)) - q.shape[1] for item in items]
    result = k_cache.attention(
        query, sequences=cache_batch_idx, is_causal=causal, window=None if left == -1 else left + 1, scale=softmax_scale,
        softcap=softcap, alibi_slopes=alibi_slopes, sink=sink, precision=precision, out=heads_first(out),
        sink_token_length=sink_token_length, return_lse=return_softmax_lse, offsets=offsets,
    )
    if return_softmax_lse:
        result, lse = result
    result = heads_first(result) if out is None else out
    return (result, lse) if return_softmax_lse else result
