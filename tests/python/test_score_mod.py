"""Score modifications: NumPy functions, compiled functions by address, Numba; against float64."""

import ctypes
import shutil
import subprocess
import threading

import numpy as np
import polyhead
import pytest
import reference
from polyhead.score_mod import ScoreRange, ScoreTile

sdpa = polyhead.scaled_dot_product_attention


def make(generator, batch=(2,), heads=4, kv_heads=2, rows=9, columns=70, dim=16):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    return draw(*batch, heads, rows, dim), draw(*batch, kv_heads, columns, dim), draw(*batch, kv_heads, columns, dim)


def check(operands, mod, function, **options):
    actual = sdpa(*operands, score_mod=mod, enable_gqa=True, **options)
    expected = reference.attention(
        *operands,
        options.get("attn_mask"),
        options.get("is_causal", False),
        softcap=options.get("softcap", 0.0),
        score_function=function,
    )
    reference.assert_close(actual, expected, 4 * reference.tolerance(*operands))


def places(score, batch, head, query, key):
    """A number of its own for each place; one place in seven is hidden."""
    pattern = 0.25 * ((7 * batch + 5 * head + 3 * query + 11 * key) % 13 - 6)
    return np.where((batch + head + query + 2 * key) % 7 == 0, -np.inf, 0.75 * score + pattern)


@pytest.mark.parametrize("rows", [1, 3, 9, 70])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"softcap": 1.5}])
def test_numpy_function(generator, rows, batch, options):
    check(make(generator, batch, rows=rows), polyhead.ScoreMod(places), places, **options)


def test_mask_comes_after_it(generator):
    operands = make(generator)
    mask = generator.random((9, 70)) < 0.5
    hides_nothing = lambda score, batch, head, query, key: np.where(mask[query, key], score, np.nan)
    actual = sdpa(*operands, mask, enable_gqa=True, score_mod=polyhead.ScoreMod(hides_nothing))
    np.testing.assert_array_equal(actual, sdpa(*operands, mask, enable_gqa=True, score_mod=polyhead.ScoreMod(lambda s, *_: s)))
    check(operands, polyhead.ScoreMod(places), places, attn_mask=mask)


def test_batch_items_are_counted_through_all_leading_dimensions(generator):
    query, key, value = make(generator, (3, 2))
    query = np.swapaxes(query, 0, 1)  # does not lie evenly in memory: one native call for each of its two rows
    key, value = np.swapaxes(key, 0, 1), np.swapaxes(value, 0, 1)
    seen = set()

    def watch(score, batch, head, query_place, key_place):
        seen.add(batch)
        return places(score, batch, head, query_place, key_place)

    check((query, key, value), polyhead.ScoreMod(watch), places)
    assert seen == set(range(6))


