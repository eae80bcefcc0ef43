#include "cache/scaled_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace polyhead::cache {
namespace {

constexpr double largest_integer = 127.0;
// A channel is at least the median one, and this share of the largest: a place that was the same in all first tokens may yet
// move, and would then take all the room that a row's integers have. Smaller channels than the median would be spent on places
// that count for little.
constexpr float share_of_largest = 0x1p-10f;

// To nearest, whatever the caller's rounding mode: |value| is at most 127 and a half.
std::int8_t to_integer(double value) noexcept {
  return static_cast<std::int8_t>(value < 0 ? -static_cast<int>(0.5 - value) : static_cast<int>(0.5 + value));
}

}  // namespace

void quantise_row(const float* row, const Channels& channels, std::int64_t count, std::int8_t* to, float* scale) noexcept {
  const auto distance = [&](std::int64_t i) {
    return (static_cast<double>(row[i]) - static_cast<double>(channels.mean[i])) / static_cast<double>(channels.channel[i]);
  };
  double largest = 0.0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(distance(i));
    finite = finite && std::isfinite(row[i]);
    largest = std::max(largest, magnitude);
  }
  if (!finite) {
    *scale = std::numeric_limits<float>::quiet_NaN();
    std::fill(to, to + count, std::int8_t{0});
    return;
  }
  // Kept among f32's normal numbers, or 0: kernels may take others for 0.
  const double wanted = std::min(largest / largest_integer, static_cast<double>(std::numeric_limits<float>::max()));
  *scale = wanted < static_cast<double>(std::numeric_limits<float>::min()) ? 0.0f : static_cast<float>(wanted);
  const double reciprocal = *scale > 0.0f ? 1.0 / static_cast<double>(*scale) : 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = to_integer(std::clamp(distance(i) * reciprocal, -largest_integer, largest_integer));
  }
}

void dequantise_row(const std::int8_t* row, float scale, const Channels& channels, std::int64_t count, float* to) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = channels.mean[i] + channels.channel[i] * (static_cast<float>(row[i]) * scale);
  }
}

void ChannelFinder::forget() noexcept {
  constexpr float largest = std::numeric_limits<float>::max();
  std::fill(places_.begin(), places_.end(), Place{0.0, largest, -largest});
  rows_ = 0;
}

void ChannelFinder::add(const float* row) noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!std::isfinite(row[i])) return;
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i].sum += static_cast<double>(row[i]);
    places_[i].least = std::min(places_[i].least, row[i]);
    places_[i].most = std::max(places_[i].most, row[i]);
  }
  ++rows_;
}

void ChannelFinder::find(float* mean, float* channel) noexcept {
  const std::size_t count = places_.size();
  float largest = 0.0f;
  for (std::size_t i = 0; i < count && rows_ >= least_rows; ++i) {
    mean[i] = static_cast<float>(places_[i].sum / static_cast<double>(rows_));
    channel[i] = std::max(places_[i].most - mean[i], mean[i] - places_[i].least);
    largest = std::max(largest, channel[i]);
  }
  // Numbers that vary not at all, or by more than f32 can say, are left as they are.
  if (!(largest > 0x1p-100f && largest < 0x1p100f)) {
    std::fill(mean, mean + count, 0.0f);
    std::fill(channel, channel + count, 1.0f);
    return;
  }
  std::copy(channel, channel + count, sorted_.begin());
  const auto middle = sorted_.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(sorted_.begin(), middle, sorted_.end());
  const float least = std::max(*middle, share_of_largest * largest);
  for (std::size_t i = 0; i < count; ++i) channel[i] = std::max(channel[i], least);
}

}  // namespace polyhead::cache
