// A checksum of bytes that finds damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace polyhead::io {

// Every bit of the input reaches every bit of the sum: each word is mixed in by a multiplication that can be undone, so that
// inputs which differ in one word never have the same sum.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    for (; bytes >= sizeof(std::uint64_t); at += sizeof(std::uint64_t), bytes -= sizeof(std::uint64_t)) {
      std::uint64_t word;
      std::memcpy(&word, at, sizeof word);
      mix(word);
    }
    if (bytes == 0) return;
    std::uint64_t word = 0;
    std::memcpy(&word, at, bytes);
    mix(word);
    mix(bytes);
  }
  std::uint64_t value() const noexcept { return sum_; }

 private:
  void mix(std::uint64_t word) noexcept {
    sum_ = (sum_ ^ word) * 0x9e3779b97f4a7c15u;
    sum_ ^= sum_ >> 32;
  }
  std::uint64_t sum_ = 0x243f6a8885a308d3u;
};

}  // namespace polyhead::io
