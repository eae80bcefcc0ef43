// Quotients and whole multiples.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/aligned_memory.hpp"

namespace polyhead {

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

// value / by, where `by` is most often 1: that takes no division.
constexpr std::int64_t quotient(std::int64_t value, std::int64_t by) {
  return by == 1 ? value : value / by;
}

// The next multiple of a cache line, for laying out workspaces.
constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + platform::cache_line_bytes - 1) / platform::cache_line_bytes * platform::cache_line_bytes;
}

}  // namespace polyhead
