"""scaled_dot_product_attention against float64: masks, grouped heads, broadcasting, empty sizes."""

import math

import numpy as np
import polyhead
import pytest
import reference

sdpa = polyhead.scaled_dot_product_attention


def make(generator, batch=(2,), heads=3, kv_heads=None, rows=5, columns=7, dim=16, value_dim=None):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    kv_heads = kv_heads or heads
    return (
        draw(*batch, heads, rows, dim),
        draw(*batch, kv_heads, columns, dim),
        draw(*batch, kv_heads, columns, value_dim or dim),
    )


def check(query, key, value, mask=None, lengths=None, **options):
    actual = sdpa(query, key, value, mask, key_lengths=lengths, **options)
    expected = reference.attention(
        query,
        key,
        value,
        mask,
        options.get("is_causal", False),
        options.get("scale"),
        lengths,
        **{name: options[name] for name in ("softcap", "alibi_slopes", "sink") if name in options},
    )
    assert isinstance(actual, np.ndarray) and actual.dtype == np.float32
    reference.assert_close(actual, expected, reference.tolerance(query, key, value, options.get("scale")))


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 65])
@pytest.mark.parametrize("columns", [1, 8, 31, 64, 129])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_of_query_and_key(generator, rows, columns, causal):
    check(*make(generator, rows=rows, columns=columns), is_causal=causal)


@pytest.mark.parametrize("dim, value_dim", [(1, 1), (3, 5), (32, 32), (40, 24), (64, 64), (80, 128), (192, 128)])
def test_head_sizes(generator, dim, value_dim):
    check(*make(generator, dim=dim, value_dim=value_dim, rows=9, columns=20))


@pytest.mark.parametrize("scale", [0.0, -0.5, 1, 2.0])
def test_scale(generator, scale):
    check(*make(generator), scale=scale)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 3])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("sink", [False, True])
def test_score_changes(generator, rows, softcap, alibi, sink):
    options = {"softcap": softcap, "enable_gqa": True}
    if alibi:
        options["alibi_slopes"] = np.float32([0.5, 0.25, 0.125, -0.1])
    if sink:
        options["sink"] = np.float32([0.3, -np.inf, 2, -1])[::-1]
    query, key, value = make(generator, batch=(2, 3), heads=4, kv_heads=2, rows=rows, columns=20)
    check(query, key, value, **options)
    check(query, key, value, is_causal=True, **options)
    check(query, key, value, generator.standard_normal((rows, 20), np.float32), np.full((2, 3), 11), **options)
    if alibi:
        for shape in [(2, 3, 4), (2, 1, 4), (3, 4), (1, 4)]:
            check(query, key, value, **{**options, "alibi_slopes": 0.1 * generator.standard_normal(shape, np.float32)})


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (2, 1, 3)])
def test_leading_dimensions(generator, batch):
    check(*make(generator, batch))


def test_rank_two_and_three(generator):
    query, key, value = make(generator, batch=())
    check(query, key, value)
    assert sdpa(query[0], key[0], value[0]).tobytes() == sdpa(query, key, value)[0].tobytes()


def test_batch_dimensions_broadcast(generator):
    query, key, value = make(generator, batch=(2, 3))
    check(query, key[:1], value[:, :1])
    check(query[:, :1], key, value)
    check(query, key[0, 0], value)
    check(query[0], key, value[1, 2])


def test_a_single_key_head_serves_all(generator):
    query, key, value = make(generator, heads=4)
    check(query, key[:, :1], value[:, :1])
    check(query, key[:, :1], value)
    check(query[:, :1], key, value)


@pytest.mark.parametrize("heads, kv_heads", [(4, 1), (4, 2), (6, 3), (7, 7)])
def test_grouped_heads(generator, heads, kv_heads):
    check(*make(generator, heads=heads, kv_heads=kv_heads), enable_gqa=True)


def test_query_head_h_uses_key_head_h_over_group():
    query, key = np.zeros((1, 4, 2, 8), np.float32), np.zeros((1, 2, 3, 8), np.float32)
    value = np.broadcast_to(np.arange(2, dtype=np.float32)[:, None, None], (1, 2, 3, 8))
    out = sdpa(query, key, value, enable_gqa=True)
    np.testing.assert_array_equal(out[0, :, 0, 0], [0, 0, 1, 1])


