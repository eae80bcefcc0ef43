"""float16 and bfloat16 operands: read in place, computed in float32, rounded once."""

import subprocess
import sys

import numpy as np
import polyhead
import pytest
import reference

sdpa = polyhead.scaled_dot_product_attention


def dtypes():
    yield pytest.param(np.dtype(np.float16), id="float16")
    try:
        import ml_dtypes
    except ImportError:
        yield pytest.param(None, id="bfloat16", marks=pytest.mark.skip(reason="needs ml_dtypes"))
    else:
        yield pytest.param(np.dtype(ml_dtypes.bfloat16), id="bfloat16")


every_type = pytest.mark.parametrize("dtype", list(dtypes()))


def make(generator, dtype, rows=5, columns=7, heads=4, kv_heads=2, dim=16):
    draw = lambda *shape: generator.standard_normal(shape).astype(dtype)
    return draw(2, heads, rows, dim), draw(2, kv_heads, columns, dim), draw(2, kv_heads, columns, dim)


def numbers(array):
    return np.asarray(array.astype(np.float32), np.float64)


def limit(dtype, *operands):
    """Of float32, and half a step of the type at the largest value."""
    operands = [numbers(operand) for operand in operands]
    return reference.tolerance(*operands) + np.abs(operands[2]).max() * (2.0**-11 if dtype == np.float16 else 2.0**-8)


def check(dtype, query, key, value, **options):
    out = sdpa(query, key, value, enable_gqa=True, **options)
    assert isinstance(out, np.ndarray) and out.dtype == dtype
    causal = options.get("is_causal", False)
    expected = reference.attention(
        *map(numbers, (query, key, value)), options.get("attn_mask"), causal, lengths=options.get("key_lengths")
    )
    reference.assert_close(numbers(out), expected, limit(dtype, query, key, value))
    return out


