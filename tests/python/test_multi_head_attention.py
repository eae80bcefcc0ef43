"""MultiHeadAttention from arrays, against float64."""

import numpy as np
import polyhead
import pytest
import reference


def weights_of(generator, d_model=24, heads=3, kv_heads=3, dim=8, value_dim=8, key_width=None, value_width=None):
    draw = lambda *shape: generator.standard_normal(shape, np.float32) / 4
    return {
        "query_weight": draw(heads * dim, d_model),
        "key_weight": draw(kv_heads * dim, key_width or d_model),
        "value_weight": draw(kv_heads * value_dim, value_width or key_width or d_model),
        "output_weight": draw(d_model, heads * value_dim),
        "query_bias": draw(heads * dim),
        "key_bias": draw(kv_heads * dim),
        "value_bias": draw(kv_heads * value_dim),
        "output_bias": draw(d_model),
    }


def expected(weights, heads, kv_heads, query, key, value, **options):
    def project(x, name, parts):
        x = np.asarray(x, np.float64) @ weights[name + "_weight"].T.astype(np.float64)
        if weights[name + "_bias"] is not None:
            x = x + weights[name + "_bias"]
        return x.reshape(*x.shape[:2], parts, -1).swapaxes(1, 2)

    heads_out = reference.attention(
        project(query, "query", heads), project(key, "key", kv_heads), project(value, "value", kv_heads), **options
    )
    joined = heads_out.swapaxes(1, 2).reshape(*query.shape[:2], -1)
    out = joined @ weights["output_weight"].T.astype(np.float64)
    return out if weights["output_bias"] is None else out + weights["output_bias"]


@pytest.mark.parametrize("heads, kv_heads, dim, value_dim", [(3, 3, 8, 8), (4, 2, 8, 12), (6, 1, 4, 16), (1, 1, 24, 24)])
def test_self_attention_with_every_mask(generator, heads, kv_heads, dim, value_dim):
    weights = weights_of(generator, 24, heads, kv_heads, dim, value_dim)
    operation = polyhead.MultiHeadAttention(**weights, heads=heads, kv_heads=kv_heads)
    x = generator.standard_normal((3, 10, 24), np.float32)
    boolean = generator.random((3, 1, 10, 10)) < 0.7
    bias = generator.standard_normal((heads, 10, 10), np.float32)
    lengths = np.array([10, 0, 4])
    for options, arguments in [
        ({}, {}),
        ({"causal": True}, {"is_causal": True}),
        ({"mask": boolean}, {"attn_mask": boolean}),
        ({"mask": bias}, {"attn_mask": bias}),
        ({"mask": bias.astype(np.float16).astype(np.float64)}, {"attn_mask": bias.astype(np.float16)}),
        ({"mask": bias}, {"attn_mask": bias.astype(np.float64)}),
        ({"lengths": lengths}, {"key_lengths": lengths}),
        ({"lengths": lengths, "causal": True}, {"key_lengths": lengths, "is_causal": True}),
    ]:
        want = expected(weights, heads, kv_heads, x, x, x, **options)
        reference.assert_close(operation(x, **arguments), want, 2e-5)
    out = np.empty_like(x)
    assert operation(x, out=out) is out
    np.testing.assert_array_equal(out, operation(x))


def test_cross_attention_with_its_own_widths(generator):
    weights = weights_of(generator, 24, 3, 3, 8, 8, key_width=17, value_width=9)
    operation = polyhead.MultiHeadAttention(**weights, heads=3)
    query, key, value = (generator.standard_normal(shape, np.float32) for shape in ((2, 5, 24), (2, 7, 17), (2, 7, 9)))
    reference.assert_close(operation(query, key, value), expected(weights, 3, 3, query, key, value), 2e-5)


def test_without_biases(generator):
    weights = weights_of(generator)
    weights.update({name: None for name in weights if name.endswith("bias")})
    operation = polyhead.MultiHeadAttention(**weights, heads=3, scale=0.5)
    x = generator.standard_normal((2, 6, 24), np.float32)
    reference.assert_close(operation(x), expected(weights, 3, 3, x, x, x, scale=0.5), 2e-5)


