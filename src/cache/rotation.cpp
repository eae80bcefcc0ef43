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

void Rotation::apply(const Turns& turns, const ElementRow& from, const MutableRow& to) const noexcept {
  // Elements of pair i: 2 i and 2 i + 1, or i and i + pairs.
  const std::int64_t width = style_ == Rotary::interleaved ? 2 : 1;
  const std::int64_t first = turns.first * width, second = first + (style_ == Rotary::interleaved ? 1 : pairs());
  float x[pairs_at_once], y[pairs_at_once];
  from.type->widen(from.at(first), from.step * width, turns.count, x, 1);
  from.type->widen(from.at(second), from.step * width, turns.count, y, 1);
  for (std::int64_t i = 0; i < turns.count; ++i) {
    const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
    x[i] = static_cast<float>(a * turns.cosine[i] - b * turns.sine[i]);
    y[i] = static_cast<float>(a * turns.sine[i] + b * turns.cosine[i]);
  }
  to.type->narrow(x, 1, turns.count, to.at(first), to.step * width);
  to.type->narrow(y, 1, turns.count, to.at(second), to.step * width);
}

}  // namespace polyhead::cache
