// Seeded random numbers that are the same on every platform and with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace polyhead::testing {

// splitmix64: good enough for test data, and any seed will do.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Both ends included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  template <typename T>
  T choice(std::initializer_list<T> options) {
    return options.begin()[integer(0, static_cast<std::int64_t>(options.size()) - 1)];
  }
  template <typename T>
  T choice(const std::vector<T>& options) {
    return options[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(options.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace polyhead::testing