@every_type
@pytest.mark.parametrize("rows", [1, 3, 17, 65])
@pytest.mark.parametrize("columns", [1, 31, 200])
def test_against_float64(generator, dtype, rows, columns):
    operands = make(generator, dtype, rows, columns)
    check(dtype, *operands)
    check(dtype, *operands, is_causal=True)
    check(dtype, *operands, attn_mask=generator.random((rows, columns)) < 0.7)
    check(dtype, *operands, attn_mask=generator.standard_normal((2, 1, rows, columns)).astype(dtype).astype(np.float32))
    check(dtype, *operands, key_lengths=[columns, columns // 2])


@every_type
def test_rounds_the_float32_result_to_nearest_even(generator, dtype):
    """Equal weights: means that lie between two neighbouring numbers."""
    bits = np.arange(0x3000, 0x3400, dtype=np.uint16)
    value = np.stack([bits.view(dtype), (bits + 1).view(dtype)])[None]
    query, key = np.zeros((1, 1, 8), dtype), np.ones((1, 2, 8), dtype)
    out = sdpa(query, key, value)
    np.testing.assert_array_equal(out.view(np.uint16)[0, 0], bits + bits % 2)


@every_type
def test_layouts(generator, dtype):
    query, key, value = make(generator, dtype)
    expected = sdpa(query, key, value, enable_gqa=True)
    turned = [np.swapaxes(np.ascontiguousarray(np.swapaxes(array, 1, 2)), 1, 2) for array in (query, key, value)]
    np.testing.assert_array_equal(sdpa(*turned, enable_gqa=True).view(np.uint16), expected.view(np.uint16))
    wide = np.repeat(key, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(sdpa(query, wide, value, enable_gqa=True).view(np.uint16), expected.view(np.uint16))
    backwards = np.ascontiguousarray(key[..., ::-1])[..., ::-1]
    np.testing.assert_array_equal(sdpa(query, backwards, value, enable_gqa=True).view(np.uint16), expected.view(np.uint16))
    crooked = np.frombuffer(b" " + value.tobytes(), np.uint8)[1:].view(dtype).reshape(value.shape)
    np.testing.assert_array_equal(sdpa(query, key, crooked, enable_gqa=True).view(np.uint16), expected.view(np.uint16))
    frozen = query.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(sdpa(frozen, key, value, enable_gqa=True).view(np.uint16), expected.view(np.uint16))


@every_type
def test_out_is_written_in_place(generator, dtype):
    query, key, value = make(generator, dtype)
    room = np.zeros((2, 5, 4, 16), dtype)
    out = room.swapaxes(1, 2)
    assert sdpa(query, key, value, enable_gqa=True, out=out) is out
    np.testing.assert_array_equal(out.view(np.uint16), sdpa(query, key, value, enable_gqa=True).view(np.uint16))
    frozen = np.zeros_like(out)
    frozen.flags.writeable = False
    with pytest.raises(polyhead.InvalidArgumentError, match="out: the array is read-only"):
        sdpa(query, key, value, enable_gqa=True, out=frozen)


@every_type
def test_types_may_not_be_mixed(generator, dtype):
    query, key, value = make(generator, dtype)
    for arguments, message in [
        ((query.astype(np.float32), key, value), f"key: data type is {dtype.name}, expected float32, query's"),
        ((query, key.astype(np.float32), value), f"key: data type is float32, expected {dtype.name}, query's"),
        ((query, key, value.astype(np.float32)), f"value: data type is float32, expected {dtype.name}, query's"),
    ]:
        with pytest.raises(TypeError, match=message):
            sdpa(*arguments, enable_gqa=True)
    with pytest.raises(TypeError, match=f"out: data type is float32, expected {dtype.name}, query's"):
        sdpa(query, key, value, enable_gqa=True, out=np.zeros((2, 4, 5, 16), np.float32))


@every_type
def test_attention_weights(generator, dtype):
    """Weights are float32 and not rounded, whatever query and key are; the two may be of types of their own."""
    query, key, _ = make(generator, dtype, rows=9, columns=20)
    wide = query.astype(np.float32), key.astype(np.float32)
    expected = polyhead.attention_weights(*wide, is_causal=True)
    for given in [(query, key), (wide[0], key), (query, wide[1])]:
        weights = polyhead.attention_weights(*given, is_causal=True)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, expected, atol=4e-6)
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(-1, dtype=np.float64), 1, atol=1e-6)
        some = polyhead.attention_weights(*given, is_causal=True, heads=[3], rows=[8, 0])
        np.testing.assert_array_equal(some, weights[:, [3]][:, :, [8, 0]])
        received = polyhead.attention_weights(*given, is_causal=True, received=True)
        np.testing.assert_allclose(received, weights.sum(2), atol=1e-5)
    with pytest.raises(TypeError, match="key: data type is float64, expected float32, float16 or bfloat16"):
        polyhead.attention_weights(query, wide[1].astype(np.float64))


@every_type
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_merge(generator, dtype, batch):
    """What the merge of the same numbers in float32 rounds to."""
    draw = lambda *shape: generator.standard_normal((*batch, *shape), np.float32)
    parts = [(draw(4, 5, 16).astype(dtype), draw(4, 5)) for _ in range(2)]
    wide = [(out.astype(np.float32), lse) for out, lse in parts]
    sink = generator.standard_normal(4).astype(np.float32)
    out, lse = polyhead.merge(*parts[0], *parts[1], sink=sink)
    expected, expected_lse = polyhead.merge(*wide[0], *wide[1], sink=sink)
    assert out.dtype == dtype and lse.dtype == np.float32
    np.testing.assert_array_equal(out.view(np.uint16), expected.astype(dtype).view(np.uint16))
    np.testing.assert_array_equal(lse, expected_lse)
    own, own_lse = polyhead.merge(*parts[0], *parts[1], sink=sink, out=parts[1][0], lse=parts[1][1])
    assert own is parts[1][0] and own.tobytes() == out.tobytes() and own_lse.tobytes() == lse.tobytes()
    with pytest.raises(TypeError, match=f"out2: data type is float32, expected {dtype.name}, out1's"):
        polyhead.merge(*parts[0], *wide[1])
    with pytest.raises(TypeError, match=f"out: data type is float32, expected {dtype.name}, out1's"):
        polyhead.merge(*parts[0], *parts[1], out=np.empty(out.shape, np.float32))
    with pytest.raises(TypeError, match=f"lse1: data type is {dtype.name}, expected float32"):
        polyhead.merge(parts[0][0], parts[0][1].astype(dtype), *parts[1])


@every_type
@pytest.mark.parametrize("operands", ["float32", "the same"])
def test_numbers_of_heads_and_tables(generator, dtype, operands):
    """Slopes, sinks and tables of 16 bits are what they are in float32, whatever the operands are."""
    query, key, value = make(generator, np.float32 if operands == "float32" else dtype)
    q, k, v = (np.ascontiguousarray(operand.swapaxes(1, 2)) for operand in (query, key, value))
    flat = [operand.reshape(-1, *operand.shape[2:]) for operand in (q, k, v)]
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=2, head_dim=16, page_tokens=4)
    cache.append(key, value)
    ends = [0, 5, 10], [0, 7, 14], 5, 7
    wide = query.astype(np.float32), key.astype(np.float32)
    parts = [sdpa(*wide, value.astype(np.float32), enable_gqa=True, return_lse=True, key_lengths=[n, n]) for n in (3, 6)]
    calls = [
        ((4,), lambda x: sdpa(query, key, value, enable_gqa=True, alibi_slopes=x)),
        ((2, 4), lambda x: sdpa(query, key, value, enable_gqa=True, alibi_slopes=x)),
        ((4,), lambda x: sdpa(query, key, value, enable_gqa=True, sink=x)),
        ((32, 4), lambda x: sdpa(query, key, value, enable_gqa=True, relative_bias=polyhead.T5Bias(x))),
        ((25, 4), lambda x: sdpa(query, key, value, enable_gqa=True, relative_bias=polyhead.SwinBias(x, (3, 3)))),
        ((2, 4), lambda x: polyhead.attention_weights(*wide, alibi_slopes=x)),
        ((4,), lambda x: polyhead.attention_weights(*wide, sink=x)),
        ((32, 4), lambda x: polyhead.attention_weights(*wide, relative_bias=polyhead.T5Bias(x))),
        ((2, 4), lambda x: polyhead.flash_attn_func(q, k, v, alibi_slopes=x)),
        ((4,), lambda x: polyhead.flash_attn_func(q, k, v, sink=x)),
        ((2, 4), lambda x: polyhead.flash_attn_varlen_func(*flat, *ends, alibi_slopes=x)),
        ((4,), lambda x: polyhead.flash_attn_varlen_func(*flat, *ends, sink=x)),
        ((4,), lambda x: polyhead.flash_attn_with_kvcache(q, k, v, cache_seqlens=[7, 3], alibi_slopes=x)),
        ((4,), lambda x: polyhead.flash_attn_with_kvcache(q, k, v, cache_seqlens=[7, 3], sink=x)),
        ((4,), lambda x: polyhead.flash_attn_with_kvcache(q, cache, None, causal=True, sink=x)),
        ((2, 4), lambda x: cache.attention(query, alibi_slopes=x)),
        ((4,), lambda x: cache.attention(query, sink=x)),
        ((32, 4), lambda x: cache.attention(query, relative_bias=polyhead.T5Bias(x))),
        ((4,), lambda x: polyhead.merge(*parts[0], *parts[1], sink=x)[0]),
    ]
    for shape, call in calls:
        given = generator.standard_normal(shape).astype(dtype)
        expected = call(given.astype(np.float32)).tobytes()
        assert call(given).tobytes() == expected
        assert call(np.repeat(given, 2, axis=-1)[..., ::2]).tobytes() == expected
        assert call(-given).tobytes() != expected
    shut = np.array([0.5, -np.inf, 2, -np.inf]).astype(dtype)
    out = sdpa(query, key, value, enable_gqa=True, sink=shut)
    assert out.tobytes() == sdpa(query, key, value, enable_gqa=True, sink=shut.astype(np.float32)).tobytes()
    np.testing.assert_array_equal(out[:, 1], sdpa(query, key, value, enable_gqa=True)[:, 1])
    with pytest.raises(ValueError, match=f"sink: is {dtype.name}.3., expected float32.4."):
        sdpa(query, key, value, enable_gqa=True, sink=shut[:3])
    with pytest.raises(ValueError, match=f"relative_bias.table: is {dtype.name}.4., expected float32.rows, heads."):
        sdpa(query, key, value, enable_gqa=True, relative_bias=polyhead.T5Bias(shut))


