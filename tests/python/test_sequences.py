"""Query lengths, lse, merge, and flash-attn's functions against float64."""

import numpy as np
import polyhead
import pytest
import reference

sdpa = polyhead.scaled_dot_product_attention


def make(generator, batch=(2,), heads=4, kv_heads=2, rows=5, columns=7, dim=16, value_dim=24):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    return draw(*batch, heads, rows, dim), draw(*batch, kv_heads, columns, dim), draw(*batch, kv_heads, columns, value_dim)


def flash(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, kept=0, sink=None):
    """One sequence by flash-attn's conventions in float64: [length, heads, dim] in and out, and lse [heads, length]."""
    q, k, v = (np.asarray(x, np.float64).swapaxes(0, 1) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[0] // x.shape[0], axis=0) for x in (k, v))
    scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(k.shape[1])[None, :] - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    if slopes is not None:
        scores = scores - np.asarray(slopes, np.float64)[:, None, None] * np.abs(distance)
    seen = np.ones(distance.shape, bool)
    if causal:
        seen &= distance <= 0
    if window[0] >= 0:
        seen &= (distance >= -window[0]) | (np.arange(k.shape[1]) < kept)[None, :]
    if window[1] >= 0:
        seen &= distance <= window[1]
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.asarray(sink, np.float64))[:, None, None]
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0])
    return (weights / np.where(total > 0, total, 1) @ v).swapaxes(0, 1), lse


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_query_lengths(generator, rows, causal):
    query, key, value = make(generator, batch=(4,), rows=rows)
    lengths = np.array([rows, 0, 1, rows // 2])
    out = sdpa(query, key, value, enable_gqa=True, is_causal=causal, query_lengths=lengths)
    whole = reference.attention(query, key, value, causal=causal)
    for item, length in enumerate(lengths):
        reference.assert_close(out[item, :, :length], whole[item, :, :length], reference.tolerance(query, key, value))
        assert not out[item, :, length:].any()
    for given in (lengths.tolist(), lengths[:, None], lengths.astype(np.int32)):
        again = sdpa(query, key, value, enable_gqa=True, is_causal=causal, query_lengths=given)
        np.testing.assert_array_equal(again, out)


def test_wrong_query_lengths_are_named(generator):
    tensors = make(generator)
    with pytest.raises(ValueError, match=r"query_lengths\[1\] is 6, expected 0 to 5"):
        sdpa(*tensors, enable_gqa=True, query_lengths=[5, 6])
    with pytest.raises(TypeError, match="query_lengths: data type is float64"):
        sdpa(*tensors, enable_gqa=True, query_lengths=[5.0, 5.0])


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_lse_and_merge(generator, batch):
    query, key, value = make(generator, batch, columns=30)
    out, lse = sdpa(query, key, value, enable_gqa=True, return_lse=True)
    assert lse.shape == out.shape[:-1]
    assert out.tobytes() == sdpa(query, key, value, enable_gqa=True).tobytes()
    limit = reference.tolerance(query, key, value)
    for cut in (0, 1, 17, 30):
        parts = [
            sdpa(query, key[..., part, :], value[..., part, :], enable_gqa=True, return_lse=True)
            for part in (slice(0, cut), slice(cut, None))
        ]
        merged, merged_lse = polyhead.merge(*parts[0], *parts[1])
        reference.assert_close(merged, out.astype(np.float64), limit)
        np.testing.assert_allclose(merged_lse, lse, rtol=1e-6, atol=1e-6)
        result = polyhead.merge(*parts[0], *parts[1], out=parts[0][0], lse=parts[0][1])
        assert result[0] is parts[0][0] and result[1] is parts[0][1]
        assert parts[0][0].tobytes() == merged.tobytes()


def test_merge_adds_the_sink_once(generator):
    query, key, value = make(generator, columns=9)
    sink = np.float32([0.5, -1, 2, -np.inf])
    whole = sdpa(query, key, value, enable_gqa=True, sink=sink, return_lse=True)
    first = sdpa(query, key[:, :, :4], value[:, :, :4], enable_gqa=True, return_lse=True)
    second = sdpa(query, key[:, :, 4:], value[:, :, 4:], enable_gqa=True, return_lse=True)
    out, lse = polyhead.merge(*first, *second, sink=sink)
    np.testing.assert_allclose(out, whole[0], atol=2e-6)
    np.testing.assert_allclose(lse, whole[1], atol=2e-6)


def test_merge_names_what_is_wrong():
    out, lse = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"lse2: is float32\[2, 4\], expected float32\[2, 3\]"):
        polyhead.merge(out, lse, out.copy(), np.zeros((2, 4), np.float32))
    with pytest.raises(TypeError, match="out2: data type is float64"):
        polyhead.merge(out, lse, out.astype(np.float64), lse)
    with pytest.raises(ValueError, match="out1: is"):
        polyhead.merge(lse[0], lse[0, 0], lse[0], lse[0, 0])


FLASH = [
    {},
    {"causal": True},
    {"window": (4, 2)},
    {"causal": True, "window": (3, 0)},
    {"causal": True, "window": (3, 0), "kept": 2},
    {"softcap": 2.0, "slopes": [0.5, 0.25, 0.125, 0.0625]},
    {"causal": True, "slopes": [0.5, 0.25, 0.125, 0.0625]},
    {"sink": [0.5, -1, 2, -np.inf]},
    {"causal": True, "window": (3, 0), "kept": 2, "softcap": 2.0, "sink": [3, 0, -2, 0.25]},
]


def options_of(flash_options):
    names = {"window": "window_size", "slopes": "alibi_slopes", "kept": "sink_token_length"}
    values = {name: np.float32(value) if name in ("slopes", "sink") else value for name, value in flash_options.items()}
    return {names.get(name, name): value for name, value in values.items()}


@pytest.mark.parametrize("options", FLASH)
@pytest.mark.parametrize("rows, columns", [(1, 9), (6, 9), (40, 40), (9, 4)])
def test_flash_attn_func(generator, rows, columns, options):
    q = generator.standard_normal((2, rows, 4, 16), np.float32)
    k = generator.standard_normal((2, columns, 2, 16), np.float32)
    v = generator.standard_normal((2, columns, 2, 8), np.float32)
    out, lse, nothing = polyhead.flash_attn_func(q, k, v, return_attn_probs=True, **options_of(options))
    assert nothing is None and lse.shape == (2, 4, rows)
    for item in range(2):
        expected, expected_lse = flash(q[item], k[item], v[item], **options)
        reference.assert_close(out[item], expected, reference.tolerance(q, k, v))
        np.testing.assert_allclose(lse[item], expected_lse, atol=1e-5)
    assert polyhead.flash_attn_func(q, k, v, **options_of(options)).tobytes() == out.tobytes()


def test_flash_attn_slopes_of_batch_items(generator):
    q, k, v = (generator.standard_normal((3, rows, 4, 16), np.float32) for rows in (6, 9, 9))
    slopes = 0.3 * generator.standard_normal((3, 4), np.float32)
    items = [polyhead.flash_attn_func(q[i : i + 1], k[i : i + 1], v[i : i + 1], alibi_slopes=slopes[i]) for i in range(3)]
    assert polyhead.flash_attn_func(q, k, v, alibi_slopes=slopes).tobytes() == np.concatenate(items).tobytes()
    packed = [array.reshape(-1, 4, 16) for array in (q, k, v)]
    out = polyhead.flash_attn_varlen_func(*packed, [0, 6, 12, 18], [0, 9, 18, 27], 6, 9, alibi_slopes=slopes)
    assert out.tobytes() == np.concatenate(items).tobytes()


@pytest.mark.parametrize("options", FLASH)
@pytest.mark.parametrize("used", [False, True])
def test_flash_attn_varlen_func(generator, options, used):
    query_lengths, key_lengths = [1, 40, 0, 7, 3], [60, 40, 5, 2, 0]
    q = generator.standard_normal((sum(query_lengths), 4, 16), np.float32)
    k = generator.standard_normal((sum(key_lengths), 2, 16), np.float32)
    v = generator.standard_normal((sum(key_lengths), 2, 16), np.float32)
    ends = [np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) for lengths in (query_lengths, key_lengths)]
    extra = {}
    if used:
        query_lengths, key_lengths = [1, 33, 0, 7, 2], [44, 40, 0, 1, 0]
        extra = {"seqused_q": query_lengths, "seqused_k": np.array(key_lengths)}
    out, lse, _ = polyhead.flash_attn_varlen_func(q, k, v, *ends, 40, 60, return_attn_probs=True, **options_of(options), **extra)
    assert out.shape == q.shape and lse.shape == (4, len(q))
    for i, (rows, columns) in enumerate(zip(query_lengths, key_lengths)):
        begin, key_begin = ends[0][i], ends[1][i]
        keys = slice(key_begin, key_begin + columns)
        expected, expected_lse = flash(q[begin : begin + rows], k[keys], v[keys], **options)
        reference.assert_close(out[begin : begin + rows], expected, reference.tolerance(q, k, v))
        np.testing.assert_allclose(lse[:, begin : begin + rows], expected_lse, atol=1e-5)
        assert not out[begin + rows : ends[0][i + 1]].any()
    given = np.full_like(out, np.nan)
    result = polyhead.flash_attn_varlen_func(q, k, v, ends[0].tolist(), ends[1].astype(np.int64), 99, 99, out=given, **options_of(options), **extra)
    assert result is given and given.tobytes() == out.tobytes()


