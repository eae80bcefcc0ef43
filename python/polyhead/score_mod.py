"""Score modifications: a function of the caller's own over attention scores.

    score = function(score, batch, head, query, key)

in natural-log units, after scale and softcap, before attn_mask and the other masks; -inf excludes a key from a query. Three kinds,
from the quickest to the easiest:

1. A compiled function of whole tiles, by its address: the C interface's polyhead_score_function (polyhead.h), as an integer, a
   ctypes function pointer or a Numba cfunc. It costs what it computes.
2. ScoreMod.from_numba(f): f(score, batch, head, query, key) -> score over single numbers, compiled by Numba into such a function.
3. A Python function over NumPy arrays, called for each tile: about 20 microseconds a call and what NumPy takes, under the GIL, so
   that threads wait for each other. A tile has up to 128 keys and 48 queries (decoding: 256 keys and 16 heads); dense attention
   over 1,024 tokens is about 180 calls a head. For trying things out.
"""

import ctypes
import threading

__all__ = ["ScoreIndex", "ScoreMod", "ScoreRange", "ScoreTile"]

SKIP, FULL, PARTIAL = 0, 1, 2
_CLASSES = {"skip": SKIP, "full": FULL, "partial": PARTIAL}
_OK, _FAILED = 0, 1  # polyhead_status


class ScoreIndex(ctypes.Structure):
    """A number of each score of a tile: first + of_line[line] + of_lane[lane] (polyhead_score_index)."""

    _fields_ = [
        ("first", ctypes.c_int64),
        ("of_line", ctypes.POINTER(ctypes.c_int32)),
        ("of_lane", ctypes.POINTER(ctypes.c_int32)),
    ]


class ScoreTile(ctypes.Structure):
    """Scores to change in place (polyhead_score_tile)."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("scores", ctypes.POINTER(ctypes.c_float)),
        ("lines", ctypes.c_int64),
        ("lanes", ctypes.c_int64),
        ("line_stride", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("head", ScoreIndex),
        ("query", ScoreIndex),
        ("key", ScoreIndex),
        ("lanes_are_keys", ctypes.c_int32),
        ("is_full", ctypes.c_int32),
    ]


class ScoreRange(ctypes.Structure):
    """The scores of heads, queries and keys [begin, end) (polyhead_score_range)."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("batch", ctypes.c_int64)] + [
        (f"{name}_{end}", ctypes.c_int64) for name in ("head", "query", "key") for end in ("begin", "end")
    ]


_ScoreFunction = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ScoreTile), ctypes.c_void_p)
_TileClassifier = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ScoreRange), ctypes.c_void_p)
_FunctionPointer = ctypes._CFuncPtr  # what all of ctypes' function pointers are


def _address(function):
    """The address of a compiled function, None for anything else."""
    if isinstance(function, int) and not isinstance(function, bool):
        return function
    if isinstance(function, _FunctionPointer):
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    address = getattr(function, "address", None)  # Numba's cfunc
    return address if isinstance(address, int) else None