@every_type
def test_infinities(generator, dtype):
    query, key, value = make(generator, dtype)
    value[0, 0, 3, 2] = np.inf
    out = numbers(sdpa(query, key, value, enable_gqa=True))
    assert np.isposinf(out[0, :2, :, 2]).all() and np.isfinite(out[1]).all() and np.isfinite(out[0, 2:]).all()
    hidden = np.arange(7) != 3
    assert np.isfinite(numbers(sdpa(query, key, value, enable_gqa=True, attn_mask=hidden[None]))).all()


@every_type
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_masks_are_worth_their_numbers(generator, dtype, rows):
    bias = (3 * generator.standard_normal((2, 1, rows, 70))).astype(dtype)
    bias[..., 2] = -np.inf
    hidden = bias.copy()
    hidden[1, :, :, 60:] = np.nan
    for operands in (make(generator, np.float32, rows, 70), make(generator, dtype, rows, 70)):
        out = numbers(sdpa(*operands, bias, enable_gqa=True))
        expected = reference.attention(*map(numbers, operands), numbers(bias))
        reference.assert_close(out, expected, limit(dtype, *operands))
        for mask in (bias, bias[..., ::-1], bias[:1, :, :1], bias[0, 0, 0], bias[..., 5:6], bias[:, :, ::-1, :]):
            options = {"attn_mask": mask.astype(np.float32), "enable_gqa": True}
            expected = sdpa(*operands, **options)
            np.testing.assert_array_equal(numbers(sdpa(*operands, mask, enable_gqa=True)), numbers(expected))
        out = sdpa(*operands, hidden, enable_gqa=True, key_lengths=[70, 60])
        expected = sdpa(*operands, bias, enable_gqa=True, key_lengths=[70, 60])
        np.testing.assert_array_equal(numbers(out), numbers(expected))
    query, key, _ = make(generator, np.float32, rows, 70)
    np.testing.assert_array_equal(
        polyhead.attention_weights(query, key, bias), polyhead.attention_weights(query, key, bias.astype(np.float32))
    )


