"""ONNX's Attention, written as docs/onnx_attention.md says, against the reference evaluator of the onnx package."""

import itertools

import numpy as np
import polyhead
import pytest

onnx = pytest.importorskip("onnx", "1.23", reason="onnx 1.23 or later is not installed: earlier evaluators cap scores after the mask")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

BATCH, ROWS, HEAD, VALUE = 2, 5, 8, 6
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


def causal_mask(rows, keys, offset):
    return np.arange(keys) <= np.arange(rows)[:, None] + offset


def attend(arrays, attributes):
    """The same by polyhead: the table's rows in code."""
    q_heads, kv_heads = attributes.get("q_num_heads"), attributes.get("kv_num_heads")
    three = arrays["Q"].ndim == 3
    query, key, value = split_heads(arrays["Q"], q_heads), split_heads(arrays["K"], kv_heads), split_heads(arrays["V"], kv_heads)
    options = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap", 0.0)}
    mask, past, nonpad = arrays.get("attn_mask"), arrays.get("past_key"), arrays.get("nonpad_kv_seqlen")
    causal = bool(attributes.get("is_causal", 0))
    offset = 0
    if past is not None:
        offset = past.shape[2]
        key, value = (np.concatenate([arrays["past_" + name], new], axis=2) for name, new in (("key", key), ("value", value)))
    rows, keys = query.shape[2], key.shape[2]
    if mask is not None and mask.shape[-1] < keys:
        shut = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        mask = np.pad(mask, shut, constant_values=False if mask.dtype == bool else -np.inf)
    flash = dict(softmax_scale=options["scale"], softcap=options["softcap"], causal=True)
    by_length = [x.swapaxes(1, 2) for x in (query, key, value)]
    if causal and mask is None and nonpad is not None:
        out = polyhead.flash_attn_with_kvcache(*by_length, cache_seqlens=nonpad, **flash).swapaxes(1, 2)
    elif causal and mask is None and past is not None:
        out = polyhead.flash_attn_func(*by_length, **flash).swapaxes(1, 2)
    elif causal and mask is None:
        out = polyhead.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True, **options)
    else:
        if causal:
            offset = offset if nonpad is None else (nonpad - rows)[:, None, None, None]
            seen = causal_mask(rows, keys, offset)
            mask = mask & seen if mask.dtype == bool else np.where(seen, mask, -np.inf)
        out = polyhead.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, key_lengths=nonpad, **options)
    return out.swapaxes(1, 2).reshape(*arrays["Q"].shape[:2], -1) if three else out


def make_mask(kind, generator, heads, keys, dtype):
    if kind is None:
        return None
    shape = {"[T, S]": (ROWS, keys), "[B, 1, T, S]": (BATCH, 1, ROWS, keys), "[B, H, T, S]": (BATCH, heads, ROWS, keys)}[kind[1]]
    if kind[0] == "bool":
        mask = generator.random(shape) < 0.7
        mask[..., 0] = True  # the evaluator makes NaN of a row without a key
        return mask
    mask = generator.standard_normal(shape).astype(dtype)
    mask[..., 1:][generator.random(shape)[..., 1:] < 0.2] = -np.inf
    return mask


def for_evaluator(arrays, attributes):
    """It takes 0 times -inf of a boolean mask together with is_causal; the same mask as a float means the same."""
    mask = arrays.get("attn_mask")
    if mask is None or mask.dtype != bool or not attributes.get("is_causal"):
        return arrays
    return {**arrays, "attn_mask": np.where(mask, 0, -np.inf).astype(arrays["Q"].dtype)}


MASKS = [None, ("bool", "[T, S]"), ("bool", "[B, H, T, S]"), ("float", "[T, S]"), ("float", "[B, 1, T, S]"), ("float", "[B, H, T, S]")]


@pytest.mark.parametrize("opset, cache", [(23, None), (23, "past"), (24, None), (24, "past"), (24, "nonpad")])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2)])
def test_combinations(generator, opset, cache, mask, heads, kv_heads):
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
        given = make_mask(mask, generator, heads, kept + new, dtype)
        if given is not None:
            arrays["attn_mask"] = given
        if cache == "past":
            arrays.update(past_key=draw(kv_heads, kept, HEAD), past_value=draw(kv_heads, kept, VALUE))
        if cache == "nonpad":
            arrays["nonpad_kv_seqlen"] = np.array([12, 6], np.int64)
        (expected,) = evaluate(opset, for_evaluator(arrays, attributes), attributes)
        actual = attend(arrays, attributes)
        assert actual.dtype == dtype and actual.shape == expected.shape
        assert np.isfinite(expected).all(), f"the evaluator's result has a NaN: {attributes}"
        # In float16 the evaluator rounds scores and weights too.
        np.testing.assert_allclose(actual, expected, atol=1e-5 if dtype == np.float32 else 2e-2, err_msg=str(attributes))


def test_a_mask_may_be_shorter_than_the_keys(generator):
    draw = lambda length: generator.standard_normal((BATCH, 4, length, HEAD)).astype(np.float32)
    for mask in (generator.random((ROWS, 6)) < 0.8, generator.standard_normal((BATCH, 1, ROWS, 6)).astype(np.float32)):
        if mask.dtype == bool:
            mask[:, 0] = True
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


def test_a_row_without_a_key_is_zero_here(generator):
    draw = lambda length: generator.standard_normal((1, 1, length, HEAD)).astype(np.float32)
    mask = np.ones((ROWS, 9), bool)
    mask[2] = False
    arrays = {"Q": draw(ROWS), "K": draw(9), "V": draw(9), "attn_mask": mask}
    (expected,) = evaluate(23, arrays, {})
    actual = attend(arrays, {})
    rest = np.arange(ROWS) != 2
    np.testing.assert_allclose(actual[:, :, rest], expected[:, :, rest], atol=1e-5)
    assert not actual[:, :, 2].any()
