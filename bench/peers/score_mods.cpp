// Score modifications through xsimd as functions of the C interface, for mask_cost.py, which compiles this for the instruction
// set that Polyhead runs on: those of the examples, and a sliding window.
#include <cstdint>
#include <cstdlib>

#include "polyhead/polyhead.h"
#include "polyhead/score_mod.hpp"
// Sources, as they stand: polyhead_add_score_mod would compile them one by one.
#include "alibi_mod.cpp"
#include "document_mod.cpp"
#include "softcap_mod.cpp"

// A query sees itself and the `left` keys before it.
struct Window {
  std::int32_t left;
};

static constexpr auto window_sees = [](const Window& given, std::int64_t /*batch*/, auto /*head*/, auto query, auto key) {
  const auto distance = query - key;
  return (distance >= 0) & (distance <= given.left);
};

static constexpr auto window_class = [](const Window& given, const polyhead::ScoreRange& range) {
  const std::int64_t nearest = range.query_begin - (range.key_end - 1), farthest = range.query_end - 1 - range.key_begin;
  if (farthest < 0 || nearest > given.left) return polyhead::TileClass::skip;
  return nearest >= 0 && farthest <= given.left ? polyhead::TileClass::full : polyhead::TileClass::partial;
};

POLYHEAD_SCORE_MOD(window_mod, Window, nullptr, window_sees, window_class)

// The library's, which this is not linked to. Places here are small.
void polyhead::detail::refuse_place(const char*, std::int64_t, std::int64_t) {
  std::abort();
}

// The C interface's structures are the C++ ones under other names.
#define FUNCTIONS_OF(name, Context)                                                                                        \
  extern "C" POLYHEAD_EXPORT polyhead_status name##_change(const polyhead_score_tile* tile, void* context) {               \
    const polyhead::ScoreMod mod = name##_mod(*static_cast<const Context*>(context));                                      \
    mod.functions.baseline(*reinterpret_cast<const polyhead::ScoreTile*>(tile), context);                                  \
    return POLYHEAD_OK;                                                                                                    \
  }                                                                                                                        \
  extern "C" POLYHEAD_EXPORT polyhead_tile_class name##_classify(const polyhead_score_range* range, void* context) {       \
    const polyhead::ScoreMod mod = name##_mod(*static_cast<const Context*>(context));                                      \
    if (!mod.classify) return POLYHEAD_TILE_PARTIAL;                                                                       \
    return static_cast<polyhead_tile_class>(mod.classify(*reinterpret_cast<const polyhead::ScoreRange*>(range), context)); \
  }

FUNCTIONS_OF(alibi, Alibi)
FUNCTIONS_OF(softcap, Softcap)
FUNCTIONS_OF(document, Documents)
FUNCTIONS_OF(window, Window)
