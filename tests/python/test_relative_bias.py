"""T5Bias and SwinBias, against the models' own code with a bias array."""

import math

import numpy as np
import polyhead
import pytest
import reference

sdpa = polyhead.scaled_dot_product_attention


def t5_buckets(distance, bidirectional, buckets, max_distance):
    """As T5's published code has it, in float32."""
    result = np.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        result += (distance > 0) * buckets
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        share = np.log(distance.astype(np.float32) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    far = exact + np.where(distance < exact, 0, share * np.float32(buckets - exact)).astype(np.int64)
    return result + np.where(distance < exact, distance, np.minimum(far, buckets - 1))


def swin_index(height, width):
    """relative_position_index of Swin's published code."""
    positions = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")).reshape(2, -1)
    relative = positions[:, :, None] - positions[:, None, :]
    return (relative[0] + height - 1) * (2 * width - 1) + relative[1] + width - 1


def make(generator, rows, columns, heads=4, kv_heads=2, batch=(2,)):
    draw = lambda heads, length: generator.standard_normal((*batch, heads, length, 16), np.float32)
    return draw(heads, rows), draw(kv_heads, columns), draw(kv_heads, columns)


@pytest.mark.parametrize("bidirectional, buckets, max_distance", [(True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 6, 50)])
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 300), (40, 300), (300, 300)])
def test_t5(generator, bidirectional, buckets, max_distance, rows, columns):
    query, key, value = make(generator, rows, columns)
    table = generator.standard_normal((buckets, 4), np.float32)
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    bias = np.moveaxis(table[t5_buckets(distance, bidirectional, buckets, max_distance)], -1, 0)
    given = polyhead.T5Bias(table, bidirectional, max_distance)
    for causal in (False, True):
        out = sdpa(query, key, value, enable_gqa=True, scale=1.0, relative_bias=given, is_causal=causal)
        expected = reference.attention(query, key, value, bias, causal, 1.0)
        reference.assert_close(out, expected, reference.tolerance(query, key, value, 1.0))
    # As the array that it stands for, bit for bit.
    plain = sdpa(query, key, value, np.ascontiguousarray(bias), enable_gqa=True, scale=1.0)
    assert sdpa(query, key, value, enable_gqa=True, scale=1.0, relative_bias=given).tobytes() == plain.tobytes()


@pytest.mark.parametrize("height, width", [(7, 7), (1, 9), (5, 1), (4, 6)])
def test_swin(generator, height, width):
    length = height * width
    query, key, value = make(generator, length, length, batch=(6,))
    table = generator.standard_normal(((2 * height - 1) * (2 * width - 1), 4), np.float32)
    bias = np.moveaxis(table[swin_index(height, width)], -1, 0)
    given = polyhead.SwinBias(table, (height, width))
    out = sdpa(query, key, value, enable_gqa=True, relative_bias=given)
    reference.assert_close(out, reference.attention(query, key, value, bias), reference.tolerance(query, key, value))
    # Shifted windows hide regions from each other.
    mask = generator.random((6, 1, length, length)) < 0.7
    out = sdpa(query, key, value, mask, enable_gqa=True, relative_bias=given)
    hidden = np.where(mask, bias, -np.inf)
    reference.assert_close(out, reference.attention(query, key, value, hidden), reference.tolerance(query, key, value))


def test_weights(generator):
    query, key, value = make(generator, 20, 20)
    given = polyhead.T5Bias(generator.standard_normal((32, 4), np.float32))
    weights = polyhead.attention_weights(query, key, relative_bias=given)
    out = np.einsum("bhts,bhsd->bhtd", weights.astype(np.float64), np.repeat(value, 2, 1).astype(np.float64))
    reference.assert_close(sdpa(query, key, value, enable_gqa=True, relative_bias=given), out, 1e-5)


def test_over_a_cache(generator):
    cache = polyhead.KvCache("paged", kv_heads=2, head_dim=16, page_tokens=8)
    query, key, value = make(generator, 50, 50, batch=(1,))
    given = polyhead.T5Bias(generator.standard_normal((32, 4), np.float32), bidirectional=False)
    expected = sdpa(query, key, value, enable_gqa=True, is_causal=True, relative_bias=given)
    for begin in range(0, 50, 10):
        step = slice(begin, begin + 10)
        cache.append(key[:, :, step], value[:, :, step])
        out = cache.attention(query[:, :, step], relative_bias=given)
        reference.assert_close(out, expected[:, :, step].astype(np.float64), reference.tolerance(query, key, value))
    with pytest.raises(ValueError, match="relative_bias is Swin's"):
        cache.attention(query[:, :, :1], relative_bias=polyhead.SwinBias(np.zeros((169, 4), np.float32), (7, 7)))


def test_names_what_is_wrong(generator):
    query, key, value = make(generator, 9, 9)
    table = np.zeros((32, 4), np.float32)
    call = lambda given, **options: sdpa(query, key, value, enable_gqa=True, relative_bias=given, **options)
    with pytest.raises(TypeError, match="relative_bias: is 3, expected polyhead.T5Bias"):
        call(3)
    with pytest.raises(TypeError, match="relative_bias.table: data type is float64"):
        call(polyhead.T5Bias(table.astype(np.float64)))
    with pytest.raises(ValueError, match=r"relative_bias_table is f32\[32, 3\], expected f32\[32, 4\]"):
        call(polyhead.T5Bias(np.ascontiguousarray(table[:, :3])))
    with pytest.raises(ValueError, match="relative_bias.table: is float32.4."):
        call(polyhead.T5Bias(table[0]))
    with pytest.raises(ValueError, match="max_distance is 8"):
        call(polyhead.T5Bias(table, max_distance=8))
    with pytest.raises(TypeError, match="two integers as window"):
        call(polyhead.SwinBias(table, 3))
    with pytest.raises(ValueError, match=r"relative_bias_table is f32\[32, 4\], expected f32\[25, 4\]"):
        call(polyhead.SwinBias(table, (3, 3)))
    with pytest.raises(ValueError, match="has_bias is true, expected false beside a relative bias"):
        call(polyhead.T5Bias(table), attn_mask=np.zeros((9, 9), np.float32))
    with pytest.raises(ValueError, match="positions of an image have no order"):
        call(polyhead.SwinBias(np.zeros((25, 4), np.float32), (3, 3)), is_causal=True)
