"""ONNX's Attention, written as docs/onnx_attention.md says, against the reference evaluator of the onnx package."""

import itertools

import numpy as np
import polyhead
import pytest

onnx = pytest.importorskip("onnx", "1.23", reason="onnx 1.23 or later is not installed: earlier evaluators cap scores after the mask")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

BATCH, ROWS, HEAD, VALUE = 3, 5, 8, 6
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def evaluate(opset, arrays, attributes, outputs=("Y",)):
    """The reference evaluator's outputs of one Attention node."""
    names = [name if name in arrays else "" for name in INPUTS]
    while names[-1] == "":
        names.pop()
    results = [name if name in outputs else "" for name in OUTPUTS]
    while results[-1] == "":
        results.pop()
    node = helper.make_node("Attention", names, results, **attributes)
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in arrays.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(list(outputs), arrays)


def split_heads(x, heads):
    """[batch, length, heads * dim] as [batch, heads, length, dim], without a copy."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) if x.ndim == 3 else x


def attend(arrays, attributes):
    """The same by polyhead: the table's rows in code."""
    q_heads, kv_heads = attributes.get("q_num_heads"), attributes.get("kv_num_heads")
    three = arrays["Q"].ndim == 3
    query, key, value = split_heads(arrays["Q"], q_heads), split_heads(arrays["K"], kv_heads), split_heads(arrays["V"], kv_heads)
    mask, past, nonpad = arrays.get("attn_mask"), arrays.get("past_key"), arrays.get("nonpad_kv_seqlen")
    causal = bool(attributes.get("is_causal", 0))
    options = {
        "scale": attributes.get("scale"),
        "softcap": attributes.get("softcap", 0.0),
        "window_size": (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)),
        "key_lengths": nonpad,
    }
    if past is not None:
        key, value = (np.concatenate([arrays["past_" + name], new], axis=2) for name, new in (("key", key), ("value", value)))
        options.update(causal="offset" if causal else None, offsets=past.shape[2])
    elif nonpad is not None:
        options.update({"causal": "bottom_right"} if causal else {"offsets": nonpad - query.shape[2]})
    elif causal:
        options["causal"] = "top_left"
    if mask is not None and mask.shape[-1] < key.shape[2]:
        shut = [(0, 0)] * (mask.ndim - 1) + [(0, key.shape[2] - mask.shape[-1])]
        mask = np.pad(mask, shut, constant_values=False if mask.dtype == bool else -np.inf)
    out = polyhead.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, **options)
    return out.swapaxes(1, 2).reshape(*arrays["Q"].shape[:2], -1) if three else out


def make_mask(kind, generator, heads, keys, dtype):
    if kind is None:
        return None
    shape = {
        "[T, S]": (ROWS, keys),
        "[H, T, S]": (heads, ROWS, keys),
        "[B, 1, T, S]": (BATCH, 1, ROWS, keys),
        "[B, H, T, S]": (BATCH, heads, ROWS, keys),
    }[kind[1]]
    hidden = generator.random(shape) < 0.3
    hidden[..., 2, :] = True  # a row without a key
    return ~hidden if kind[0] == "bool" else np.where(hidden, -np.inf, generator.standard_normal(shape)).astype(dtype)


MASKS = [None, *((kind, shape) for kind in ("bool", "float") for shape in ("[T, S]", "[H, T, S]", "[B, 1, T, S]", "[B, H, T, S]"))]
WINDOWS = [(-1, -1), (2, 0), (3, 1), (-1, 2), (3, -1), (0, 0)]
CACHES = [(23, None), (23, "past"), (24, None), (24, "past"), (24, "nonpad"), (25, None), (25, "past"), (25, "nonpad")]


@pytest.mark.parametrize("opset, cache", CACHES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2)])
def test_combinations(generator, opset, cache, mask, heads, kv_heads):
    windows = itertools.cycle(WINDOWS[:5])  # not a divisor of the combinations' number
    for three, causal, scale, softcap, dtype in itertools.product(
        (False, True), (0, 1), (None, 0.3), (0.0, 2.0), (np.float32, np.float16)
    ):
        kept = 7 if cache == "past" else 0
        new = 12 if cache == "nonpad" else ROWS if cache == "past" else 9
        draw = lambda heads, length, dim: generator.standard_normal((BATCH, heads, length, dim)).astype(dtype)
        join = lambda x: x.swapaxes(1, 2).reshape(BATCH, x.shape[2], -1) if three else x
        arrays = {"Q": join(draw(heads, ROWS, HEAD)), "K": join(draw(kv_heads, new, HEAD)), "V": join(draw(kv_heads, new, VALUE))}
        attributes = {"is_causal": causal}
        if three:
            attributes.update(q_num_heads=heads, kv_num_heads=kv_heads)
        if scale is not None:
            attributes["scale"] = scale
        if softcap:
            attributes["softcap"] = softcap
        if opset == 25:
            attributes["left_window_size"], attributes["right_window_size"] = next(windows)
        given = make_mask(mask, generator, heads, kept + new, dtype)
        if given is not None:
            arrays["attn_mask"] = given
        if cache == "past":
            arrays.update(past_key=draw(kv_heads, kept, HEAD), past_value=draw(kv_heads, kept, VALUE))
        if cache == "nonpad":
            arrays["nonpad_kv_seqlen"] = np.array([12, 3, 0], np.int64)
        (expected,) = evaluate(opset, arrays, attributes)
        actual = attend(arrays, attributes)
        assert actual.dtype == dtype and actual.shape == expected.shape
        assert np.isfinite(expected).all(), f"the evaluator's result has a NaN: {attributes}"
        # In float16 the evaluator rounds scores and weights too.
        np.testing.assert_allclose(actual, expected, atol=1e-5 if dtype == np.float32 else 2e-2, err_msg=str(attributes))