READS_A_MASK = """
import resource, sys
import ml_dtypes, numpy as np, polyhead
query, key, value = np.random.default_rng(3).standard_normal((3, 1, 1, 8192, 16), np.float32)
bias = np.full((8192, 8192), 0.5, np.float16 if sys.argv[1] == "float16" else ml_dtypes.bfloat16)  # 128 MB, and there
attend = polyhead.scaled_dot_product_attention
plain = attend(query, key, value, window_size=(3, 0))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = attend(query, key, value, bias, window_size=(3, 0))
np.testing.assert_allclose(out, plain, rtol=0, atol=1e-5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the most memory that a process has had is counted in kilobytes on Linux")
@every_type
def test_masks_are_read_in_place(dtype):
    run = subprocess.run([sys.executable, "-c", READS_A_MASK, dtype.name], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 100_000, "a copy in float32 would be 256 MB"


@every_type
def test_flash_attn_functions(generator, dtype):
    operands = make(generator, dtype)
    q, k, v = (np.ascontiguousarray(operand.swapaxes(1, 2)) for operand in operands)
    expected = polyhead.flash_attn_func(*(operand.astype(np.float32) for operand in (q, k, v)), causal=True)
    out, lse, _ = polyhead.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert out.dtype == dtype and lse.dtype == np.float32
    reference.assert_close(numbers(out), numbers(expected), limit(dtype, *operands))
    flat = [operand.reshape(-1, *operand.shape[2:]) for operand in (q, k, v)]
    given = np.empty_like(flat[0])
    result = polyhead.flash_attn_varlen_func(*flat, [0, 5, 10], [0, 7, 14], 5, 7, causal=True, out=given)
    assert result is given and given.tobytes() == out.tobytes()
    with pytest.raises(TypeError, match=f"k: data type is float32, expected {dtype.name}, q's"):
        polyhead.flash_attn_func(q, k.astype(np.float32), v)
    with pytest.raises(TypeError, match=f"out: data type is float32, expected {dtype.name}, q's"):
        polyhead.flash_attn_func(q, k, v, out=np.empty(q.shape, np.float32))
