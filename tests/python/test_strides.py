"""Arrays as they lie in memory: reversed, stepped, broadcast, misaligned, foreign, read-only."""

import array

import numpy as np
import polyhead
import pytest
import reference

sdpa = polyhead.scaled_dot_product_attention


def transposed(a):
    return np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)


def stepped(a):
    wide = np.full((*a.shape[:-1], 2 * a.shape[-1]), np.nan, a.dtype)
    wide[..., ::2] = a
    return wide[..., ::2]


def rows_apart(a):
    tall = np.full((*a.shape[:-2], 3 * a.shape[-2], a.shape[-1]), np.nan, a.dtype)
    tall[..., 1::3, :] = a
    return tall[..., 1::3, :]


def reversed_all(a):
    backwards = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[backwards])[backwards]


def offset(a):
    flat = np.full(a.size + 3, np.nan, a.dtype)
    flat[3:] = a.ravel()
    return flat[3:].reshape(a.shape)


def misaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(a.tobytes(), np.uint8)
    view = np.frombuffer(raw.data, a.dtype, offset=1).reshape(a.shape)
    assert not view.flags.aligned
    return view


def odd_byte_strides(a):
    packed = np.zeros(a.shape, np.dtype([("flag", np.uint8), ("value", a.dtype)]))
    packed["value"] = a
    return packed["value"]


def big_endian(a):
    return a.astype(a.dtype.newbyteorder(">"))


def read_only(a):
    copy = a.copy()
    copy.flags.writeable = False
    return copy


in_place = [transposed, stepped, rows_apart, reversed_all, offset, np.asfortranarray]
forms = in_place + [misaligned, odd_byte_strides, big_endian, read_only]


@pytest.fixture
def tensors(generator):
    shapes = (2, 3, 9, 16), (2, 3, 11, 16), (2, 3, 11, 8)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("form", forms)
@pytest.mark.parametrize("which", range(3))
def test_inputs_of_any_layout(tensors, form, which):
    expected = sdpa(*tensors)
    tensors[which] = form(tensors[which])
    reference.assert_close(sdpa(*tensors), expected.astype(np.float64), 1e-6)


@pytest.mark.parametrize("form", forms)
@pytest.mark.parametrize("kind", ["bool", "bias"])
def test_masks_of_any_layout(generator, tensors, form, kind):
    mask = generator.random((2, 3, 9, 11)) < 0.6
    if kind == "bias":
        mask = np.where(mask, generator.standard_normal(mask.shape), -np.inf).astype(np.float32)
    elif form is misaligned:
        mask = np.array(mask)
        form = offset  # a byte cannot be misaligned
    if form is offset and kind == "bool":
        mask = np.concatenate([[True], mask.ravel()])[1:].reshape(mask.shape)
    else:
        mask = form(mask) if not (kind == "bool" and form in (stepped, rows_apart)) else np.repeat(mask, 2, -1)[..., ::2]
    expected = reference.attention(*tensors, np.array(mask))
    reference.assert_close(sdpa(*tensors, mask), expected, reference.tolerance(*tensors))


@pytest.mark.parametrize("form", in_place)
def test_out_of_any_layout(tensors, form):
    expected = sdpa(*tensors)
    base = form(np.zeros(expected.shape, np.float32))
    assert sdpa(*tensors, out=base) is base
    reference.assert_close(base, expected.astype(np.float64), 1e-6)


def test_what_lies_between_is_left_alone(tensors):
    expected = sdpa(*tensors)
    wide = np.full((*expected.shape[:-1], 2 * expected.shape[-1]), 7, np.float32)
    sdpa(*tensors, out=wide[..., 1::2])
    assert (wide[..., ::2] == 7).all()
    reference.assert_close(wide[..., 1::2], expected.astype(np.float64), 1e-6)


def test_broadcast_keys(generator):
    query = generator.standard_normal((4, 3, 9, 16), np.float32)
    key = generator.standard_normal((1, 3, 11, 16), np.float32)
    spread = np.broadcast_to(key, (4, 3, 11, 16))
    assert spread.strides[0] == 0
    reference.assert_close(sdpa(query, spread, spread), reference.attention(query, spread, spread), 1e-5)


def test_batch_dimensions_that_do_not_merge(generator):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    query = draw(3, 2, 4, 2, 5, 8).transpose(1, 0, 2, 3, 4, 5)[:, ::-1]
    key, value = draw(2, 3, 4, 2, 6, 8), draw(2, 3, 4, 2, 6, 8)[:, :, ::-1]
    out = np.zeros((4, 2, 3, 2, 5, 8), np.float32).transpose(1, 2, 0, 3, 4, 5)
    expected = reference.attention(query, key, value)
    sdpa(query, key, value, out=out)
    reference.assert_close(out, expected, reference.tolerance(query, key, value))


def test_other_holders_of_memory(generator, tensors):
    expected = sdpa(*tensors)
    np.testing.assert_array_equal(sdpa(*map(memoryview, tensors)), expected)
    flat = array.array("f", tensors[0].ravel().tolist())
    view = memoryview(flat).cast("B").cast("f", tensors[0].shape)
    np.testing.assert_array_equal(sdpa(view, *tensors[1:]), expected)


def test_objects_with_dlpack(tensors):
    class Holder:
        def __init__(self, held):
            self.held = held

        def __dlpack__(self, **options):
            return self.held.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    out = sdpa(*map(Holder, tensors))
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, sdpa(*tensors))


lines = [stepped, reversed_all, offset, misaligned, odd_byte_strides, big_endian, read_only]  # of one dimension
tables = lines + [rows_apart, np.asfortranarray]


def suits(form, a):
    return form in (lines if a.ndim == 1 else tables if a.ndim == 2 else forms)


