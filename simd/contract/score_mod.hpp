// The caller's own function of scores, as a kernel calls it: by the tile, in natural-log units, after scale and softcap and
// before bias, ALiBi and masks. What it makes -inf is excluded like any masked key.
#pragma once

#include <cstdint>

#include "simd/contract/attention.hpp"

namespace polyhead::simd {

// A number of each score of a tile: first + of_line[line] + of_lane[lane].
struct ScoreModIndex {
  std::int64_t first = 0;
  const std::int32_t* of_line = nullptr;  // [lines], never null, 0 or above
  const std::int32_t* of_lane = nullptr;  // [lanes], likewise
};

// Lines are keys and lanes rows (transposed scores), or lines are rows and lanes keys; what does not vary has offsets of 0.
// Lanes are whole vectors; those that stand for nothing have the numbers of one that does, and their scores count for nothing.
struct ScoreModTile {
  float* scores = nullptr;  // line i at scores + i * line_stride; aligned like the kernel's vectors
  std::int64_t lines = 0, lanes = 0, line_stride = 0;
  std::int64_t batch = 0;  // batch item or sequence
  ScoreModIndex head, query, key;
  bool lanes_are_keys = false;
  bool is_full = false;  // classify() has said so
};

struct ScoreModRange {
  std::int64_t batch = 0;
  std::int64_t head_begin = 0, head_end = 0, query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

// Neither function throws. Both are called by any number of threads, and again for a tile whose result holds a NaN. Scores of
// keys that are masked otherwise may be anything, and what becomes of them counts for nothing.
struct ScoreMod {
  void (*change)(void* context, const ScoreModTile& tile) = nullptr;
  // skip: change() would make every score of the range -inf. full: it excludes none by rule, and need not ask.
  TileClass (*classify)(void* context, const ScoreModRange& range) = nullptr;
  void* context = nullptr;
};

}  // namespace polyhead::simd