@pytest.mark.parametrize("cache", [None, "past", "nonpad"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(generator, cache, window, causal):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, HEAD)).astype(np.float32)
    arrays = {"Q": draw(4, ROWS), "K": draw(2, 12), "V": draw(2, 12)}
    attributes = {"is_causal": causal, "left_window_size": window[0], "right_window_size": window[1]}
    if cache == "past":
        arrays.update(past_key=draw(2, 7), past_value=draw(2, 7))
    if cache == "nonpad":
        arrays["nonpad_kv_seqlen"] = np.array([12, 3, 8], np.int64)
    (expected,) = evaluate(25, arrays, attributes)
    np.testing.assert_allclose(attend(arrays, attributes), expected, atol=1e-5)
    (without,) = evaluate(25, arrays, {"is_causal": causal})
    assert np.array_equal(expected, without) == (window == (-1, -1) or (causal and window == (-1, 2)))


def test_a_mask_may_be_shorter_than_the_keys(generator):
    draw = lambda length: generator.standard_normal((BATCH, 4, length, HEAD)).astype(np.float32)
    for mask in (generator.random((ROWS, 6)) < 0.8, generator.standard_normal((BATCH, 1, ROWS, 6)).astype(np.float32)):
        arrays = {"Q": draw(ROWS), "K": draw(9), "V": draw(9), "attn_mask": mask}
        (expected,) = evaluate(24, arrays, {})
        np.testing.assert_allclose(attend(arrays, {}), expected, atol=1e-5)
        # Without padding: keys beyond the mask do not exist.
        query, key, value = arrays["Q"], arrays["K"][:, :, :6], arrays["V"][:, :, :6]
        out = polyhead.scaled_dot_product_attention(query, key, value, mask)
        np.testing.assert_allclose(out, expected, atol=1e-5)


def test_weights_are_the_output_of_mode_3(generator):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, HEAD)).astype(np.float32)
    arrays = {"Q": draw(4, ROWS), "K": draw(2, 9), "V": draw(2, 9)}
    for softcap in (0.0, 2.0):
        attributes = {"qk_matmul_output_mode": 3, "is_causal": 1, "softcap": softcap}
        _, expected = evaluate(23, arrays, attributes, ("Y", "qk_matmul_output"))
        weights = polyhead.attention_weights(arrays["Q"], arrays["K"], is_causal=True, softcap=softcap)
        np.testing.assert_allclose(weights, expected, atol=1e-5)
    arrays["attn_mask"] = make_mask(("bool", "[B, H, T, S]"), generator, 4, 9, np.float32)
    attributes = {"qk_matmul_output_mode": 3, "is_causal": 1, "left_window_size": 2, "right_window_size": 0}
    _, expected = evaluate(25, arrays, attributes, ("Y", "qk_matmul_output"))
    weights = polyhead.attention_weights(arrays["Q"], arrays["K"], arrays["attn_mask"], causal="top_left", window_size=(2, 0))
    np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_a_kv_cache_is_past_and_present(generator):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, HEAD)).astype(np.float32)
    past_key, past_value = draw(2, 7), draw(2, 7)
    arrays = {"Q": draw(4, ROWS), "K": draw(2, ROWS), "V": draw(2, ROWS), "past_key": past_key, "past_value": past_value}
    expected, present_key, present_value = evaluate(23, arrays, {"is_causal": 1}, ("Y", "present_key", "present_value"))
    cache = polyhead.KvCache("paged", sequences=BATCH, kv_heads=2, head_dim=HEAD, page_tokens=8)
    cache.append(past_key, past_value)
    cache.append(arrays["K"], arrays["V"])
    np.testing.assert_allclose(cache.attention(arrays["Q"]), expected, atol=1e-5)
    for item in range(BATCH):
        key, value = cache.read(item)
        np.testing.assert_array_equal(key, present_key[item])
        np.testing.assert_array_equal(value, present_value[item])


def test_a_row_without_a_key_is_zero(generator):
    draw = lambda length: generator.standard_normal((1, 1, length, HEAD)).astype(np.float32)
    mask = np.ones((ROWS, 9), bool)
    mask[2] = False
    arrays = {"Q": draw(ROWS), "K": draw(9), "V": draw(9), "attn_mask": mask}
    (expected,) = evaluate(23, arrays, {})
    actual = attend(arrays, {})
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert not actual[:, :, 2].any() and not expected[:, :, 2].any()
