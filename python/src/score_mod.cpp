#include "score_mod.hpp"

#include <nanobind/stl/string.h>

#include "errors.hpp"
#include "polyhead/error.hpp"

namespace polyhead::python {

namespace nb = nanobind;

namespace {

template <class Pointer>
Pointer address_of(nb::handle owner, const char* attribute) {
  return reinterpret_cast<Pointer>(nb::cast<std::uintptr_t>(owner.attr(attribute)));
}

}  // namespace

BorrowedScoreMod::BorrowedScoreMod(nb::handle given) {
  if (given.is_none()) return;
  if (!nb::hasattr(given, "_function_address")) {
    throw_type_error("score_mod: is " + nb::cast<std::string>(nb::str(given.type())) + ", expected a polyhead.ScoreMod");
  }
  owner_ = nb::borrow(given);
  name_ = nb::cast<std::string>(given.attr("name"));
  function_ = address_of<polyhead_score_function>(given, "_function_address");
  classify_ = address_of<polyhead_tile_classifier>(given, "_classify_address");
  context_ = address_of<void*>(given, "_context_address");
}

ScoreMod BorrowedScoreMod::view() noexcept {
  ScoreMod mod;
  if (!given()) return mod;
  mod.name = name_.c_str();
  mod.functions.baseline = &BorrowedScoreMod::change;
  if (classify_) mod.classify = &BorrowedScoreMod::classify;
  mod.context = this;
  return mod;
}

void BorrowedScoreMod::raise() const {
  if (!given()) return;
  const nb::object raised = owner_.attr("_take_exception")();
  if (raised.is_none()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw nb::python_error();
}

void BorrowedScoreMod::change(const ScoreTile& tile, void* self) {
  const auto& mod = *static_cast<const BorrowedScoreMod*>(self);
  ScoreTile moved = tile;
  moved.batch += mod.first_item_;
  // The C interface's structure is the C++ one under another name.
  const polyhead_status status = mod.function_(reinterpret_cast<const polyhead_score_tile*>(&moved), mod.context_);
  if (status != POLYHEAD_OK) {
    throw Error(ErrorCode::invalid_argument, "score_mod: its function returned status " + std::to_string(status));
  }
}

TileClass BorrowedScoreMod::classify(const ScoreRange& range, void* self) {
  const auto& mod = *static_cast<const BorrowedScoreMod*>(self);
  ScoreRange moved = range;
  moved.batch += mod.first_item_;
  const polyhead_tile_class kind = mod.classify_(reinterpret_cast<const polyhead_score_range*>(&moved), mod.context_);
  if (kind < POLYHEAD_TILE_SKIP || kind > POLYHEAD_TILE_PARTIAL) {
    throw Error(ErrorCode::invalid_argument,
                "score_mod: its classifier returned " + std::to_string(kind) + ", expected 0 (skip), 1 (full) or 2 (partial)");
  }
  return static_cast<TileClass>(kind);
}

}  // namespace polyhead::python