def paged(generator, k, lengths, ends, page, dtype=np.int32):
    """Pages [pages, page size, heads, dim] in any order with a table of them, for keys [total, heads, dim]; the rest is NaN."""
    columns = max(-(-max(lengths) // page), 1)
    table = generator.permutation(len(lengths) * columns).astype(dtype).reshape(len(lengths), columns)
    pages = np.full((table.size, page, *k.shape[1:]), np.nan, k.dtype)
    for i, length in enumerate(lengths):
        for s in range(length):
            pages[table[i, s // page], s % page] = k[ends[i] + s]
        table[i, -(-length // page) :] = -7
    return pages, table


@pytest.mark.parametrize("options", FLASH)
@pytest.mark.parametrize("page", [1, 16, 60])
def test_flash_attn_varlen_func_over_pages(generator, options, page):
    query_lengths, key_lengths = [1, 40, 0, 7, 3], [60, 40, 5, 2, 0]
    q = generator.standard_normal((sum(query_lengths), 4, 16), np.float32)
    k = generator.standard_normal((sum(key_lengths), 2, 16), np.float32)
    v = generator.standard_normal((sum(key_lengths), 2, 16), np.float32)
    ends = [np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) for lengths in (query_lengths, key_lengths)]
    state = generator.bit_generator.state
    keys, table = paged(generator, k, key_lengths, ends[1], page)
    generator.bit_generator.state = state
    values, _ = paged(generator, v, key_lengths, ends[1], page)
    call = lambda k, v, cu_seqlens_k, **extra: polyhead.flash_attn_varlen_func(
        q, k, v, ends[0], cu_seqlens_k, 40, 60, return_attn_probs=True, **options_of(options), **extra
    )
    expected, expected_lse, _ = call(k, v, ends[1])
    out, lse, _ = call(keys, values, ends[1], block_table=table)
    assert out.tobytes() == expected.tobytes() and lse.tobytes() == expected_lse.tobytes()
    for unset in (None, np.full(6, -9, np.int32)):  # beside seqused_k it is not looked at
        out, _, _ = call(keys, values, unset, block_table=table.astype(np.int64), seqused_k=key_lengths)
        assert out.tobytes() == expected.tobytes()
    out, _, _ = call(keys, values, ends[1], block_table=table, seqused_q=[1, 33, 0, 7, 2], seqused_k=[44, 40, 0, 1, 0])
    used, _, _ = call(k, v, ends[1], seqused_q=[1, 33, 0, 7, 2], seqused_k=[44, 40, 0, 1, 0])
    assert out.tobytes() == used.tobytes()


def test_flash_attn_over_pages_names_what_is_wrong(generator):
    q, pages = generator.standard_normal((5, 4, 8), np.float32), generator.standard_normal((3, 2, 4, 8), np.float32)
    call = lambda **changes: polyhead.flash_attn_varlen_func(
        **{"q": q, "k": pages, "v": pages, "cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 2, 5], "max_seqlen_q": 3, "max_seqlen_k": 9,
           "block_table": [[0, 0], [2, 1]], **changes}
    )
    call()
    for changes, message in [
        ({"k": q}, r"k: is float32\[5, 4, 8\], expected \[pages, page size, heads, dim\] with block_table"),
        ({"v": pages[:2]}, "v: the number of pages is 2, expected 3 as in k"),
        ({"v": pages[:, :1]}, "v: the length is 1, expected 2"),
        ({"block_table": [[0, 1]]}, r"block_table: is int64\[1, 2\], expected \[2, pages of a sequence\]"),
        ({"block_table": [[0, 0], [2, 3]]}, r"block_table\[1, 1\] is 3, expected 0 to 2"),
        ({"cu_seqlens_k": [0, 2, 7]}, "cu_seqlens_k: sequence 1 has 5 keys, expected at most 4, the room of its row of block_table"),
        ({"cu_seqlens_k": None, "seqused_k": [2, 5]}, r"seqused_k\[1\]: is 5, expected 0 to 4"),
        ({"seqused_k": [2, 3], "max_seqlen_k": 2}, "max_seqlen_k: is 2, expected at least 3, the longest of seqused_k"),
        ({"k": pages.swapaxes(1, 3).copy().swapaxes(1, 3)}, "k: has a stride of 8 in its last dimension, expected 1 with block_table"),
        ({"v": pages[:, ::2], "block_table": [[0], [2]]}, "v: the length is 1, expected 2"),
        ({"v": np.repeat(pages, 2, axis=0)[::2]}, "v: the distance of pages, in elements, is 128, expected 64 as in k"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**changes)
    with pytest.raises(TypeError, match="cu_seqlens_k: is None"):
        call(cu_seqlens_k=None)


def test_flash_attn_names_what_is_wrong(generator):
    q = generator.standard_normal((5, 4, 8), np.float32)
    call = lambda **changes: polyhead.flash_attn_varlen_func(
        **{"q": q, "k": q, "v": q, "cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 2, 5], "max_seqlen_q": 3, "max_seqlen_k": 3, **changes}
    )
    call()
    for changes, message in [
        ({"cu_seqlens_q": [1, 2, 5]}, r"cu_seqlens_q\[0\]: is 1, expected 0"),
        ({"cu_seqlens_k": [0, 2, 6]}, r"cu_seqlens_k\[2\]: is 6, expected 2 to 5"),
        ({"cu_seqlens_k": [0, 3, 2]}, r"cu_seqlens_k\[2\]: is 2, expected 3 to 5"),
        ({"cu_seqlens_k": [0, 5], "max_seqlen_k": 5}, "cu_seqlens_k: the size is 2, expected 3"),
        ({"max_seqlen_q": 2}, "max_seqlen_q: is 2, expected at least 3"),
        ({"q": q[None]}, r"q: is float32\[1, 5, 4, 8\], expected \[total length, heads, dim\]"),
        ({"k": q[:, :3], "v": q[:, :3]}, "k: has 3 heads, expected a divisor of q's 4"),
        ({"v": q[:4]}, "v: the length is 4, expected 5"),
        ({"window_size": (-2, 0)}, r"window_size: is \(-2, 0\)"),
        ({"sink_token_length": -1}, "sink_token_length: is -1"),
        ({"sink": np.zeros(3, np.float16)}, r"sink: is float16\[3\], expected float32\[4\], a number for each query head"),
        ({"sink": np.float32([0, np.inf, 0, 0])}, r"sink\[1\] is inf, expected a finite number, or -inf"),
        ({"alibi_slopes": np.zeros((3, 4), np.float32)}, r"alibi_slopes: is float32\[3, 4\], expected float32\[4\] or float32\[2, 4\]"),
        ({"seqused_k": [2, 4]}, r"seqused_k\[1\]: is 4, expected 0 to 3"),
        ({"out": np.zeros((5, 4, 9), np.float32)}, r"out: is float32\[5, 4, 9\], expected float32\[5, 4, 8\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**changes)
    with pytest.raises(polyhead.UnsupportedError, match="dropout_p"):
        call(dropout_p=0.1)
    with pytest.raises(TypeError, match="sink: data type is float64, expected float32, float16 or bfloat16"):
        call(sink=np.zeros(4))
    with pytest.raises(TypeError, match="cu_seqlens_q: data type is float32"):
        call(cu_seqlens_q=np.float32([0, 2, 5]))


def masked(query, key, value, allowed):
    """reference.attention with a boolean mask [..., heads, L, S]."""
    return reference.attention(query, key, value, np.broadcast_to(allowed, (*query.shape[:-1], key.shape[-2])))


@pytest.mark.parametrize("rows", [1, 6, 40])
def test_prefix_lengths(generator, rows):
    query, key, value = make(generator, batch=(3,), rows=rows, columns=rows)
    prefix = np.array([0, rows // 2, rows])
    out = sdpa(query, key, value, enable_gqa=True, is_causal=True, prefix_lengths=prefix)
    index = np.arange(rows)
    allowed = (index[None, :] <= index[:, None]) | (index[None, None, :] < prefix[:, None, None])
    reference.assert_close(out, masked(query, key, value, allowed[:, None]), reference.tolerance(query, key, value))
    with pytest.raises(ValueError, match="has_prefix is true, expected false without a causal alignment"):
        sdpa(query, key, value, enable_gqa=True, prefix_lengths=prefix)


@pytest.mark.parametrize("kind", ["stretches", "any"])
@pytest.mark.parametrize("batch", [(3,), (2, 2)])
def test_segments(generator, kind, batch):
    query, key, value = make(generator, batch=batch, rows=30, columns=50)
    draw = (lambda length: np.sort(generator.integers(0, 4, (*batch, length)))) if kind == "stretches" else (lambda length: generator.integers(0, 4, (*batch, length)))
    queries, keys = draw(30), draw(50).astype(np.int32)
    out = sdpa(query, key, value, enable_gqa=True, query_segments=queries, key_segments=keys)
    allowed = queries[..., None, :, None] == keys[..., None, None, :]
    reference.assert_close(out, masked(query, key, value, allowed), reference.tolerance(query, key, value))
    with pytest.raises(ValueError, match="query_segments and key_segments"):
        sdpa(query, key, value, enable_gqa=True, query_segments=queries)
    with pytest.raises(ValueError, match=r"key_segments: is int64\[.*30\], expected \[..., 50\]"):
        sdpa(query, key, value, enable_gqa=True, query_segments=queries, key_segments=queries)


@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (2, 4, 3, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_block_mask(generator, shape, dtype):
    query, key, value = make(generator, rows=40, columns=70)
    blocks = (generator.random(shape) < 0.6).astype(dtype)
    out = sdpa(query, key, value, enable_gqa=True, block_mask=blocks, block_size=(16, 16))
    allowed = np.repeat(np.repeat(blocks != 0, 16, -2), 16, -1)[..., :40, :70]
    allowed = allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape)
    reference.assert_close(out, masked(query, key, value, allowed), reference.tolerance(query, key, value))
    with pytest.raises(ValueError, match="block_mask and block_size"):
        sdpa(query, key, value, enable_gqa=True, block_mask=blocks)
    with pytest.raises(TypeError, match="block_mask: data type is float32"):
        sdpa(query, key, value, enable_gqa=True, block_mask=blocks.astype(np.float32), block_size=(16, 16))
    with pytest.raises(ValueError, match="block_mask is"):
        sdpa(query, key, value, enable_gqa=True, block_mask=blocks, block_size=(16, 8))


def test_attention_weights_of_packed_sequences(generator):
    query, key, _ = make(generator, batch=(1,), rows=14, columns=20)
    ends = [0, 1, 10, 14], [0, 6, 6, 20]
    packed = dict(cu_seqlens_q=ends[0], cu_seqlens_k=np.int32(ends[1]))
    weights = polyhead.attention_weights(query, key, **packed)
    assert weights.shape == (1, 4, 14, 20)
    expected = np.zeros_like(weights)
    for i in range(3):
        rows, keys = (slice(side[i], side[i + 1]) for side in ends)
        if keys.start < keys.stop:
            expected[:, :, rows, keys] = polyhead.attention_weights(query[:, :, rows], key[:, :, keys])
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    assert not weights[expected == 0].any()
    some = polyhead.attention_weights(query, key, heads=[1], rows=[13, 0], **packed)
    np.testing.assert_array_equal(some, weights[:, [1]][:, :, [13, 0]])
    received = polyhead.attention_weights(query, key, received=True, **packed)
    np.testing.assert_allclose(received, weights.sum(2), atol=1e-5)
    with pytest.raises(ValueError, match="cu_seqlens_q and cu_seqlens_k: one of them is given"):
        polyhead.attention_weights(query, key, cu_seqlens_q=[0, 14])
    with pytest.raises(ValueError, match=r"cumulative_key_lengths\[1\] is 21, expected 0 to 20"):
        polyhead.attention_weights(query, key, cu_seqlens_q=[0, 14], cu_seqlens_k=[0, 21])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_weights(generator, causal):
    query, key, value = make(generator, rows=9, columns=20)
    weights = polyhead.attention_weights(query, key, is_causal=causal)
    assert weights.shape == (2, 4, 9, 20)
    out = sdpa(query, key, value, enable_gqa=True, is_causal=causal)
    np.testing.assert_allclose(weights @ np.repeat(value, 2, axis=1), out, atol=5e-6)
    if causal:
        assert not np.triu(weights, 1).any()
    some = polyhead.attention_weights(query, key, is_causal=causal, heads=[3, 1], rows=np.int32([8, 0, 4]))
    assert some.tobytes() == weights[:, [3, 1]][:, :, [8, 0, 4]].tobytes()
    received = polyhead.attention_weights(query, key, is_causal=causal, heads=[2], received=True)
    np.testing.assert_allclose(received[:, 0], weights[:, 2].sum(1), atol=1e-5)
    with pytest.raises(ValueError, match=r"heads\[0\] is 4, expected 0 to 3"):
        polyhead.attention_weights(query, key, heads=[4])
    with pytest.raises(ValueError, match="query: is"):
        polyhead.attention_weights(query[0], key)
