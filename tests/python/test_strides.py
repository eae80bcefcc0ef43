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
    return np.ascontiguousarray(a[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]


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
