#include "cache/rotation.hpp"

#include <algorithm>
#include <cmath>

namespace polyhead::cache {

Rotation::Rotation(Rotary style, std::int64_t dims, double base, const std::vector<double>& frequencies) : style_(style) {
  if (style == Rotary::none) return;
  const auto pairs = static_cast<std::size_t>(dims / 2);
  high_.resize(pairs);
  low_.resize(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    if (!frequencies.empty()) {
      high_[i] = frequencies[i];
      continue;
    }
    const long double exponent = -2.0L * static_cast<long double>(i) / static_cast<long double>(dims);
    const long double exact = std::pow(static_cast<long double>(base), exponent);
    high_[i] = static_cast<double>(exact);
    low_[i] = static_cast<double>(exact - static_cast<long double>(high_[i]));
  }
}

void Rotation::find(std::int64_t position, std::int64_t first, Turns* turns) const noexcept {
  turns->first = first;
  turns->count = std::min(pairs() - first, pairs_at_once);
  const auto p = static_cast<double>(position);
  for (std::int64_t i = 0; i < turns->count; ++i) {
    const auto pair = static_cast<std::size_t>(first + i);
    const double angle = p * high_[pair];
    const double rest = std::fma(p, high_[pair], -angle) + p * low_[pair];
    const double c = std::cos(angle), s = std::sin(angle);
    turns->cosine[i] = c - rest * s;
    turns->sine[i] = s + rest * c;
  }
}

void Rotation::apply(const Turns& turns, const float* from, std::ptrdiff_t step, float* to,
                     std::ptrdiff_t to_step) const noexcept {
  // Elements of pair i: 2 i and 2 i + 1, or i and i + pairs.
  const std::int64_t second = style_ == Rotary::interleaved ? 1 : pairs();
  const std::int64_t width = style_ == Rotary::interleaved ? 2 : 1;
  for (std::int64_t i = 0; i < turns.count; ++i) {
    const std::int64_t at = (turns.first + i) * width;
    const double x = static_cast<double>(from[at * step]), y = static_cast<double>(from[(at + second) * step]);
    to[at * to_step] = static_cast<float>(x * turns.cosine[i] - y * turns.sine[i]);
    to[(at + second) * to_step] = static_cast<float>(x * turns.sine[i] + y * turns.cosine[i]);
  }
}

}  // namespace polyhead::cache