@pytest.mark.parametrize("rows", [1, 9])
def test_over_a_cache(generator, rows):
    query, key, value = make(generator, rows=rows)
    cache = polyhead.KvCache("paged", sequences=2, kv_heads=2, head_dim=16, page_tokens=16)
    cache.append(key, value)
    actual = cache.attention(query, is_causal=False, score_mod=polyhead.ScoreMod(places))
    expected = reference.attention(query, key, value, score_function=places)
    reference.assert_close(actual, expected, 4 * reference.tolerance(query, key, value))
    with pytest.raises(ZeroDivisionError):
        cache.attention(query, score_mod=polyhead.ScoreMod(lambda *_: 1 // 0))


def test_weights(generator):
    query, key, value = make(generator)
    weights = polyhead.attention_weights(query, key, score_mod=polyhead.ScoreMod(places))
    actual = weights @ np.repeat(value, 2, axis=1)
    expected = reference.attention(query, key, value, score_function=places)
    reference.assert_close(actual, expected, 8 * reference.tolerance(query, key, value))
    with pytest.raises(ZeroDivisionError):
        polyhead.attention_weights(query, key, score_mod=polyhead.ScoreMod(lambda *_: 1 // 0))


def test_classifier(generator):
    operands = make(generator, rows=300, columns=300)
    asked, changed = [], []

    def same_block(score, batch, head, query, key):
        changed.append(score.size)
        return np.where(query // 50 == key // 50, score, -np.inf)

    def classify(batch, heads, queries, keys):
        asked.append((batch, heads, queries, keys))
        apart = queries[-1] // 50 < keys[0] // 50 or keys[-1] // 50 < queries[0] // 50
        return "skip" if apart else "partial"

    check(operands, polyhead.ScoreMod(same_block), lambda s, b, h, q, k: np.where(q // 50 == k // 50, s, -np.inf))
    without = sum(changed)
    changed.clear()
    mod = polyhead.ScoreMod(same_block, classify, name="blocks")
    check(operands, mod, lambda s, b, h, q, k: np.where(q // 50 == k // 50, s, -np.inf))
    assert sum(changed) < 0.8 * without
    assert all(0 <= b < 2 and h[-1] < 4 and q[-1] < 300 and k[-1] < 300 for b, h, q, k in asked)


@pytest.mark.parametrize("where", ["function", "classify"])
def test_what_it_raises_reaches_the_caller(generator, where):
    class OwnError(Exception):
        pass

    def fails(*_):
        raise OwnError("on purpose")

    mod = polyhead.ScoreMod(fails) if where == "function" else polyhead.ScoreMod(lambda s, *_: s, fails)
    operands = make(generator, rows=200, columns=300)
    for _ in range(2):
        with pytest.raises(OwnError, match="on purpose"):
            sdpa(*operands, enable_gqa=True, score_mod=mod)
    check(operands, polyhead.ScoreMod(places), places)


def test_wrong_results_are_errors(generator):
    operands = make(generator)
    with pytest.raises(TypeError, match="score_mod changes: returned None"):
        sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(lambda *_: None, name="changes"))
    with pytest.raises(ValueError, match="could not be broadcast|broadcast"):
        sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(lambda *_: np.zeros(5)))
    with pytest.raises(ValueError, match="its classifier returned 'maybe'"):
        sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(lambda s, *_: s, lambda *_: "maybe"))
    with pytest.raises(TypeError, match="score_mod: is .*function.*, expected a polyhead.ScoreMod"):
        sdpa(*operands, enable_gqa=True, score_mod=places)
    for nothing in (None, 0, "places", True):
        with pytest.raises(TypeError, match="function: is "):
            polyhead.ScoreMod(nothing)


def test_several_threads(generator):
    operands = make(generator, batch=(8,), rows=300, columns=400)
    threads = polyhead.get_num_threads()
    seen = set()

    def watch(score, batch, head, query, key):
        seen.add(threading.get_ident())
        return places(score, batch, head, query, key)

    try:
        polyhead.set_num_threads(1)
        one = sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(places))
        polyhead.set_num_threads(2)
        two = sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(watch))
    finally:
        polyhead.set_num_threads(threads)
    np.testing.assert_array_equal(one, two)


SOURCE = """
#include "polyhead/polyhead.h"
#include <math.h>
struct alibi { const float* slopes; };
polyhead_status change(const polyhead_score_tile* tile, void* context) {
  const float* slopes = ((const struct alibi*)context)->slopes;
  int64_t i, j;
  for (i = 0; i < tile->lines; ++i)
    for (j = 0; j < tile->lanes; ++j) {
      const int64_t head = tile->head.first + tile->head.of_line[i] + tile->head.of_lane[j];
      const int64_t query = tile->query.first + tile->query.of_line[i] + tile->query.of_lane[j];
      const int64_t key = tile->key.first + tile->key.of_line[i] + tile->key.of_lane[j];
      tile->scores[i * tile->line_stride + j] -= slopes[head] * fabsf((float)(query - key));
    }
  return POLYHEAD_OK;
}
polyhead_tile_class classify(const polyhead_score_range* range, void* context) {
  return context != 0 && range->struct_size == sizeof(*range) ? POLYHEAD_TILE_FULL : -5;
}
int64_t sizes[2] = {sizeof(polyhead_score_tile), sizeof(polyhead_score_range)};
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory, request):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    include = request.config.rootpath / "include"
    if not (include / "polyhead" / "polyhead.h").exists():
        include = __import__("pathlib").Path(__file__).resolve().parents[2] / "include"
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "mod.c").write_text(SOURCE)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", f"-I{include}", "mod.c", "-lm", "-o", "mod.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "mod.so"))


def test_compiled_function(generator, library):
    sizes = (ctypes.c_int64 * 2).in_dll(library, "sizes")
    assert list(sizes) == [ctypes.sizeof(ScoreTile), ctypes.sizeof(ScoreRange)]
    slopes = np.array([0.5, 0.25, 0.1, 0.01], np.float32)
    context = (ctypes.c_void_p * 1)(slopes.ctypes.data)
    by_formula = lambda s, b, h, q, k: s - slopes.astype(np.float64)[h] * np.abs(q - k)
    for rows in (1, 9, 70):
        operands = make(generator, rows=rows)
        for function in (library.change, ctypes.cast(library.change, ctypes.c_void_p).value):
            mod = polyhead.ScoreMod(function, library.classify, context=ctypes.addressof(context), name="alibi")
            check(operands, mod, by_formula)
    with pytest.raises(polyhead.InvalidArgumentError, match="its classifier returned -5"):
        sdpa(*operands, enable_gqa=True, score_mod=polyhead.ScoreMod(library.change, library.classify))


def test_numba(generator):
    pytest.importorskip("numba")

    def manhattan(score, batch, head, query, key):
        distance = abs(query // 5 - key // 5) + abs(query % 5 - key % 5)
        return score - 0.125 * (head + batch) * distance

    mod = polyhead.ScoreMod.from_numba(manhattan)
    assert mod.name == "manhattan"
    for rows in (1, 9, 70):
        check(
            make(generator, rows=rows),
            mod,
            lambda s, b, h, q, k: s - 0.125 * (h + b) * (abs(q // 5 - k // 5) + abs(q % 5 - k % 5)),
        )


def test_numba_functions_by_address(generator):
    numba = pytest.importorskip("numba")
    from numba import carray, types
    from numba.extending import intrinsic

    @intrinsic
    def pointer_at(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), generate

    # ScoreTile and ScoreRange as words of 64 bits.
    @numba.cfunc(types.int32(types.CPointer(types.int64), types.CPointer(types.float32)))
    def change(tile, context):
        words, slopes = carray(tile, (15,)), carray(context, (4,))
        lines, lanes, stride = words[2], words[3], words[4]
        scores = carray(pointer_at(words[1]), (lines * stride,), dtype=numba.float32)
        head_of_line = carray(pointer_at(words[7]), (lines,), dtype=numba.int32)
        head_of_lane = carray(pointer_at(words[8]), (lanes,), dtype=numba.int32)
        query_of_line = carray(pointer_at(words[10]), (lines,), dtype=numba.int32)
        query_of_lane = carray(pointer_at(words[11]), (lanes,), dtype=numba.int32)
        key_of_line = carray(pointer_at(words[13]), (lines,), dtype=numba.int32)
        key_of_lane = carray(pointer_at(words[14]), (lanes,), dtype=numba.int32)
        for line in range(lines):
            for lane in range(lanes):
                head = words[6] + head_of_line[line] + head_of_lane[lane]
                query = words[9] + query_of_line[line] + query_of_lane[lane]
                key = words[12] + key_of_line[line] + key_of_lane[lane]
                at = line * stride + lane
                scores[at] = scores[at] - slopes[head] * abs(query - key) if key < 40 else -np.inf
        return 0

    @numba.cfunc(types.int32(types.CPointer(types.int64), types.voidptr))
    def classify(given, context):
        return 0 if carray(given, (8,))[6] >= 40 else 2

    slopes = np.array([0.5, 0.25, 0.1, 0.01], np.float32)
    by_formula = lambda s, b, h, q, k: np.where(k < 40, s - slopes.astype(np.float64)[h] * np.abs(q - k), -np.inf)
    for rows in (1, 9, 70):
        operands = make(generator, rows=rows, columns=600)
        for functions in ((change, classify), (change.address, classify.address), (change.ctypes, classify.ctypes)):
            mod = polyhead.ScoreMod(*functions, context=slopes.ctypes.data, name="near")
            check(operands, mod, by_formula)
            check(operands, polyhead.ScoreMod(functions[0], context=slopes.ctypes.data), by_formula)
            told = polyhead.explain(
                heads=4, kv_heads=2, query_length=rows, key_length=600, head_dim=16, batch=2, score_mod=mod
            )
            assert told["score_mod"]["tiles"]["skipped"] > 0
