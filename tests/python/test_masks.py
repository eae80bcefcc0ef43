"""Masks of scaled_dot_product_attention and attention_weights, alone and together, against float64."""

import numpy as np
import polyhead
import pytest
import reference
from test_relative_bias import t5_buckets

sdpa = polyhead.scaled_dot_product_attention
BATCH, HEADS, KV_HEADS = 2, 4, 2

# What says where a query stands, and what lies around it.
PLACES = {
    "top left": {"causal": "top_left"},
    "bottom right": {"causal": "bottom_right"},
    "offset": {"causal": "offset", "offsets": [3, -4]},
    "window": {"window_size": (6, 3)},
    "left": {"window_size": (5, -1)},
    "right": {"window_size": (-1, 4)},
    "kept": {"window_size": (4, 1), "sink_token_length": 3},
    "window from offsets": {"window_size": (6, 0), "offsets": np.array([8, -3], np.int32)},
    "top left, window": {"causal": "top_left", "window_size": (7, -1)},
    "bottom right, kept": {"causal": "bottom_right", "window_size": (5, 2), "sink_token_length": 2},
    "offset, window": {"causal": "offset", "offsets": [20, 2], "window_size": (3, -1)},
}


def changes(score, batch, head, query, key):
    return 0.75 * score + 0.25 * ((7 * batch + 5 * head + 3 * query + 11 * key) % 13 - 6)


def other_parts(generator, rows, columns):
    """What goes with them."""
    segments = lambda length: np.sort(generator.integers(0, 2, (BATCH, length)))
    return {
        "boolean": {"attn_mask": generator.random((BATCH, 1, rows, columns)) < 0.8},
        "bias": {"attn_mask": generator.standard_normal((HEADS, rows, columns), np.float32)},
        "key lengths": {"key_lengths": [columns - 7, 5]},
        "query lengths": {"query_lengths": [rows, rows // 2]},
        "prefix": {"prefix_lengths": [9, 0]},
        "segments": {"query_segments": segments(rows), "key_segments": segments(columns)},
        "blocks": {"block_mask": generator.random((HEADS, -(-rows // 16), -(-columns // 16))) < 0.7, "block_size": (16, 16)},
        "softcap": {"softcap": 1.5},
        "alibi": {"alibi_slopes": np.float32([0.5, 0.25, 0.125, -0.1])},
        "sink": {"sink": np.float32([0.5, -1, 2, -np.inf])},
        "T5": {"relative_bias": polyhead.T5Bias(generator.standard_normal((32, HEADS), np.float32), max_distance=40)},
        "score_mod": {"score_mod": polyhead.ScoreMod(changes)},
    }


def added_to_scores(options, rows, columns):
    """[batch, heads, rows, columns] as the definitions have it, -inf where a key is hidden."""
    t, s = np.ogrid[:rows, :columns]
    items = []
    for b in range(BATCH):
        number = lambda name, default: int(options[name][b]) if name in options else default
        own_rows, own_columns = number("query_lengths", rows), number("key_lengths", columns)
        causal = options.get("causal")
        place = {"top_left": 0, "bottom_right": own_columns - own_rows}.get(causal, number("offsets", 0))
        distance = s - (t + place)
        left, right = options.get("window_size", (-1, -1))
        seen = (t < own_rows) & (s < own_columns)
        if causal:
            seen = seen & ((distance <= 0) | (s < number("prefix_lengths", 0)))
        if left >= 0:
            seen = seen & ((distance >= -left) | (s < options.get("sink_token_length", 0)))
        if right >= 0:
            seen = seen & (distance <= right)
        if "query_segments" in options:
            seen = seen & (options["query_segments"][b][:, None] == options["key_segments"][b][None, :])
        if "block_mask" in options:
            height, width = options["block_size"]
            seen = seen & options["block_mask"].repeat(height, -2).repeat(width, -1)[..., :rows, :columns]
        added = np.zeros((HEADS, rows, columns))
        if "alibi_slopes" in options:
            added -= options["alibi_slopes"].astype(np.float64)[:, None, None] * np.abs(distance)
        if "relative_bias" in options:
            bias = options["relative_bias"]
            added += np.moveaxis(bias.table[t5_buckets(distance, bias.bidirectional, 32, bias.max_distance)], -1, 0)
        items.append(np.where(seen, added, -np.inf))
    added, mask = np.stack(items), options.get("attn_mask")
    if mask is None:
        return added
    return np.where(mask, added, -np.inf) if mask.dtype == bool else added + mask


def check(generator, options, rows, columns):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, 16), np.float32)
    query, key, value = draw(HEADS, rows), draw(KV_HEADS, columns), draw(KV_HEADS, columns)
    added = added_to_scores(options, rows, columns)
    given = {name: options[name] for name in ("softcap", "sink") if name in options}
    function = changes if "score_mod" in options else None
    expect = lambda value: reference.attention(query, key, value, added, score_function=function, **given)
    each = np.broadcast_to(np.eye(columns), (BATCH, KV_HEADS, columns, columns))  # attention over it is the weights
    expected, expected_weights = expect(value), expect(each)
    limits = [4 * reference.tolerance(query, key, numbers) for numbers in (value, each)]
    # What no query sees may be anything.
    unseen = np.isneginf(added).all(2).reshape(BATCH, KV_HEADS, -1, columns).all(2)
    key[unseen], value[unseen] = np.nan, np.nan
    reference.assert_close(sdpa(query, key, value, enable_gqa=True, **options), expected, limits[0])
    weights = polyhead.attention_weights(query, key, **options)
    reference.assert_close(weights, expected_weights, limits[1])
    assert not weights[np.isneginf(added)].any()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 30), (7, 30), (40, 30), (130, 200)])
def test_alone(generator, place, rows, columns):
    check(generator, PLACES[place], rows, columns)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 20])
