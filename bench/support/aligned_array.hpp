// Memory for benchmark operands: 64-byte aligned floats, filled with reproducible values at memory speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace polyhead::bench {

class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t count) : count_(count) {
    if (count > (static_cast<std::size_t>(-1) - 63) / sizeof(float)) throw std::bad_alloc();
    const std::size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes)));
    if (!data_) throw std::bad_alloc();
  }

  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  float& operator[](std::size_t index) { return data_.get()[index]; }
  float operator[](std::size_t index) const { return data_.get()[index]; }

  void fill(float value) {
    for (std::size_t i = 0; i < count_; ++i) data_.get()[i] = value;
  }

  // Nearly normal values (the sum of four uniform ones) of mean 0 and the given standard deviation. std::normal_distribution
  // would take longer than the runs that are measured.
  void fill_random(std::uint64_t seed, double deviation = 1.0) {
    const float factor = static_cast<float>(deviation * std::sqrt(3.0) / 65536.0);
    std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 0x243F6A8885A308D3u;
    for (std::size_t i = 0; i < count_; ++i) {
      state += 0x9E3779B97F4A7C15u;
      std::uint64_t mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
      mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
      mixed ^= mixed >> 31;
      const auto sum =
          static_cast<std::int32_t>((mixed & 0xFFFF) + (mixed >> 16 & 0xFFFF) + (mixed >> 32 & 0xFFFF) + (mixed >> 48));
      data_.get()[i] = static_cast<float>(sum - 131070) * factor;
    }
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t count_ = 0;
};

}  // namespace polyhead::bench
