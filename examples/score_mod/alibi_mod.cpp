#include "mods.hpp"
#include "polyhead/score_mod.hpp"

// In two steps: a slope is looked up once for a whole column of scores.
static constexpr auto alibi = [](const Alibi& given, std::int64_t /*batch*/, auto head) {
  const auto slope = polyhead::lookup(given.slopes, head);
  const std::int32_t offset = given.offset;
  return [slope, offset](auto score, auto query, auto key) {
    return score - slope * xsimd::to_float(xsimd::abs(query + offset - key));
  };
};

POLYHEAD_SCORE_MOD(alibi_mod, Alibi, alibi)
