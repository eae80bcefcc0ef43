#include "mods.hpp"
#include "polyhead/score_mod.hpp"

static constexpr auto tanh_gate = [](const TanhGate& given, std::int64_t /*batch*/, auto head) {
  const auto rate = polyhead::lookup(given.rates, head);
  return
      [rate](auto score, auto query, auto key) { return score * xsimd::tanh(rate * xsimd::to_float(xsimd::abs(query - key))); };
};

POLYHEAD_SCORE_MOD(tanh_gate_mod, TanhGate, tanh_gate)
