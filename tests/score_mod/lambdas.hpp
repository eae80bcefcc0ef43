// Score modifications of the tests' own, compiled for every instruction set; each says with what.
#pragma once

#include <cstdint>

#include "polyhead/score_tile.hpp"

namespace polyhead::testing {

// 0.75 score + a number of its own for every place, and -inf for one place in seven.
struct Places {
  float factor;
};
ScoreMod places_mod(const Places& places);

// Blocks of `size` queries see blocks of `size` keys, by a mask and a classifier; with a score function beside it.
struct BlockRule {
  std::int32_t size;
  float factor;
};
ScoreMod block_rule_mod(const BlockRule& rule);

// In two steps: a table by head, a mask by batch item and query.
struct TwoSteps {
  const float* by_head;               // [heads]
  const std::int32_t* last_of_query;  // [queries]: the last key that it sees
};
ScoreMod two_steps_mod(const TwoSteps& two_steps);

// Throws an int at this key.
struct Thrower {
  std::int32_t key;
};
ScoreMod thrower_mod(const Thrower& thrower);

}  // namespace polyhead::testing
