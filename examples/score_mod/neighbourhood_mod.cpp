#include "mods.hpp"
#include "polyhead/score_mod.hpp"

static constexpr auto sees = [](const Neighbourhood& given, std::int64_t /*batch*/, auto /*head*/, auto query, auto key) {
  const float width = static_cast<float>(given.width), reciprocal = 1.0f / width, radius = static_cast<float>(given.radius);
  const auto q = xsimd::to_float(query), k = xsimd::to_float(key);
  const auto rows = xsimd::floor((q + 0.5f) * reciprocal) - xsimd::floor((k + 0.5f) * reciprocal);
  const auto columns = (q - k) - width * rows;
  return (xsimd::abs(rows) <= radius) & (xsimd::abs(columns) <= radius);
};

// Whole rows of the image decide whether a range holds neighbours at all: most of a large image is skipped.
static constexpr auto classify = [](const Neighbourhood& given, const polyhead::ScoreRange& range) {
  const std::int64_t first_query_row = range.query_begin / given.width, last_query_row = (range.query_end - 1) / given.width;
  const std::int64_t first_key_row = range.key_begin / given.width, last_key_row = (range.key_end - 1) / given.width;
  const bool apart = first_key_row > last_query_row + given.radius || last_key_row < first_query_row - given.radius;
  return apart ? polyhead::TileClass::skip : polyhead::TileClass::partial;
};

POLYHEAD_SCORE_MOD(neighbourhood_mod, Neighbourhood, nullptr, sees, classify)
