"""flash_attn_with_kvcache over arrays, pages and KvCache against float64."""

import numpy as np
import polyhead
import pytest
import reference
from test_sequences import flash

attend = polyhead.flash_attn_with_kvcache
SLOPES = np.float32([0.5, 0.25, 0.125, 0.0625])


def draw(generator, *shape):
    return generator.standard_normal(shape, np.float32)


def rotate(x, positions, cos, sin, interleaved):
    """x [length, heads, dim] in float64."""
    x = np.asarray(x, np.float64).copy()
    pairs = cos.shape[1]
    a, b = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(0, pairs), slice(pairs, 2 * pairs))
    c, s = (np.asarray(table, np.float64)[positions][:, None, :] for table in (cos, sin))
    first, second = x[..., a].copy(), x[..., b].copy()
    x[..., a], x[..., b] = first * c - second * s, first * s + second * c
    return x


OPTIONS = [
    {},
    {"causal": True},
    {"window": (4, 2)},
    {"causal": True, "window": (9, 0)},
    {"causal": True, "window": (9, 0), "kept": 4},
    {"softcap": 2.0, "slopes": SLOPES},
    {"causal": True, "slopes": SLOPES},
    {"sink": np.float32([0.5, -1, 2, -np.inf])},
    {"causal": True, "window": (9, 0), "kept": 4, "sink": np.float32([3, 0, -2, 0.25])},
]


