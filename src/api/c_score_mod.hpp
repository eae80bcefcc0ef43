// A score modification of the C interface, as the C++ one takes it.
#pragma once

#include <cstddef>
#include <string>

#include "polyhead/error.hpp"
#include "polyhead/polyhead.h"
#include "polyhead/score_tile.hpp"

namespace polyhead::api {

// The C structures are the C++ ones under other names.
static_assert(sizeof(polyhead_score_index) == sizeof(ScoreIndex) && sizeof(polyhead_score_tile) == sizeof(ScoreTile) &&
              sizeof(polyhead_score_range) == sizeof(ScoreRange));
static_assert(offsetof(polyhead_score_tile, key) == offsetof(ScoreTile, key) &&
              offsetof(polyhead_score_tile, lanes_are_keys) == offsetof(ScoreTile, lanes_are_keys) &&
              offsetof(polyhead_score_tile, is_full) == offsetof(ScoreTile, is_full) &&
              offsetof(polyhead_score_range, key_end) == offsetof(ScoreRange, key_end));
static_assert(POLYHEAD_TILE_PARTIAL == static_cast<int>(TileClass::partial));

// C functions and their context. What view() returns points here.
class CScoreMod {
 public:
  CScoreMod() = default;
  explicit CScoreMod(const polyhead_score_mod& mod) : mod_(mod) {}

  void set_context(void* context) noexcept { mod_.context = context; }
  bool has_context() const noexcept { return mod_.context != nullptr; }

  ScoreMod view() noexcept {
    ScoreMod result;
    if (mod_.name) result.name = mod_.name;
    if (mod_.function) result.functions.baseline = &CScoreMod::change;
    if (mod_.classify) result.classify = &CScoreMod::classify;
    result.context = this;
    return result;
  }

 private:
  static void change(const ScoreTile& tile, void* self) {
    const polyhead_score_mod& mod = static_cast<const CScoreMod*>(self)->mod_;
    const polyhead_status status = mod.function(reinterpret_cast<const polyhead_score_tile*>(&tile), mod.context);
    if (status != POLYHEAD_OK) {
      throw Error(static_cast<ErrorCode>(status), "score_mod.function returned status " + std::to_string(status));
    }
  }
  static TileClass classify(const ScoreRange& range, void* self) {
    const polyhead_score_mod& mod = static_cast<const CScoreMod*>(self)->mod_;
    const polyhead_tile_class kind = mod.classify(reinterpret_cast<const polyhead_score_range*>(&range), mod.context);
    if (kind < POLYHEAD_TILE_SKIP || kind > POLYHEAD_TILE_PARTIAL) {
      throw Error(ErrorCode::invalid_argument,
                  "score_mod.classify returned " + std::to_string(kind) + ", expected a polyhead_tile_class (0 .. 2)");
    }
    return static_cast<TileClass>(kind);
  }

  polyhead_score_mod mod_{};
};

}  // namespace polyhead::api
