"""Wrong calls: the exception's type, and a message that names the argument."""

import numpy as np
import polyhead
import pytest

sdpa = polyhead.scaled_dot_product_attention


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


query, key, value = zeros(2, 4, 5, 8), zeros(2, 4, 7, 8), zeros(2, 4, 7, 6)


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((zeros(8), key, value), {}, "query: is float32"),
        ((query, zeros(2, 4, 7, 9), value), {}, "key: the head size"),
        ((query, key, zeros(2, 4, 6, 6)), {}, "value: the length"),
        ((query, zeros(2, 2, 7, 8), zeros(2, 2, 7, 6)), {}, "key: has 2 heads.*enable_gqa"),
        ((query, key, zeros(2, 2, 7, 6)), {}, "value: has 2 heads"),
        ((query, zeros(2, 3, 7, 8), zeros(2, 3, 7, 6)), {"enable_gqa": True}, "key: has 3 heads.*divisor"),
        ((query, zeros(2, 2, 7, 8), zeros(2, 4, 7, 6)), {"enable_gqa": True}, "value: the number of heads"),
        ((query, zeros(3, 4, 7, 8), value), {}, "key: is float32.*batch"),
        ((query, key, value, zeros(5, 8)), {}, "attn_mask: is float32"),
        ((query, key, value, zeros(3, 1, 5, 7)), {}, "attn_mask: is float32.*batch"),
        ((query, key, value, zeros(1, 2, 4, 5, 7)), {}, "attn_mask: has 5 dimensions"),
        ((query, key, value, zeros(5, 7)), {"is_causal": True}, "attn_mask: is given together with is_causal"),
        ((query, key, value), {"key_lengths": [1, 2, 3]}, "key_lengths"),
        ((query, key, value), {"key_lengths": [1, 8]}, "key_lengths"),
        ((query, key, value), {"key_lengths": [-1, 2]}, "key_lengths"),
        ((query, key, value), {"out": zeros(2, 4, 5, 8)}, "out: is float32.*expected float32.2, 4, 5, 6"),
        ((query, key, value), {"scale": float("nan")}, "scale"),
        ((query, key, value), {"precision": "exact"}, "precision: is 'exact', expected 'strict' or 'fast'"),
        ((query, key, value), {"precision": ""}, "precision: is '', expected 'strict' or 'fast'"),
        ((query, key, value), {"scale": float("inf")}, "scale"),
        ((query, key, value), {"softcap": -1.0}, "softcap is -1.*positive"),
        ((query, key, value), {"softcap": float("nan")}, "softcap is nan"),
        ((query, key, value), {"alibi_slopes": zeros(2)}, "alibi_slopes: is float32.2., expected float32.4."),
        ((query, key, value), {"alibi_slopes": zeros(3, 4)}, "alibi_slopes"),
        ((query, key, value), {"alibi_slopes": zeros(2, 3)}, "alibi_slopes: is float32.2, 3., expected float32.4."),
        ((query, key, value), {"alibi_slopes": np.float32([0, 0, np.nan, 0])}, "alibi_slopes.2. is nan, expected a finite"),
        ((query, key, value), {"sink": zeros(3)}, "sink: is float32.3., expected float32.4."),
        ((query, key, value), {"sink": np.float32([np.inf, 0, 0, 0])}, "sink.0. is inf"),
        ((zeros(*[1] * 9), key, value), {}, "query: the array has 9 dimensions"),
    ],
)
def test_invalid_arguments(arguments, options, message):
    with pytest.raises(polyhead.InvalidArgumentError, match=message) as raised:
        sdpa(*arguments, **options)
    assert isinstance(raised.value, (ValueError, polyhead.Error))
    assert raised.value.code == "invalid_argument"


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((query.astype(np.float64), key, value), {}, "query: data type is float64, expected float32"),
        ((query, key.astype(np.float16), value), {}, "key: data type is float16, expected float32"),
        ((query, key, value.astype(np.int64)), {}, "value: data type is int64"),
        ((query, key, value.astype(np.complex64)), {}, "value: data type complex64"),
        ((query, key, value, zeros(5, 7, dtype=np.int64)), {}, "attn_mask: data type is int64, expected bool"),
        ((query, key, value, zeros(5, 7, dtype=np.uint8)), {}, "attn_mask: data type is uint8, expected bool"),
        ((query, key, value), {"key_lengths": np.ones(2)}, "key_lengths: data type is float64"),
        ((query, key, value), {"alibi_slopes": np.ones(4)}, "alibi_slopes: data type is float64, expected float32, float16 or"),
        ((query, key, value), {"sink": np.ones(4, np.int64)}, "sink: data type is int64, expected float32"),
        ((query, key, value), {"sink": [0.0] * 4}, "sink: expected a NumPy array.*got list"),
        ((query, key, value), {"out": zeros(2, 4, 5, 6, dtype=np.float64)}, "out: data type is float64"),
        ((query, key, value), {"precision": None}, "precision: is None, expected 'strict' or 'fast'"),
        ((query, key, value), {"precision": 1}, "precision: is 1, expected 'strict' or 'fast'"),
        (([[1.0]], key, value), {}, "query: expected a NumPy array.*got list"),
        ((query, None, value), {}, "key: expected a NumPy array.*got NoneType"),
        ((query, key, value), {"out": "x"}, "out: expected a NumPy array.*got str"),
        ((query, np.array([None]), value), {}, "key: data type object"),
    ],
)
def test_wrong_types(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        sdpa(*arguments, **options)


def test_dropout_is_refused():
    with pytest.raises(polyhead.UnsupportedError, match="dropout_p: is 0.1") as raised:
        sdpa(query, key, value, dropout_p=0.1)
    assert isinstance(raised.value, NotImplementedError)


def read_only(a):
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    "out, message",
    [
        (read_only(zeros(2, 4, 5, 6)), "read-only"),
        (zeros(2, 4, 5, 6, dtype=">f4"), "byte order"),
        (np.frombuffer(bytearray(2 * 4 * 5 * 6 * 4 + 1), np.float32, offset=1, count=240).reshape(2, 4, 5, 6), "aligned"),
        (np.broadcast_to(zeros(2, 4, 5, 1), (2, 4, 5, 6)), "read-only"),
    ],
)
def test_out_that_cannot_be_written_in_place(out, message):
    with pytest.raises(polyhead.InvalidArgumentError, match="out: .*" + message):
        sdpa(query, key, value, out=out)


def test_out_may_not_overlap_an_input():
    shared = zeros(2, 4, 5, 8)
    with pytest.raises(polyhead.InvalidArgumentError, match="out"):
        sdpa(shared, zeros(2, 4, 7, 8), zeros(2, 4, 7, 8), out=shared)


def test_a_failed_call_leaves_everything_usable():
    for _ in range(100):
        with pytest.raises(polyhead.Error):
            sdpa(query, key, value, key_lengths=[1, 99])
    assert sdpa(query, key, value).shape == (2, 4, 5, 6)


def test_a_refused_array_is_not_held():
    import sys

    out = read_only(zeros(2, 4, 5, 6))
    before = sys.getrefcount(out)
    for _ in range(10):
        with pytest.raises(polyhead.Error):
            sdpa(query, key, value, out=out)
    assert sys.getrefcount(out) == before


def test_threads_must_be_positive():
    for wrong in (0, -1):
        with pytest.raises(polyhead.InvalidArgumentError, match="threads: is"):
            polyhead.set_num_threads(wrong)
