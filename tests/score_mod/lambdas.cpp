#include "score_mod/lambdas.hpp"

#include <limits>

#include "polyhead/score_mod.hpp"

namespace polyhead::testing {

// Batches have no remainder: 13 and 7 are taken out by a quotient in floats, exact for numbers of this size.
template <class Index>
static auto remainder_of(Index number, int divisor) {
  const auto value = xsimd::to_float(number);
  const auto quotient = xsimd::floor((value + 0.5f) * (1.0f / static_cast<float>(divisor)));
  return value - quotient * static_cast<float>(divisor);
}

static constexpr auto places = [](const Places& given, auto score, std::int64_t batch, auto head, auto query, auto key) {
  using Index = decltype(key);
  using Score = decltype(score);
  const auto b = static_cast<std::int32_t>(batch);
  const auto pattern = 0.25f * (remainder_of(Index(7 * b) + Index(5) * head + Index(3) * query + Index(11) * key, 13) - 6.0f);
  const auto hidden = remainder_of(Index(b) + head + query + key + key, 7) == Score(0.0f);
  return xsimd::select(hidden, Score(-std::numeric_limits<float>::infinity()), Score(given.factor) * score + pattern);
};
POLYHEAD_SCORE_MOD(places_mod, Places, places)

static constexpr auto scaled = [](const BlockRule& given, auto score, std::int64_t, auto, auto, auto) {
  return score * given.factor;
};
static constexpr auto same_block = [](const BlockRule& given, std::int64_t, auto, auto query, auto key) {
  const float reciprocal = 1.0f / static_cast<float>(given.size);
  return xsimd::floor((xsimd::to_float(query) + 0.5f) * reciprocal) == xsimd::floor((xsimd::to_float(key) + 0.5f) * reciprocal);
};
static constexpr auto block_class = [](const BlockRule& given, const ScoreRange& range) {
  const std::int64_t first_query = range.query_begin / given.size, last_query = (range.query_end - 1) / given.size;
  const std::int64_t first_key = range.key_begin / given.size, last_key = (range.key_end - 1) / given.size;
  if (last_query < first_key || last_key < first_query) return TileClass::skip;
  return first_query == last_query && first_key == last_key ? TileClass::full : TileClass::partial;
};
POLYHEAD_SCORE_MOD(block_rule_mod, BlockRule, scaled, same_block, block_class)

static constexpr auto add_by_head = [](const TwoSteps& given, std::int64_t, auto head) {
  const auto bias = lookup(given.by_head, head);
  return [bias](auto score, auto query, auto key) { return score + bias * xsimd::to_float(query - key); };
};
static constexpr auto until_last = [](const TwoSteps& given, std::int64_t, auto) {
  const std::int32_t* const table = given.last_of_query;
  return [table](auto query, auto key) { return key <= lookup(table, query); };
};
POLYHEAD_SCORE_MOD(two_steps_mod, TwoSteps, add_by_head, until_last)

static constexpr auto thrower = [](const Thrower& given, auto score, std::int64_t, auto, auto, auto key) {
  if (xsimd::any(key == decltype(key)(given.key))) throw static_cast<int>(given.key);
  return score;
};
POLYHEAD_SCORE_MOD(thrower_mod, Thrower, thrower)

}  // namespace polyhead::testing
