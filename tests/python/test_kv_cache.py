"""KvCache from Python: attention over it against float64, forks, files, errors, threads."""

import threading

import numpy as np
import polyhead
import pytest
import reference
from test_sequences import flash

KINDS = {
    "contiguous": {"kind": "contiguous", "capacity": 64},
    "ring": {"kind": "ring", "capacity": 64, "window": 64},
    "paged": {"kind": "paged", "page_tokens": 7},
}


def draw(generator, *shape):
    return generator.standard_normal(shape, np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_attention_over_a_cache(generator, kind, rows):
    cache = polyhead.KvCache(**KINDS[kind], sequences=3, kv_heads=2, head_dim=16, value_dim=12)
    key, value = draw(generator, 2, 2, 40, 16), draw(generator, 2, 2, 40, 12)
    for begin in range(0, 40, 9):
        cache.append(key[:, :, begin : begin + 9], value[:, :, begin : begin + 9], sequences=[2, 0])
    assert cache.lengths == [40, 0, 40]
    query = draw(generator, 2, 4, rows, 16)
    out = cache.attention(query, sequences=[2, 0])
    allowed = np.arange(40)[None, :] <= np.arange(rows)[:, None] + 40 - rows
    expected = reference.attention(query, key, value, allowed[None, None])
    reference.assert_close(out, expected, reference.tolerance(query, key, value))
    target = np.empty_like(out)
    assert cache.attention(query, sequences=[2, 0], out=target) is target
    assert np.array_equal(out, target)


def test_masks_and_score_changes(generator):
    cache = polyhead.KvCache("paged", kv_heads=1, head_dim=8, page_tokens=4)
    key, value, query = draw(generator, 1, 1, 30, 8), draw(generator, 1, 1, 30, 8), draw(generator, 1, 2, 5, 8)
    cache.append(key, value)
    window = (np.arange(30)[None, :] <= np.arange(5)[:, None] + 25) & (np.arange(30)[None, :] > np.arange(5)[:, None] + 25 - 6)
    limit = reference.tolerance(query, key, value)
    reference.assert_close(
        cache.attention(query, window=6), reference.attention(query, key, value, window[None, None]), limit
    )
    kept = window | ((np.arange(30) < 4) & (np.arange(5)[:, None] >= 0))
    reference.assert_close(
        cache.attention(query, window=6, sink_token_length=4), reference.attention(query, key, value, kept[None, None]), limit
    )
    distance = np.arange(30)[None, :] - (np.arange(5)[:, None] + 12)
    slopes = np.float32([0.25, -0.125])
    bias = np.where(distance > -6, -slopes[:, None, None].astype(np.float64) * np.abs(distance), -np.inf)
    reference.assert_close(
        cache.attention(query, is_causal=False, window=6, alibi_slopes=slopes, offsets=[12]),
        reference.attention(query, key, value, bias),
        limit,
    )
    mask = generator.random((1, 2, 5, 30)) < 0.5
    reference.assert_close(
        cache.attention(query, attn_mask=mask, is_causal=False), reference.attention(query, key, value, mask), limit
    )
    bias = draw(generator, 2, 1, 30)
    reference.assert_close(
        cache.attention(query, attn_mask=bias, is_causal=False, softcap=2.0, sink=np.float32([0.5, -1])),
        reference.attention(query, key, value, bias, softcap=2.0, sink=np.float32([0.5, -1])),
        limit,
    )
    half = bias.astype(np.float16)
    np.testing.assert_array_equal(
        cache.attention(query, attn_mask=half, is_causal=False),
        cache.attention(query, attn_mask=half.astype(np.float32), is_causal=False),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_packed_queries(generator, kind):
    cache = polyhead.KvCache(**KINDS[kind], sequences=5, kv_heads=2, head_dim=16, value_dim=12)
    key, value = draw(generator, 4, 2, 60, 16), draw(generator, 4, 2, 60, 12)
    lengths, queries, sequences = [60, 9, 0, 33], [3, 9, 2, 1], [4, 0, 1, 2]
    cache.append(key, value, sequences=sequences, lengths=lengths)
    ends = np.concatenate([[0], np.cumsum(queries)])
    query, slopes = draw(generator, 1, 4, 17, 16), 0.1 * draw(generator, 4, 4)  # two rows behind the last sequence
    out, lse = cache.attention(query, sequences=sequences, cu_seqlens_q=ends, return_lse=True, alibi_slopes=slopes)
    assert out.shape == (1, 4, 17, 12) and lse.shape == (1, 4, 17)
    assert not out[:, :, 15:].any() and np.all(lse[:, :, 15:] == -np.inf)
    for i, (length, rows) in enumerate(zip(lengths, queries)):
        part = slice(ends[i], ends[i + 1])
        parts = (array.swapaxes(0, 1) for array in (query[0, :, part], key[i, :, :length], value[i, :, :length]))
        expected, expected_lse = flash(*parts, causal=True, slopes=slopes[i])
        reference.assert_close(out[0, :, part], expected.swapaxes(0, 1), reference.tolerance(query, key, value))
        np.testing.assert_allclose(lse[0, :, part], expected_lse, atol=1e-5)
        if rows:
            alone = cache.attention(query[:, :, part], sequences=[sequences[i]], alibi_slopes=slopes[i])
            assert alone.tobytes() == out[:, :, part].tobytes()
    causal = kind == "ring"  # which takes no other alignment
    fewer = cache.attention(query, sequences=sequences, cu_seqlens_q=ends, query_lengths=[1, 0, 2, 0], is_causal=causal)
    assert not fewer[:, :, 1:12].any() and fewer[:, :, :1].any()


def test_prefixes_and_blocks(generator):
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=1, head_dim=8, page_tokens=4)
    key, value, query = draw(generator, 2, 1, 30, 8), draw(generator, 2, 1, 30, 8), draw(generator, 2, 2, 5, 8)
    cache.append(key, value, lengths=[30, 12])
    rows, columns = np.arange(5)[:, None], np.arange(30)[None, :]
    causal = np.stack([columns <= rows + 25, (columns <= rows + 7) & (columns < 12)])[:, None]
    seen = causal | np.stack([columns < 28 + 0 * rows, columns < 10 + 0 * rows])[:, None]
    limit = reference.tolerance(query, key, value)
    reference.assert_close(cache.attention(query, prefix_lengths=[28, 10]), reference.attention(query, key, value, seen), limit)
    blocks = generator.random((2, 2, 3, 4)) < 0.6
    wide = blocks.repeat(2, 2).repeat(8, 3)[:, :, :5, :30]
    reference.assert_close(
        cache.attention(query, block_mask=blocks, block_size=(2, 8)), reference.attention(query, key, value, causal & wide), limit
    )
    for options, message in [
        ({"cu_seqlens_q": [0, 5]}, "query: has a batch of 2, expected 1 with cu_seqlens_q"),
        ({"query_lengths": [5, 6]}, r"query_lengths\[1\] is 6, expected 0 to 5"),
        ({"prefix_lengths": [1, 1], "is_causal": False}, "has_prefix is true, expected false without a causal alignment"),
        ({"block_mask": blocks}, "block_mask and block_size"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.attention(query, **options)
    ring = polyhead.KvCache("ring", sequences=2, kv_heads=1, head_dim=8, capacity=40, window=30)
    ring.append(key, value)
    with pytest.raises(ValueError, match="has_prefix is true, expected false over a ring"):
        ring.attention(query, prefix_lengths=[1, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("sink", [None, np.float32([0.5, -1])])
def test_lse(generator, kind, rows, sink):
    cache = polyhead.KvCache(**KINDS[kind], sequences=3, kv_heads=1, head_dim=16)
    key, value, query = draw(generator, 3, 1, 40, 16), draw(generator, 3, 1, 40, 16), draw(generator, 3, 2, rows, 16)
    lengths = np.int32([40, 9, 0])
    cache.append(key, value, lengths=lengths)
    out, lse = cache.attention(query, sink=sink, return_lse=True)
    assert lse.shape == (3, 2, rows) and lse.dtype == np.float32
    assert out.tobytes() == cache.attention(query, sink=sink).tobytes()
    for b, length in enumerate(lengths):
        parts = (array.swapaxes(0, 1) for array in (query[b], key[b, :, :length], value[b, :, :length]))
        expected, expected_lse = flash(*parts, causal=True, sink=sink)
        reference.assert_close(out[b], expected.swapaxes(0, 1), reference.tolerance(query, key, value))
        np.testing.assert_allclose(lse[b], expected_lse, atol=1e-5)
    assert cache.attention(query.astype(np.float16), return_lse=True)[1].dtype == np.float32


@pytest.mark.parametrize("style", ["interleaved", "half_split"])
def test_rotary_embedding(generator, style):
    cache = polyhead.KvCache("contiguous", kv_heads=1, head_dim=8, capacity=9, rotary=style)
    key, query = draw(generator, 1, 1, 4, 8), draw(generator, 1, 3, 4, 8)
    far = 1_000_003
    cache.append(key, key, positions=[far])
    angles = np.arange(far, far + 4)[:, None] * 10000.0 ** (-np.arange(4) / 4)

    def rotate(rows):
        pairs = rows.astype(np.float64)
        x, y = (pairs[..., 0::2], pairs[..., 1::2]) if style == "interleaved" else (pairs[..., :4], pairs[..., 4:])
        turned = x * np.cos(angles) - y * np.sin(angles), x * np.sin(angles) + y * np.cos(angles)
        return np.stack(turned, -1).reshape(rows.shape) if style == "interleaved" else np.concatenate(turned, -1)

    stored, values = cache.read(0)
    assert np.abs(stored - rotate(key)[0]).max() < 1e-6
    assert np.array_equal(values, key[0])
    expected = rotate(query)
    assert np.abs(cache.rotate_queries(query, positions=[far]) - expected).max() < 1e-6
    assert cache.rotate_queries(query, positions=[far], out=query) is query
    assert np.abs(query - expected).max() < 1e-6


def test_forks_share_pages_until_one_writes(generator):
    cache = polyhead.KvCache("paged", sequences=3, kv_heads=1, head_dim=4, page_tokens=4)
    key = draw(generator, 1, 1, 10, 4)
    cache.append(key, key)
    cache.fork(0, 1)
    cache.fork(0, 2, 4)
    assert cache.pages_in_use == 3 and cache.lengths == [10, 10, 4]
    cache.append(key[:, :, :1], key[:, :, :1], sequences=[1])
    assert cache.pages_in_use == 4
    assert np.array_equal(cache.read(0)[0], key[0])
    assert np.array_equal(cache.read(1, 9)[1][0], np.concatenate([key[0, 0, 9:], key[0, 0, :1]]))
    cache.trim(0, 0)
    assert cache.pages_in_use == 3 and cache.length(0) == 0


def test_files(generator, tmp_path):
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=1, head_dim=4, page_tokens=4)
    key = draw(generator, 2, 1, 10, 4)
    cache.append(key, key, lengths=np.int32([10, 3]))
    cache.save(tmp_path / "cache")
    loaded = polyhead.KvCache.load(str(tmp_path / "cache"))
    assert loaded.lengths == [10, 3] and loaded.pages_in_use == cache.pages_in_use
    assert np.array_equal(loaded.read(0)[0], key[0])
    data = bytearray((tmp_path / "cache").read_bytes())
    data[-20] ^= 1
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(polyhead.FileError, match="broken.*checksum"):
        polyhead.KvCache.load(tmp_path / "broken")
    with pytest.raises(polyhead.FileError, match="no such file"):
        polyhead.KvCache.load(tmp_path / "absent")


def test_errors_name_the_argument(generator):
    with pytest.raises(ValueError, match="kind: is 'pages', expected one of 'contiguous', 'ring', 'paged'"):
        polyhead.KvCache("pages", kv_heads=1, head_dim=4)
    with pytest.raises(TypeError, match="rotary: is 3"):
        polyhead.KvCache("paged", kv_heads=1, head_dim=4, rotary=3)
    with pytest.raises(ValueError, match="capacity is 0"):
        polyhead.KvCache("contiguous", kv_heads=1, head_dim=4)
    cache = polyhead.KvCache("paged", kv_heads=1, head_dim=4, page_tokens=2, max_pages=3)
    rows = draw(generator, 1, 1, 4, 4)
    cache.append(rows, rows)
    with pytest.raises(polyhead.OutOfMemoryError, match="max_pages"):
        cache.append(rows, rows)
    assert cache.length(0) == 4
    with pytest.raises(ValueError, match="sequences"):
        cache.append(rows, rows, sequences=[1])
    with pytest.raises(TypeError, match="sequences: data type is float64"):
        cache.append(rows, rows, sequences=[0.5])
    with pytest.raises(TypeError, match="key: data type is float64"):
        cache.append(rows.astype(np.float64), rows)
    with pytest.raises(ValueError, match="query: is float32"):
        cache.attention(rows[0])
    with pytest.raises(ValueError, match="window: is 0"):
        cache.attention(rows, window=0)
    with pytest.raises(ValueError, match="sink_token_length: is -1"):
        cache.attention(rows, window=3, sink_token_length=-1)
    with pytest.raises(ValueError, match="offsets: is given together with is_causal=True"):
        cache.attention(rows, offsets=[0])
    with pytest.raises(ValueError, match=r"offsets is i64\[2\], expected i32 or i64 \[1\]"):
        cache.attention(rows, is_causal=False, offsets=[0, 1])
    with pytest.raises(ValueError, match="without rotary"):
        cache.rotate_queries(rows)
    with pytest.raises(ValueError, match="length: is -1"):
        cache.fork(0, 0, -1)


def test_readers_and_writers_wait_for_each_other(generator):
    """One thread appends while others attend: each answer is one over a whole number of tokens."""
    cache = polyhead.KvCache("paged", kv_heads=1, head_dim=8, page_tokens=4)
    ones = np.ones((1, 1, 3, 8), np.float32)
    cache.append(ones, ones)
    query, wrong, stop = draw(generator, 1, 1, 1, 8), [], threading.Event()

    def attend():
        while not stop.is_set():
            if np.abs(cache.attention(query) - 1).max() > 1e-5:
                wrong.append(cache.length(0))

    readers = [threading.Thread(target=attend) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(200):
        cache.append(ones, ones)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong and cache.length(0) == 603


def stored_types():
    """What NumPy can bring and take; the cache itself stores bfloat16 without it."""
    types = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}
    try:
        import ml_dtypes
    except ImportError:
        return types
    return {**types, "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("brought", list(stored_types()))
def test_stored_types(generator, stored, brought):
    """Rows of any type into a cache of any type: rounded once, and attended to with float32's error."""
    dtype = stored_types()[brought]
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=2, head_dim=16, page_tokens=7, dtype=stored)
    assert cache.dtype == stored
    key, value = (draw(generator, 2, 2, 30, 16).astype(dtype) for _ in range(2))
    query = draw(generator, 2, 4, 3, 16).astype(dtype)
    cache.append(key, value)
    held_key, held_value = (np.stack([cache.read(b)[i] for b in range(2)]) for i in range(2))
    if stored in stored_types():
        np.testing.assert_array_equal(held_key, key.astype(stored_types()[stored]).astype(np.float32))
    out = cache.attention(query)
    assert out.dtype == dtype
    wide = cache.attention(query, out=np.empty(out.shape, np.float32))
    allowed = np.arange(30)[None, :] <= np.arange(3)[:, None] + 27
    numbers = query.astype(np.float32)
    expected = reference.attention(numbers, held_key, held_value, allowed[None, None])
    reference.assert_close(wide, expected, reference.tolerance(numbers, held_key, held_value))
    np.testing.assert_array_equal(out.astype(np.float32), wide.astype(dtype).astype(np.float32))
    with pytest.raises(TypeError, match="out: data type is float64"):
        cache.attention(query, out=np.empty(out.shape, np.float64))


def test_rotation_of_halves(generator):
    rotary = {"kv_heads": 1, "head_dim": 8, "capacity": 9, "rotary": "half_split"}
    wide, narrow = polyhead.KvCache("contiguous", **rotary), polyhead.KvCache("contiguous", **rotary, dtype="float16")
    key = draw(generator, 1, 1, 4, 8).astype(np.float16)
    for cache in (wide, narrow):
        cache.append(key, key)
    np.testing.assert_array_equal(narrow.read(0)[0], wide.read(0)[0].astype(np.float16))
    query = draw(generator, 1, 3, 4, 8).astype(np.float16)
    turned = narrow.rotate_queries(query)
    assert turned.dtype == np.float16
    exact = wide.rotate_queries(query, out=np.empty(query.shape, np.float32))
    np.testing.assert_array_equal(turned, exact.astype(np.float16))
    with pytest.raises(ValueError, match="dtype: is 'float64'"):
        polyhead.KvCache("contiguous", **rotary, dtype="float64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "int8"])
def test_attention_weights(generator, kind, stored):
    """Those over the numbers that the cache holds."""
    cache = polyhead.KvCache(**KINDS[kind], sequences=3, kv_heads=2, head_dim=16, dtype=stored)
    key = draw(generator, 2, 2, 40, 16)
    cache.append(key, key, sequences=[2, 0], lengths=[40, 31])
    query = draw(generator, 2, 4, 5, 16)
    weights = cache.attention_weights(query, sequences=[2, 0])
    assert weights.shape == (2, 4, 5, 40) and weights.dtype == np.float32
    for b, (sequence, length) in enumerate([(2, 40), (0, 31)]):
        held = cache.read(sequence)[0][None]
        plain = polyhead.attention_weights(query[b : b + 1], held, causal="bottom_right")
        np.testing.assert_allclose(weights[b, :, :, :length], plain[0], atol=4e-6)
        assert not weights[b, :, :, length:].any()
        assert not np.triu(weights[b], length - 5 + 1).any()
    some = cache.attention_weights(query, sequences=[2, 0], heads=[3, 1], rows=[4, 0])
    np.testing.assert_array_equal(some, weights[:, [3, 1]][:, :, [4, 0]])
    received = cache.attention_weights(query, sequences=[2, 0], received=True)
    np.testing.assert_allclose(received, weights.sum(2), atol=1e-5)
    options = dict(window=7, softcap=2.0, sink=np.float32([0.5, -1, 2, -np.inf]), alibi_slopes=np.float32([0.1, 0.2, 0, -0.1]))
    changed = cache.attention_weights(query[:1].astype(np.float16), sequences=[2], **options)
    held = cache.read(2)[0][None]
    del options["window"]
    plain = polyhead.attention_weights(
        query[:1].astype(np.float16), held, causal="bottom_right", window_size=(6, -1), **options
    )
    np.testing.assert_allclose(changed, plain, atol=4e-6)
    with pytest.raises(ValueError, match=r"heads\[0\] is 4, expected 0 to 3"):
        cache.attention_weights(query, sequences=[2, 0], heads=[4])
    with pytest.raises(ValueError, match=r"sequences\[1\] is 3"):
        cache.attention_weights(query, sequences=[2, 3])
    with pytest.raises(ValueError, match="offsets: is given together with is_causal=True"):
        cache.attention_weights(query, sequences=[2, 0], offsets=[0, 0])


@pytest.mark.parametrize("rows", [1, 20])
def test_integers(generator, rows):
    """A quarter of the memory: 1e-4 from the numbers that are stored, about a percent from those appended."""
    cache = polyhead.KvCache("paged", kv_heads=1, head_dim=64, page_tokens=16, dtype="int8")
    key, value = draw(generator, 1, 1, 500, 64), draw(generator, 1, 1, 500, 64)
    key[..., 7] += 20
    cache.append(key[:, :, :100], value[:, :, :100])
    cache.append(key[:, :, 100:], value[:, :, 100:])
    query = draw(generator, 1, 2, rows, 64)
    out = cache.attention(query)
    allowed = np.arange(500)[None, :] <= np.arange(rows)[:, None] + 500 - rows
    stored = [part[None] for part in cache.read(0)]
    expected = reference.attention(query, *stored, allowed[None, None])
    reference.assert_close(out, expected, reference.tolerance(query, *stored) + 1e-4 * np.abs(stored[1]).max())
    exact = reference.attention(query, key, value, allowed[None, None])
    assert 1e-4 < np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2)) < 0.015
