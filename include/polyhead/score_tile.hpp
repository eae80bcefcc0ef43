// The open door: a function of the caller's own over attention scores, by the tile. This is what a run takes; to write one as a
// lambda over a score at a time, see score_mod.hpp (for which xsimd must be installed; this header needs nothing).
//
//     score = function(scale * dot(query, key), capped where a softcap is given; batch, head, query index, key index)
//
// in natural-log units, before bias, ALiBi and masks. A score of -inf excludes its key from its query, as a mask does: a
// function may be a mask, or both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/export.hpp"

namespace polyhead {

// A number of each score of a tile: first + of_line[line] + of_lane[lane]. Offsets are never null, and 0 where the number does
// not vary.
struct ScoreIndex {
  std::int64_t first = 0;
  const std::int32_t* of_line = nullptr;  // [lines]
  const std::int32_t* of_lane = nullptr;  // [lanes]

  std::int64_t at(std::int64_t line, std::int64_t lane) const noexcept { return first + of_line[line] + of_lane[lane]; }
};

// What a function gets: scores to change in place. In some tiles the lanes of a line are queries and heads, all of one key, in
// others they are keys, all of one query and head; a function that asks the indices need not care. Lanes are padded to whole
// vectors with repeated indices; padding may be changed or not. Scores of keys that are masked may hold anything, NaN included,
// and whatever becomes of them counts for nothing.
struct ScoreTile {
  std::size_t struct_size = sizeof(ScoreTile);
  float* scores = nullptr;  // line i at scores + i * line_stride
  std::int64_t lines = 0, lanes = 0;
  std::int64_t line_stride = 0;  // in floats
  // Batch item, or packed sequence. Over a cache: the row of the query tensor, not the cache's sequence.
  std::int64_t batch = 0;
  ScoreIndex head;   // query heads, 0 .. heads - 1, also where they share kv heads
  ScoreIndex query;  // 0 .. T - 1; of a packed sequence, its own first query is 0
  ScoreIndex key;    // 0 .. S - 1, likewise; over a cache, positions in the sequence
  // 1: head and query vary with the line alone and key with the lane alone; 0: the other way round.
  std::int32_t lanes_are_keys = 0;
  std::int32_t is_full = 0;  // 1: classify() has called the tile full
};

// skip: the function would make every score of the range -inf. full: it would exclude none by its own rule, so that a tile's
// function need not ask (see ScoreTile::is_full). partial: neither, or not known.
enum class TileClass : std::int32_t { skip = 0, full = 1, partial = 2 };

// The scores of heads, queries and keys [begin, end), numbered as in ScoreTile.
struct ScoreRange {
  std::size_t struct_size = sizeof(ScoreRange);
  std::int64_t batch = 0;
  std::int64_t head_begin = 0, head_end = 0, query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

// Both may throw: the run ends early and throws the same exception, outputs are unspecified then.
using ScoreFunction = void (*)(const ScoreTile& tile, void* context);
using TileClassifier = TileClass (*)(const ScoreRange& range, void* context);

// A function in the machine languages it was compiled for; null where it was not. A run takes the best that its instruction set
// (Runtime::isa()) includes. `baseline` needs nothing that the program at large does not, and is never null.
struct ScoreFunctions {
  ScoreFunction baseline = nullptr;
  ScoreFunction sse4 = nullptr;    // up to SSE4.2
  ScoreFunction avx2 = nullptr;    // AVX2 and FMA
  ScoreFunction avx512 = nullptr;  // F, CD, BW, DQ, VL
};

// A score modification. Functions are called by several threads at once, in any order, again for scores whose row holds a NaN,
// and with denormals flushed to zero; they change nothing but the scores, and what they make of a score depends on it, its
// indices and the context alone: then results have the same bits for any number of threads. Of scores that are masked anyway
// most are not computed at all, and the function is not called for them.
struct ScoreMod {
  const char* name = "score_mod";  // for AttentionPlan::explain(), which plans copy it for
  ScoreFunctions functions;
  // Optional. Asked before a tile is computed, about ranges as kernels cut them; and by AttentionPlan::explain(), where context
  // is not null. It must speak the truth: what it calls skip is not computed, as if the function had made it -inf.
  TileClassifier classify = nullptr;
  void* context = nullptr;  // handed to both functions

  bool empty() const noexcept { return functions.baseline == nullptr; }
};

namespace detail {
// For score_mod.hpp, whose sources have no inline code of the standard library: throws ErrorCode::unsupported.
[[noreturn]] POLYHEAD_EXPORT void refuse_place(const char* what, std::int64_t first, std::int64_t most);
}  // namespace detail

}  // namespace polyhead