def draw(generator, *shape):
    return generator.standard_normal(shape, np.float32)


def flash(q, k, v, slopes, out=None):
    return polyhead.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, out=out)


def flash_varlen(q, k, v, ends, key_ends, used, out=None):
    return polyhead.flash_attn_varlen_func(q, k, v, ends, key_ends, 9, 11, seqused_k=used, out=out)


def merged(out1, lse1, out2, lse2, sink, out=None):
    return polyhead.merge(out1, lse1, out2, lse2, sink=sink, out=out)[0]


def layer(x, source, query_weight, key_weight, value_weight, output_weight, query_bias, key_bias, lengths, out=None):
    operation = polyhead.MultiHeadAttention(
        query_weight, key_weight, value_weight, output_weight, heads=3, query_bias=query_bias, key_bias=key_bias
    )
    return operation(x, source, key_lengths=lengths, out=out)


def cached(key, value, lengths, query, sink, out=None):
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=2, head_dim=8, value_dim=12, page_tokens=4, rotary="half_split")
    cache.append(key, value, lengths=lengths)
    return cache.attention(cache.rotate_queries(query), sink=sink, out=out)


def turned(query, positions, out=None):
    cache = polyhead.KvCache("contiguous", sequences=2, kv_heads=1, head_dim=8, capacity=4, rotary="interleaved")
    return cache.rotate_queries(query, positions=positions, out=out)


def weighed(query, key, mask, slopes, sink, lengths):
    return polyhead.attention_weights(query, key, mask, alibi_slopes=slopes, sink=sink, key_lengths=lengths)


def other(query, key, value, slopes, sink, lengths, queries, query_segments, key_segments, blocks, out=None):
    return sdpa(
        query, key, value, alibi_slopes=slopes, sink=sink, key_lengths=lengths, query_lengths=queries,
        query_segments=query_segments, key_segments=key_segments, block_mask=blocks, block_size=(4, 4), out=out,
    )  # fmt: skip


def arguments_of(function, generator):
    lengths = np.array([11, 6])
    return {
        flash: lambda: [draw(generator, 2, 9, 4, 16), draw(generator, 2, 11, 2, 16), draw(generator, 2, 11, 2, 8), draw(generator, 4)],
        flash_varlen: lambda: [
            draw(generator, 14, 4, 16), draw(generator, 18, 2, 16), draw(generator, 18, 2, 8),
            np.int32([0, 9, 14]), np.array([0, 11, 18]), np.int32([10, 7]),
        ],  # fmt: skip
        merged: lambda: [
            draw(generator, 2, 3, 9, 8), draw(generator, 2, 3, 9), draw(generator, 2, 3, 9, 8), draw(generator, 2, 3, 9), draw(generator, 3),
        ],  # fmt: skip
        layer: lambda: [
            draw(generator, 2, 9, 24), draw(generator, 2, 11, 24), *(draw(generator, 24, 24) / 4 for _ in range(4)),
            draw(generator, 24), draw(generator, 24), lengths,
        ],  # fmt: skip
        cached: lambda: [draw(generator, 2, 2, 11, 8), draw(generator, 2, 2, 11, 12), lengths, draw(generator, 2, 4, 3, 8), draw(generator, 4)],
        turned: lambda: [draw(generator, 2, 4, 9, 8), np.array([1857, 15962])],
        weighed: lambda: [
            draw(generator, 2, 4, 9, 16), draw(generator, 2, 2, 11, 16), generator.random((2, 4, 9, 11)) < 0.7,
            draw(generator, 4), draw(generator, 4), lengths,
        ],  # fmt: skip
        other: lambda: [
            draw(generator, 2, 3, 9, 16), draw(generator, 2, 3, 11, 16), draw(generator, 2, 3, 11, 8), draw(generator, 3), draw(generator, 3),
            lengths, np.int32([9, 5]), generator.integers(0, 2, (2, 9)), generator.integers(0, 2, (2, 11)), generator.random((2, 3, 3, 3)) < 0.8,
        ],  # fmt: skip
    }[function]()


functions = [flash, flash_varlen, merged, layer, cached, turned, weighed, other]


@pytest.mark.parametrize("function", functions, ids=lambda function: function.__name__)
def test_every_function_takes_every_argument_in_any_layout(generator, function):
    arguments = arguments_of(function, generator)
    expected = function(*arguments)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0
    tried = 0
    for place, argument in enumerate(arguments):
        for form in forms:
            if not suits(form, argument) or argument.dtype.kind != "f" and form in (stepped, rows_apart, offset):
                continue  # these put NaN between the elements
            if argument.dtype == bool and form in (misaligned, big_endian):
                continue
            moved = form(argument)
            np.testing.assert_array_equal(moved, argument)
            changed = [*arguments[:place], moved, *arguments[place + 1 :]]
            np.testing.assert_allclose(function(*changed), expected, rtol=0, atol=1e-6, err_msg=f"argument {place} {form.__name__}")
            tried += 1
    assert tried >= 5 * len(arguments)


@pytest.mark.parametrize("function", [function for function in functions if function is not weighed], ids=lambda function: function.__name__)
def test_every_function_writes_into_out_of_any_layout_or_refuses_it(generator, function):
    arguments = arguments_of(function, generator)
    expected = function(*arguments)
    for form in in_place:
        out = form(np.zeros(expected.shape, np.float32))
        function(*arguments, out)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6, err_msg=form.__name__)
    for form in (misaligned, odd_byte_strides, big_endian, read_only):
        out = form(np.zeros(expected.shape, np.float32))
        with pytest.raises(polyhead.InvalidArgumentError, match="out: "):
            function(*arguments, out)
        assert not out.any(), form.__name__