class ScoreMod:
    """A score modification, for `score_mod=`.

    function: an address (see the module), or a Python function (scores, batch, head, query, key) -> scores. Then scores is a float32
    array [lines, lanes], a copy; batch an int; head, query and key int64 arrays that broadcast to it. Batch items are counted through
    all leading dimensions, query heads from 0 also where they share key heads; queries and keys are places in the batch item.

    classify: optional, an address (polyhead_tile_classifier) or a Python function (batch, heads, queries, keys) -> "skip", "full" or
    "partial", given ranges. Tiles that it skips are not computed, as if function had made all of their scores -inf; it must be true.

    context: an address, handed to compiled functions. name: what messages call it.

    Functions are called by several threads at once. What they raise ends the call, which raises it.
    """

    def __init__(self, function, classify=None, *, context=0, name=None):
        self.name = name or getattr(function, "__name__", None) or "score_mod"
        self._exceptions = []
        self._lock = threading.Lock()
        self._kept = [function, classify]
        self._function_address = self._compiled(function, "function", self._numpy_function)
        self._classify_address = 0 if classify is None else self._compiled(classify, "classify", self._python_classifier)
        self._context_address = context

    @classmethod
    def from_numba(cls, function, classify=None, *, name=None):
        """Compiles function(score, batch, head, query, key) -> score, over single numbers, with Numba."""
        name = name or function.__name__
        return cls(_compile_with_numba(function), classify, name=name)

    def _compiled(self, function, what, wrap):
        address = _address(function)
        if address is None and callable(function):
            pointer = wrap(function)
            self._kept.append(pointer)
            address = _address(pointer)
        if not address:
            raise TypeError(f"{what}: is {function!r}, expected a function, or the address of a compiled one")
        return address

    def _guarded(self, body):
        """body's result, or None where it raises; the first exception is kept."""
        try:
            return body()
        except BaseException as error:
            with self._lock:
                self._exceptions.append(error)
            return None

    def _take_exception(self):
        with self._lock:
            taken = self._exceptions[0] if self._exceptions else None
            self._exceptions.clear()
        return taken

    def _numpy_function(self, function):
        import numpy

        def change(tile):
            lines, lanes = tile.lines, tile.lanes
            scores = numpy.ctypeslib.as_array(tile.scores, (lines, tile.line_stride))[:, :lanes]

            def places(index, along_lines):
                if along_lines:
                    return index.first + numpy.ctypeslib.as_array(index.of_line, (lines,)).astype(numpy.int64)[:, None]
                return index.first + numpy.ctypeslib.as_array(index.of_lane, (lanes,)).astype(numpy.int64)[None, :]

            of_line = bool(tile.lanes_are_keys)
            changed = function(
                scores.copy(), tile.batch, places(tile.head, of_line), places(tile.query, of_line), places(tile.key, not of_line)
            )
            if changed is None:
                raise TypeError(f"score_mod {self.name}: returned None, expected an array of scores")
            scores[...] = changed
            return _OK

        def guarded(tile, _):
            status = self._guarded(lambda: change(tile.contents))
            return _FAILED if status is None else status

        return _ScoreFunction(guarded)

    def _python_classifier(self, classify):
        def kind_of(given):
            kind = classify(
                given.batch,
                range(given.head_begin, given.head_end),
                range(given.query_begin, given.query_end),
                range(given.key_begin, given.key_end),
            )
            if kind not in _CLASSES:
                raise ValueError(f"score_mod {self.name}: its classifier returned {kind!r}, expected 'skip', 'full' or 'partial'")
            return _CLASSES[kind]

        def guarded(given, _):
            kind = self._guarded(lambda: kind_of(given.contents))
            return -1 if kind is None else kind

        return _TileClassifier(guarded)


def _compile_with_numba(function):
    import numba
    import numba.core.types as types
    from numba.core import cgutils  # noqa: F401  (its presence says that the version has what follows)
    from numba.extending import intrinsic

    @intrinsic
    def pointer_at(typing_context, address):  # an integer as a pointer
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), generate

    compiled = numba.njit(function)

    # A tile as 64-bit words, in the order of ScoreTile.
    @numba.cfunc(types.int32(types.CPointer(types.int64), types.voidptr))
    def change(tile, context):
        words = numba.carray(tile, (16,))
        lines, lanes, stride, batch = words[2], words[3], words[4], words[5]
        scores = numba.carray(pointer_at(words[1]), (lines * stride,), dtype=numba.float32)
        head_lines = numba.carray(pointer_at(words[7]), (lines,), dtype=numba.int32)
        head_lanes = numba.carray(pointer_at(words[8]), (lanes,), dtype=numba.int32)
        query_lines = numba.carray(pointer_at(words[10]), (lines,), dtype=numba.int32)
        query_lanes = numba.carray(pointer_at(words[11]), (lanes,), dtype=numba.int32)
        key_lines = numba.carray(pointer_at(words[13]), (lines,), dtype=numba.int32)
        key_lanes = numba.carray(pointer_at(words[14]), (lanes,), dtype=numba.int32)
        for line in range(lines):
            head, query, key = words[6] + head_lines[line], words[9] + query_lines[line], words[12] + key_lines[line]
            for lane in range(lanes):
                at = line * stride + lane
                scores[at] = compiled(
                    scores[at], batch, head + head_lanes[lane], query + query_lanes[lane], key + key_lanes[lane]
                )
        return _OK

    return change
