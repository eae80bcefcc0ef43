// Shape arithmetic that the layers share: row strides, how shapes are brought together into families.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "platform/rounding.hpp"

namespace polyhead::layer {

// Bytes from one row to the next: whole cache lines, and never a multiple of 512 bytes. With such a stride the rows that a
// kernel walks down fall into an eighth of the first-level cache's sets or fewer, and push each other out.
inline std::ptrdiff_t padded_row_bytes(std::int64_t floats) {
  const std::int64_t line = static_cast<std::int64_t>(platform::cache_line_bytes);
  const std::int64_t bytes = round_up(floats * static_cast<std::int64_t>(sizeof(float)), line);
  return bytes % 512 == 0 ? bytes + line : bytes;
}

// Rounds a size up to one of four steps an octave, so that a service with varied shapes meets few families of them.
inline std::int64_t bucket(std::int64_t size) {
  if (size <= 8) return size;
  std::int64_t power = 8;
  while (power * 2 < size) power *= 2;
  return round_up(size, power / 4);
}

// Hands out 64-byte aligned pieces of a workspace whose address is not known yet.
class WorkspaceLayout {
 public:
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = bytes_;
    bytes_ += whole_lines(bytes);
    return offset;
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <typename T>
T* row_at(T* base, std::ptrdiff_t stride_bytes, std::int64_t row) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + stride_bytes * row);
}

}  // namespace polyhead::layer