def named(options):
    names = {"window": "window_size", "slopes": "alibi_slopes", "kept": "sink_token_length"}
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize("kind", ["in order", "chosen", "pages"])
def test_against_the_formula(generator, options, rows, kind):
    lengths = np.int32([40, 7, 0, 33])
    batch, room, page = 4, 48, 16
    q = draw(generator, batch, rows, 4, 16)
    items = 6
    keys, values = draw(generator, items, room, 2, 16), draw(generator, items, room, 2, 16)
    chosen = np.arange(4)
    extra = {}
    if kind == "in order":
        k_cache, v_cache = keys, values
    elif kind == "chosen":
        k_cache, v_cache = keys, values
        chosen = extra["cache_batch_idx"] = np.array([5, 0, 3, 5], np.int32)
    else:
        order = generator.permutation(items * room // page)
        k_cache, v_cache = (np.empty_like(cache).reshape(-1, page, 2, 16) for cache in (keys, values))
        k_cache[order], v_cache[order] = keys.reshape(-1, page, 2, 16), values.reshape(-1, page, 2, 16)
        extra["block_table"] = order.reshape(items, room // page)[:batch].astype(np.int32)
        for b in range(batch):  # numbers of pages that are not read do not count
            extra["block_table"][b, -(-lengths[b] // page) :] = -7
    out, lse = attend(q, k_cache, v_cache, cache_seqlens=lengths, return_softmax_lse=True, **extra, **named(options))
    assert out.shape == q.shape and lse.shape == (batch, 4, rows)
    for b in range(batch):
        part = slice(0, lengths[b])
        expected, expected_lse = flash(q[b], keys[chosen[b]][part], values[chosen[b]][part], **options)
        reference.assert_close(out[b], expected, reference.tolerance(q, keys, values))
        np.testing.assert_allclose(lse[b], expected_lse, atol=1e-5)
    given = np.full_like(out, np.nan)
    assert attend(q, k_cache, v_cache, cache_seqlens=lengths, out=given, **extra, **named(options)) is given
    assert given.tobytes() == out.tobytes()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rotated", [0, 8, 16])
def test_new_keys_are_written_and_seen(generator, interleaved, causal, paged, rotated):
    batch, room, page, rows = 3, 32, 8, 2
    lengths = np.array([0, 9, 30])
    q = draw(generator, batch, rows, 4, 16)
    k, v = draw(generator, batch, 2, 2, 16), draw(generator, batch, 2, 2, 16)
    keys, values = draw(generator, batch, room, 2, 16), draw(generator, batch, room, 2, 16)
    options = {"cache_seqlens": lengths, "causal": causal}
    k_cache, v_cache = keys.copy(), values.copy()
    if paged:
        order = generator.permutation(batch * room // page)
        k_cache, v_cache = (np.empty_like(cache).reshape(-1, page, 2, 16) for cache in (keys, values))
        k_cache[order], v_cache[order] = keys.reshape(-1, page, 2, 16), values.reshape(-1, page, 2, 16)
        options["block_table"] = order.reshape(batch, room // page)
    if rotated:
        cos, sin = (draw(generator, room, rotated // 2) for _ in range(2))
        options.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved)
    out = attend(q, k_cache, v_cache, k, v, **options)
    after_k, after_v = (cache[order].reshape(keys.shape) if paged else cache for cache in (k_cache, v_cache))
    for b in range(batch):
        place = lengths[b] + np.arange(2)
        expected_k, expected_v, query = keys[b].astype(np.float64), values[b].copy(), q[b]
        expected_k[place], expected_v[place] = k[b], v[b]
        if rotated:
            expected_k[place] = rotate(k[b], place, cos, sin, interleaved)
            query = rotate(q[b], place if causal else np.full(2, lengths[b]), cos, sin, interleaved)
        np.testing.assert_allclose(after_k[b], expected_k, atol=2e-6)
        np.testing.assert_array_equal(after_v[b], expected_v)
        seen = slice(0, lengths[b] + 2)
        expected, _ = flash(query, expected_k[seen], expected_v[seen], causal=causal)
        reference.assert_close(out[b], expected, 4 * reference.tolerance(q, keys, values) + 1e-5)


def test_half_precision_rounds_once(generator):
    q, k, v = (draw(generator, 2, 1, 4, 16).astype(np.float16) for _ in range(3))
    keys, values = np.zeros((2, 8, 4, 16), np.float16), np.zeros((2, 8, 4, 16), np.float16)
    cos, sin = (draw(generator, 8, 8).astype(np.float16) for _ in range(2))
    out = attend(q, keys, values, k, v, cos, sin, cache_seqlens=3, rotary_interleaved=False)
    assert out.dtype == np.float16
    # One rounding of a float32 result; of the product and sum in float64 it may be another neighbour.
    expected = np.stack([rotate(k[b], np.array([3]), cos, sin, False) for b in range(2)])
    step = np.spacing(np.abs(expected).astype(np.float16)).astype(np.float64)
    assert (np.abs(keys[:, 3:4].astype(np.float64) - expected) <= 0.501 * step).all()
    assert not keys[:, :3].any() and not keys[:, 4:].any()
    np.testing.assert_array_equal(values[:, 3:4], v)


def test_without_lengths_the_whole_cache_is_seen(generator):
    q, keys, values = draw(generator, 2, 3, 4, 16), draw(generator, 2, 20, 4, 16), draw(generator, 2, 20, 4, 24)
    assert attend(q, keys, values).tobytes() == polyhead.flash_attn_func(q, keys, values).tobytes()
    assert attend(q, keys, values, cache_seqlens=20, num_splits=3).tobytes() == attend(q, keys, values).tobytes()


@pytest.mark.parametrize("rotary", [None, "interleaved", "half_split"])
def test_over_a_kv_cache(generator, rotary):
    cache = polyhead.KvCache("paged", sequences=3, kv_heads=2, head_dim=16, page_tokens=8, rotary=rotary)
    plain = polyhead.KvCache("paged", sequences=3, kv_heads=2, head_dim=16, page_tokens=8, rotary=rotary)
    for rows in (5, 1, 1):
        q, k, v = draw(generator, 2, rows, 4, 16), draw(generator, 2, rows, 2, 16), draw(generator, 2, rows, 2, 16)
        out = attend(q, cache, None, k, v, cache_batch_idx=[2, 0], causal=True, window_size=(6, 0), alibi_slopes=SLOPES)
        plain.append(k.swapaxes(1, 2), v.swapaxes(1, 2), sequences=[2, 0])
        query = q.swapaxes(1, 2)
        if rotary:
            query = plain.rotate_queries(query, sequences=[2, 0])
        expected = plain.attention(query, sequences=[2, 0], window=7, alibi_slopes=SLOPES)
        assert out.shape == q.shape
        np.testing.assert_array_equal(out, expected.swapaxes(1, 2))
    assert cache.rotary == rotary
    for changes in [{"cache_seqlens": 3}, {"block_table": [[0]]}, {"rotary_cos": np.zeros((9, 8), np.float32)}]:
        with pytest.raises(polyhead.UnsupportedError, match=next(iter(changes))):
            attend(q, cache, None, **changes)
    with pytest.raises(polyhead.UnsupportedError, match="v_cache"):
        attend(q, cache, cache)
    with pytest.raises(polyhead.UnsupportedError, match="window_size"):
        attend(q, cache, None, window_size=(3, 0))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [1, 5])
def test_lse_and_sinks_over_a_kv_cache(generator, options, rows):
    if "window" in options and not options.get("causal"):
        options = {**options, "window": (-1, -1)}  # over a KvCache windows go with causal
    cache = polyhead.KvCache("paged", sequences=3, kv_heads=2, head_dim=16, value_dim=12, page_tokens=8)
    q, k, v = draw(generator, 2, rows, 4, 16), draw(generator, 2, 30, 2, 16), draw(generator, 2, 30, 2, 12)
    out, lse = attend(q, cache, None, k, v, cache_batch_idx=[2, 0], return_softmax_lse=True, **named(options))
    assert out.shape == (2, rows, 4, 12) and lse.shape == (2, 4, rows) and lse.dtype == np.float32
    for b in range(2):
        expected, expected_lse = flash(q[b], k[b], v[b], **options)
        reference.assert_close(out[b], expected, reference.tolerance(q, k, v))
        np.testing.assert_allclose(lse[b], expected_lse, atol=1e-5)
    given = np.full_like(out, np.nan)
    again = attend(q, cache, None, cache_batch_idx=[2, 0], return_softmax_lse=True, out=given, **named(options))
    assert again[0] is given and given.tobytes() == out.tobytes() and again[1].tobytes() == lse.tobytes()
    assert attend(q, cache, None, cache_batch_idx=[2, 0], **named(options)).tobytes() == out.tobytes()


def test_names_what_is_wrong(generator):
    q, k, v = (draw(generator, 2, 1, 4, 8) for _ in range(3))
    keys, values = draw(generator, 3, 10, 4, 8), draw(generator, 3, 10, 4, 8)
    call = lambda **changes: attend(**{"q": q, "k_cache": keys.copy(), "v_cache": values.copy(), "cache_seqlens": [4, 10], **changes})
    call()
    cos = np.ones((10, 4), np.float32)
    for changes, message in [
        ({"k": k}, "k and v: one of them is given"),
        ({"k": k, "v": v}, r"cache_seqlens\[1\]: is 10, expected 0 to 9, which leaves room for k"),
        ({"k": k, "v": v, "cache_seqlens": None}, "cache_seqlens: is None together with k and v"),
        ({"k": k[:, :, :2], "v": v[:, :, :2], "cache_seqlens": 1}, "k: the number of heads is 2, expected 4"),
        ({"cache_seqlens": [4]}, "cache_seqlens: the size is 1, expected 2"),
        ({"cache_seqlens": [4, 11]}, r"cache_seqlens\[1\]: is 11, expected 0 to 10"),
        ({"cache_batch_idx": [0, 3]}, r"cache_batch_idx\[1\]: is 3, expected 0 to 2"),
        ({"cache_batch_idx": [0, 1], "block_table": [[0], [1]]}, "cache_batch_idx: is given together with block_table"),
        ({"block_table": [[0], [3]]}, r"block_table\[1, 0\]: is 3, expected 0 to 2"),
        ({"block_table": [0, 1]}, r"block_table: is int64\[2\], expected \[2, pages of an item\]"),
        ({"block_table": [[0], [1]], "v_cache": draw(generator, 3, 10, 4, 9)}, "pages as far apart as key's"),
        ({"v_cache": values[:, :9]}, "v_cache: the length is 9, expected 10 as in k_cache"),
        ({"k_cache": keys[:1], "v_cache": values[:1]}, "k_cache: has 1 batch items, expected q's 2 or more"),
        ({"rotary_cos": cos, "rotary_sin": cos}, "rotary_cos: is given without k and v"),
        ({"rotary_cos": cos}, "rotary_cos and rotary_sin: one of them is given"),
        ({"rotary_cos": cos, "rotary_sin": cos[:, :3], "k": k, "v": v, "cache_seqlens": 1}, "rotary_sin: is float32"),
        ({"rotary_cos": cos[:5], "rotary_sin": cos[:5], "k": k, "v": v, "cache_seqlens": [1, 5]}, "rotary_cos: has 5 positions, expected 6 or more for batch item 1"),
        ({"window_size": (-2, 0)}, r"window_size: is \(-2, 0\)"),
        ({"sink": np.zeros((2, 3), np.float32)}, r"sink: is float32\[2, 3\], expected float32\[4\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**changes)
    with pytest.raises(polyhead.UnsupportedError, match="cache_leftpad"):
        call(cache_leftpad=[0, 0])
    with pytest.raises(TypeError, match="k_cache"):
        call(k_cache=keys.astype(np.float16))
    read_only = keys.copy()
    read_only.flags.writeable = False
    call(k_cache=read_only)
    with pytest.raises(Exception, match="k_cache"):
        call(k_cache=read_only, k=k, v=v, cache_seqlens=1)
