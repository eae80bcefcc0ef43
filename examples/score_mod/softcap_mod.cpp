#include "mods.hpp"
#include "polyhead/score_mod.hpp"

static constexpr auto softcap = [](const Softcap& given, std::int64_t /*batch*/, auto /*head*/) {
  const float cap = given.cap, reciprocal = 1.0f / given.cap;
  return [cap, reciprocal](auto score, auto /*query*/, auto /*key*/) { return cap * polyhead::quick_tanh(score * reciprocal); };
};

POLYHEAD_SCORE_MOD(softcap_mod, Softcap, softcap)