def test_pairs(generator, place, rows):
    for name, part in other_parts(generator, rows, 40).items():
        if name != "prefix" or "causal" in PLACES[place]:
            check(generator, {**PLACES[place], **part}, rows, 40)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mask", ["boolean", "bias", "T5"])
def test_everything_at_once(generator, place, mask):
    options = dict(PLACES[place])
    left_out = {"boolean", "bias", "T5"} - {mask}
    if "causal" not in options:
        left_out.add("prefix")
    for name, part in other_parts(generator, 50, 90).items():
        if name not in left_out:
            options.update(part)
    check(generator, options, 50, 90)


def test_offsets_of_several_batch_dimensions(generator):
    draw = lambda length: generator.standard_normal((2, 3, 4, length, 8), np.float32)
    query, key, value = draw(5), draw(20), draw(20)
    offsets = generator.integers(-3, 15, (2, 3))
    t, s = np.ogrid[:5, :20]
    for given in (offsets, offsets.tolist(), offsets[:, :1], offsets[0], offsets[..., None], 6):
        place = np.broadcast_to(np.asarray(given)[..., 0] if np.ndim(given) == 3 else given, (2, 3))[..., None, None, None]
        for turned in (False, True):
            operands = [np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) if turned else x for x in (query, key, value)]
            out = sdpa(*operands, causal="offset", offsets=given)
            expected = reference.attention(query, key, value, np.broadcast_to(s <= t + place, (2, 3, 4, 5, 20)))
            reference.assert_close(out, expected, reference.tolerance(query, key, value))


def test_the_same_bits_as_other_ways_to_say_it(generator):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, 16), np.float32)
    query, key, value = draw(4, 20), draw(2, 50), draw(2, 50)
    call = lambda *mask, **options: sdpa(query, key, value, *mask, enable_gqa=True, **options).tobytes()
    assert call(causal="top_left") == call(is_causal=True) == call(causal="offset", offsets=0)
    assert call(causal="bottom_right") == call(causal="offset", offsets=[30, 30])
    by_length = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (query, key, value)]
    for causal in (False, True):
        flash = polyhead.flash_attn_func(*by_length, causal=causal, window_size=(9, 0), sink_token_length=2)
        where = {"causal": "bottom_right"} if causal else {"offsets": 30}
        assert call(window_size=(9, 0), sink_token_length=2, **where) == flash.swapaxes(1, 2).tobytes()


@pytest.mark.parametrize("place", PLACES)
def test_half_operands(generator, place):
    draw = lambda heads, length: generator.standard_normal((BATCH, heads, length, 16)).astype(np.float16)
    operands = draw(4, 20), draw(2, 50), draw(2, 50)
    out = sdpa(*operands, enable_gqa=True, **PLACES[place])
    wide = [operand.astype(np.float32) for operand in operands]
    expected = sdpa(*wide, enable_gqa=True, **PLACES[place]).astype(np.float64)
    assert out.dtype == np.float16
    reference.assert_close(out, expected, reference.tolerance(*wide) + np.abs(wide[2]).max() * 2.0**-10)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("batch, rows, columns", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)])