@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 7), (5, 1), (3, 1, 7), (2, 1, 1, 7), (2, 3, 5, 7), (1, 1, 1, 1), (2, 1, 5, 1)])
def test_masks_broadcast(generator, shape):
    tensors = make(generator)
    boolean = generator.random(shape) < 0.7
    check(*tensors, boolean)
    bias = generator.standard_normal(shape).astype(np.float32)
    check(*tensors, bias)
    bias[generator.random(shape) < 0.3] = -np.inf
    check(*tensors, bias)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4", ">f8"])
def test_float_masks_of_other_types_are_added_in_f32(generator, dtype):
    tensors = make(generator)
    bias = generator.standard_normal((3, 5, 7)).astype(dtype)
    check(*tensors, bias)
    spread = np.broadcast_to(bias[:, :, :1], (2, 3, 5, 7))
    check(*tensors, spread)


def test_half_precision_masks_convert_exactly():
    """Every float16 there is, read back through a value-selecting softmax: scores of one key against a zero."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves) & (np.abs(halves) < 80)]
    query = np.zeros((1, len(halves), 1), np.float32)
    key = np.zeros((1, 2, 1), np.float32)
    value = np.array([[[1.0], [0.0]]], np.float32)
    mask = np.stack([halves, np.zeros_like(halves)], -1)
    out = sdpa(query, key, value, mask)[0, :, 0]
    np.testing.assert_array_equal(out, sdpa(query, key, value, mask.astype(np.float32))[0, :, 0])


def test_only_minus_infinity_excludes(generator):
    query, key, value = make(generator)
    lowest = np.full((5, 7), np.finfo(np.float64).min)
    # The same finite number on all keys, although out of f32's range: the mean of the values, not zero.
    reference.assert_close(
        sdpa(query, key, value, lowest),
        np.broadcast_to(value.astype(np.float64).mean(-2, keepdims=True), query.shape),
        1e-5,
    )
    assert not sdpa(query, key, value, np.full((5, 7), -np.inf)).any()


def test_a_row_without_keys_is_zero(generator):
    query, key, value = make(generator, batch=(1,), heads=2, rows=6, columns=10, dim=8)
    mask = np.tril(np.ones((6, 10), bool))
    mask[5] = False
    for given in (mask, np.where(mask, 0, -np.inf)):
        out = sdpa(query, key, value, given)
        assert not out[:, :, 5].any()
        reference.assert_close(out, reference.attention(query, key, value, mask), reference.tolerance(query, key, value))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_key_lengths(generator, dtype):
    query, key, value = make(generator, batch=(4,), rows=7)
    lengths = np.array([7, 0, 3, 1], dtype)
    check(query, key, value, lengths=lengths)
    check(query, key, value, lengths=lengths, is_causal=True)
    check(query, key, value, generator.random((7, 7)) < 0.8, lengths)
    expected = sdpa(query, key, value, key_lengths=lengths)
    for given in (lengths[:, None], lengths.tolist(), tuple(lengths.tolist()), np.repeat(lengths, 2)[::2], lengths[::-1].copy()[::-1]):
        np.testing.assert_array_equal(sdpa(query, key, value, key_lengths=given), expected)


def test_key_lengths_with_several_batch_dimensions(generator):
    query, key, value = make(generator, batch=(2, 3))
    lengths = generator.integers(0, 8, (2, 3))
    check(query, key, value, lengths=lengths)
    check(query, key, value, lengths=lengths[:, :1])
    check(query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1), lengths=lengths.T)


def test_what_is_masked_is_never_read(generator):
    query, key, value = make(generator)
    mask = np.ones((5, 7), bool)
    mask[:, [2, 6]] = False
    expected = sdpa(query, key, value, mask)
    for poison in (np.nan, np.inf):
        key[:, :, [2, 6]] = value[:, :, [2, 6]] = poison
        np.testing.assert_array_equal(sdpa(query, key, value, mask), expected)


def test_nan_in_what_is_seen_reaches_the_output(generator):
    query, key, value = make(generator)
    query[1, 2, 3, 0] = np.nan
    out = sdpa(query, key, value)
    assert np.isnan(out[1, 2, 3]).all()
    assert np.isnan(out).sum() == out.shape[-1]


@pytest.mark.parametrize("batch, rows, columns", [((0,), 5, 7), ((2,), 0, 7), ((2,), 5, 0), ((0,), 0, 0), ((3, 0), 4, 4), ((0, 3), 4, 4)])
def test_empty_sizes(generator, batch, rows, columns):
    query, key, value = make(generator, batch, rows=rows, columns=columns)
    out = sdpa(query, key, value)
    assert out.shape == (*batch, 3, rows, 16) and not out.any()


def test_empty_sizes_of_the_other_functions(generator):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    for batch, rows, columns in [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)]:
        q, k, v = draw(batch, rows, 4, 8), draw(batch, columns, 2, 8), draw(batch, columns, 2, 6)
        out, lse, _ = polyhead.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        assert out.shape == (batch, rows, 4, 6) and not out.any()
        assert lse.shape == (batch, 4, rows) and (lse == -np.inf).all()
        weights = polyhead.attention_weights(q.swapaxes(1, 2), k.swapaxes(1, 2))
        assert weights.shape == (batch, 4, rows, columns) and not weights.any()
        merged, merged_lse = polyhead.merge(out, lse.swapaxes(1, 2), out, lse.swapaxes(1, 2))
        assert merged.shape == out.shape and not merged.any() and (merged_lse == -np.inf).all()
        operation = polyhead.MultiHeadAttention(*(draw(12, 12) for _ in range(4)), heads=3)
        y = operation(draw(batch, rows, 12), draw(batch, columns, 12))
        assert y.shape == (batch, rows, 12) and not y.any()
    for lengths, key_lengths in [([0, 0, 3], [2, 0, 0]), ([0], [0]), ([], [])]:
        q, k = draw(sum(lengths), 4, 8), draw(sum(key_lengths), 2, 8)
        ends = [np.concatenate([[0], np.cumsum(part)]).astype(np.int32) for part in (lengths, key_lengths)]
        out = polyhead.flash_attn_varlen_func(q, k, k, *ends, 3, 3)
        assert out.shape == q.shape and not out.any()
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=2, head_dim=8, page_tokens=4)
    assert not cache.attention(draw(2, 4, 3, 8)).any()
    cache.append(draw(2, 2, 0, 8), draw(2, 2, 0, 8))
    cache.append(draw(0, 2, 3, 8), draw(0, 2, 3, 8))
    assert cache.lengths == [0, 0]
    assert cache.attention(draw(0, 4, 3, 8)).shape == (0, 4, 3, 8)
    assert cache.attention(draw(2, 4, 0, 8)).shape == (2, 4, 0, 8)
    # Lists of none, of which NumPy makes floats.
    cache.append(draw(0, 2, 3, 8), draw(0, 2, 3, 8), sequences=[], lengths=())
    assert cache.attention(draw(0, 4, 3, 8), sequences=[]).shape == (0, 4, 3, 8)
    query, key = draw(2, 4, 3, 8), draw(2, 4, 5, 8)
    assert polyhead.attention_weights(query, key, heads=[]).shape == (2, 0, 3, 5)
    assert polyhead.attention_weights(query, key, rows=()).shape == (2, 4, 0, 5)
    received = polyhead.attention_weights(query, key, rows=[], received=True)
    assert received.shape == (2, 4, 5) and not received.any()
    assert sdpa(query[:0], key[:0], key[:0], key_lengths=[], query_lengths=()).shape == (0, 4, 3, 8)


def test_causal_is_top_left():
    query, key = np.zeros((1, 2, 4), np.float32), np.zeros((1, 5, 4), np.float32)
    value = np.arange(5, dtype=np.float32)[None, :, None]
    np.testing.assert_allclose(sdpa(query, key, value, is_causal=True)[0, :, 0], [0, 0.5], atol=1e-6)


def test_out_is_written_and_returned(generator):
    query, key, value = make(generator, value_dim=24)
    expected = sdpa(query, key, value)
    out = np.full(expected.shape, np.nan, np.float32)
    assert sdpa(query, key, value, out=out) is out
    assert out.tobytes() == expected.tobytes()


def test_default_scale_is_one_over_root_of_dim(generator):
    query, key, value = make(generator)
    np.testing.assert_array_equal(sdpa(query, key, value), sdpa(query, key, value, scale=1 / math.sqrt(16)))


def test_fast_is_close_to_strict(generator):
    query, key, value = make(generator, rows=40)
    strict = sdpa(query, key, value)
    assert sdpa(query, key, value, precision="strict").tobytes() == strict.tobytes()
    reference.assert_close(sdpa(query, key, value, precision="fast"), strict, 1e-3)
