// A score modification of Python's: addresses of functions of the C interface, taken from a polyhead.ScoreMod.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "polyhead/polyhead.h"
#include "polyhead/score_tile.hpp"

namespace polyhead::python {

// For one call, which it must outlive.
class BorrowedScoreMod {
 public:
  // None, or an object as polyhead/score_mod.py makes them. Errors: TypeError.
  explicit BorrowedScoreMod(nanobind::handle given);
  BorrowedScoreMod(const BorrowedScoreMod&) = delete;
  BorrowedScoreMod& operator=(const BorrowedScoreMod&) = delete;

  bool given() const noexcept { return function_ != nullptr; }
  ScoreMod view() noexcept;
  // The number that the functions know batch item 0 of the call's tensors by.
  void set_first_item(std::int64_t item) noexcept { first_item_ = item; }
  // With the GIL held, from a handler: raises what a Python function raised in the run, if one did.
  void raise() const;

 private:
  static void change(const ScoreTile& tile, void* self);
  static TileClass classify(const ScoreRange& range, void* self);

  nanobind::object owner_;
  std::string name_;
  polyhead_score_function function_ = nullptr;
  polyhead_tile_classifier classify_ = nullptr;
  void* context_ = nullptr;
  std::int64_t first_item_ = 0;
};

}  // namespace polyhead::python
