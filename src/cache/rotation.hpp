// Rotary position embedding: pair i of a head is turned by the angle position * frequency[i].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/storage_type.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead::cache {

// Angles are exact: error below 2^-34 radians for positions up to 2^32 either way, where f32 angles are whole turns off. An
// angle is position * (high + low): the product's own rounding and the frequency's second part, together below 2^-17 at that
// position, are carried along to first order, so that what is lost is half their square. The reduction to a quarter turn is
// that of the C library's sin and cos for doubles. Rotation itself is in doubles and rounded once.
class Rotation {
 public:
  static constexpr std::int64_t farthest = std::int64_t{1} << 32;
  static constexpr std::int64_t pairs_at_once = 64;

  Rotation() = default;
  // style none: pairs() is 0. Arguments are checked by the caller.
  Rotation(Rotary style, std::int64_t dims, double base, const std::vector<double>& frequencies);

  std::int64_t pairs() const noexcept { return static_cast<std::int64_t>(high_.size()); }
  std::int64_t dims() const noexcept { return 2 * pairs(); }

  // The turns of `count` pairs from `first` on, at most pairs_at_once.
  struct Turns {
    std::int64_t first, count;
    double cosine[pairs_at_once], sine[pairs_at_once];
  };
  void find(std::int64_t position, std::int64_t first, Turns* turns) const noexcept;

  // Turns these pairs of a head, from whatever elements to whatever elements. `to` may be `from` where both are the same.
  void apply(const Turns& turns, const ElementRow& from, const MutableRow& to) const noexcept;

 private:
  Rotary style_ = Rotary::none;
  std::vector<double> high_, low_;  // radians a position
};

}  // namespace polyhead::cache