def test_weights_may_change_afterwards(generator):
    weights = weights_of(generator)
    operation = polyhead.MultiHeadAttention(**weights, heads=3)
    x = generator.standard_normal((2, 6, 24), np.float32)
    want = operation(x), expected(weights, 3, 3, x, x, x, causal=True)
    for weight in weights.values():
        weight[:] = np.nan
    np.testing.assert_array_equal(operation(x), want[0])
    reference.assert_close(operation(x, is_causal=True), want[1], 2e-5)


def test_fast_is_close_to_strict(generator):
    weights = weights_of(generator)
    x = generator.standard_normal((2, 20, 24), np.float32)
    strict = polyhead.MultiHeadAttention(**weights, heads=3)(x)
    fast = polyhead.MultiHeadAttention(**weights, heads=3, precision="fast")(x)
    reference.assert_close(fast, strict, 1e-3)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 5}, "query_weight: has 24 rows, expected a multiple of its 5"),
        ({"heads": 0}, "heads: is 0"),
        ({"kv_heads": 2}, "kv_heads: is 2"),
        ({"query_weight": np.zeros(24, np.float32)}, "query_weight: is float32.24."),
        ({"output_weight": np.zeros((24, 23), np.float32)}, "output"),
        ({"key_bias": np.zeros(23, np.float32)}, "key"),
        ({"precision": "exact"}, "precision: is 'exact', expected 'strict' or 'fast'"),
    ],
)
def test_wrong_weights(generator, change, message):
    arguments = {**weights_of(generator), "heads": 3, **change}
    with pytest.raises(polyhead.InvalidArgumentError, match=message):
        polyhead.MultiHeadAttention(**arguments)


def test_wrong_inputs(generator):
    operation = polyhead.MultiHeadAttention(**weights_of(generator), heads=3)
    with pytest.raises(polyhead.InvalidArgumentError, match="query: is float32.*expected .batch, length, width."):
        operation(np.zeros((5, 24), np.float32))
    with pytest.raises(polyhead.InvalidArgumentError, match="query"):
        operation(np.zeros((1, 5, 23), np.float32))
    with pytest.raises(TypeError, match="query: data type is float64"):
        operation(np.zeros((1, 5, 24)))


@pytest.mark.parametrize(
    "kind, bound",
    [
        ("bf16", 2**-8),
        ("f16", 2**-11),
        ("int8", 1 / 100),
        ("int4", 0.25),
        ("int8_dynamic", 1 / 50),
        ("bf16_dynamic", 2**-7),
    ],
)
def test_weights_in_fewer_bits(generator, kind, bound):
    weights = weights_of(generator)
    x = generator.standard_normal((2, 7, 24), np.float32)
    exact = expected(weights, 3, 3, x, x, x)
    out = polyhead.MultiHeadAttention(**weights, heads=3, weights=kind)(x)
    assert 0 < np.abs(out - exact).max() < 4 * bound * np.abs(exact).max()


def test_weights_that_are_float16(generator):
    weights = weights_of(generator)
    narrow = {name: w.astype(np.float16) if name.endswith("weight") else w for name, w in weights.items()}
    widened = {name: w.astype(np.float32) for name, w in narrow.items()}
    x = generator.standard_normal((2, 7, 24), np.float32)
    expected_bits = polyhead.MultiHeadAttention(**widened, heads=3)(x)
    np.testing.assert_array_equal(polyhead.MultiHeadAttention(**narrow, heads=3)(x), expected_bits)
    np.testing.assert_array_equal(polyhead.MultiHeadAttention(**narrow, heads=3, weights="f16")(x), expected_bits)


def test_wrong_kind_of_weights(generator):
    with pytest.raises(polyhead.InvalidArgumentError, match="weights: is 'i8'"):
        polyhead.MultiHeadAttention(**weights_of(generator), heads=3, weights="i8")
    wrong = {**weights_of(generator), "query_weight": np.zeros((24, 24))}
    with pytest.raises(TypeError, match="query_weight: data type is float64, expected float32, float16 or bfloat16"):
        polyhead.MultiHeadAttention(**wrong, heads=3)
