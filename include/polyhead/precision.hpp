// How exact attention has to be.
#pragma once

#include <cstdint>

#include "polyhead/export.hpp"

namespace polyhead {

// docs/semantics.md states both error bounds. Projections and norms of a layer are strict either way.
enum class Precision : std::uint8_t {
  strict = 0,  // f32's error
  fast = 1,    // a larger, stated error where the instruction set has a faster kernel for it; elsewhere exactly strict's result
};

// "strict", "fast".
POLYHEAD_EXPORT const char* name(Precision precision) noexcept;

}  // namespace polyhead