def test_empty_sizes(place, batch, rows, columns):
    options = {name: given[:batch] if name == "offsets" else given for name, given in PLACES[place].items()}
    query, key = np.ones((batch, 4, rows, 8), np.float32), np.ones((batch, 2, columns, 8), np.float32)
    out = sdpa(query, key, key, enable_gqa=True, **options)
    assert out.shape == query.shape and not out.any()
    assert polyhead.attention_weights(query, key, **options).shape == (batch, 4, rows, columns)


def test_weights_of_packed_sequences(generator):
    draw = lambda heads, length: generator.standard_normal((1, heads, length, 16), np.float32)
    query, key = draw(4, 14), draw(2, 20)
    ends = [0, 1, 10, 14], [0, 6, 9, 20]
    for options in (
        {"causal": "bottom_right", "window_size": (3, 0), "sink_token_length": 1},
        {"causal": "offset", "offsets": [4, -1, 2]},
        {"causal": "top_left", "key_lengths": [6, 2, 8], "query_lengths": [1, 9, 2], "prefix_lengths": [5, 1, 0]},
    ):
        weights = polyhead.attention_weights(query, key, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], **options)
        expected = np.zeros_like(weights)
        for i in range(3):
            rows, keys = (slice(side[i], side[i + 1]) for side in ends)
            own = {name: given[i : i + 1] if isinstance(given, list) else given for name, given in options.items()}
            expected[:, :, rows, keys] = polyhead.attention_weights(query[:, :, rows], key[:, :, keys], **own)
        np.testing.assert_allclose(weights, expected, atol=2e-6)
        assert expected.any() and not weights[expected == 0].any()


@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention_weights"])
def test_names_what_is_wrong(generator, function):
    x = generator.standard_normal((2, 4, 9, 8), np.float32)
    operands = (x, x, x) if function == "scaled_dot_product_attention" else (x, x)
    call = lambda **options: getattr(polyhead, function)(*operands, **options)
    for options, message in [
        ({"causal": "diagonal"}, "causal: is 'diagonal', expected None, 'top_left', 'bottom_right' or 'offset'"),
        ({"causal": "top_left", "is_causal": True}, "causal: is 'top_left' together with is_causal=True, expected only one"),
        ({"causal": "offset"}, "offsets: is None, expected an integer for each batch item, since causal is 'offset'"),
        ({"causal": "bottom_right", "offsets": [1, 2]}, "offsets: is given together with causal='bottom_right', expected it with"),
        ({"is_causal": True, "offsets": [1, 2]}, "offsets: is given together with is_causal=True, expected it with"),
        ({"causal": "offset", "offsets": [1, 2, 3]}, r"offsets:? is int64\[3\]|offsets:? is i64\[3\]"),
        ({"window_size": (-2, 0)}, r"window_size: is \(-2, 0\), expected two numbers of keys"),
        ({"window_size": (3, -5)}, r"window_size: is \(3, -5\), expected two numbers of keys"),
        ({"sink_token_length": -1}, "sink_token_length: is -1, expected 0 or more keys"),
        ({"window_size": (3, 0), "relative_bias": polyhead.SwinBias(np.zeros((25, 4), np.float32), (3, 3))}, "have no order"),
        ({"prefix_lengths": [1, 2]}, "has_prefix is true, expected false without a causal alignment"),
        ({"query_segments": np.zeros((2, 9), int)}, "query_segments and key_segments: one of them is given"),
        ({"block_size": (3, 3)}, "block_mask and block_size: one of them is given"),
    ]:
        with pytest.raises(polyhead.InvalidArgumentError, match=message):
            call(**options)
    for options, message in [
        ({"causal": True}, "causal: is True, expected None, 'top_left', 'bottom_right' or 'offset'"),
        ({"causal": "offset", "offsets": [0.5, 1]}, "offsets: data type is float64, expected int32 or int64"),
        ({"window_size": 3}, "incompatible function arguments"),
    ]:
        with pytest.raises(TypeError, match=message):
            call(**options)


def test_torchs_rule_is_for_its_own_argument(generator):
    x = generator.standard_normal((2, 4, 9, 8), np.float32)
    mask = generator.random((9, 9)) < 0.7
    with pytest.raises(polyhead.InvalidArgumentError, match="attn_mask: is given together with is_causal=True.*causal='top_left'"):
        sdpa(x, x, x, mask, is_causal=True)
    assert sdpa(x, x, x, mask, causal="top_left").tobytes() == sdpa(x, x, x, mask & np.tri(9, dtype=bool)).tobytes()
