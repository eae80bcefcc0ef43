#include "mods.hpp"
#include "polyhead/score_mod.hpp"

static constexpr auto manhattan = [](const Manhattan& given, std::int64_t /*batch*/, auto head) {
  const auto weight = polyhead::lookup(given.weights, head);
  const float width = static_cast<float>(given.width), reciprocal = 1.0f / width;
  return [weight, width, reciprocal](auto score, auto query, auto key) {
    // Batches have no integer division; half a pixel keeps the quotient off whole numbers.
    const auto q = xsimd::to_float(query), k = xsimd::to_float(key);
    const auto query_row = xsimd::floor((q + 0.5f) * reciprocal), key_row = xsimd::floor((k + 0.5f) * reciprocal);
    const auto rows = query_row - key_row;
    const auto columns = (q - k) - width * rows;
    return score - weight * (xsimd::abs(rows) + xsimd::abs(columns));
  };
};

POLYHEAD_SCORE_MOD(manhattan_mod, Manhattan, manhattan)
