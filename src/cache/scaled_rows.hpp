// Numbers as integers of 8 bits: number = mean[i] + channel[i] * scale * integer, with a scale of the row's own.
//
// Means and channels are what a sequence's first tokens come to: the mean of each place in the rows, and the largest distance
// from it. What makes a row hard to write down in 8 bits is a few places whose numbers are far from 0, or far larger than
// others, in every token; these are known after some tokens, and rows without them have a largest number close to the others.
// What a later token has beyond the first ones costs no more than accuracy: its scale is its own.
#pragma once

#include <cstdint>
#include <vector>

namespace polyhead::cache {

// Of one place in each row: mean, and what distances from it are measured in.
struct Channels {
  const float* mean;
  const float* channel;
};

// Writes a row and its scale. A row with a NaN or an infinity has a scale of NaN.
void quantise_row(const float* row, const Channels& channels, std::int64_t count, std::int8_t* to, float* scale) noexcept;
void dequantise_row(const std::int8_t* row, float scale, const Channels& channels, std::int64_t count, float* to) noexcept;

// Finds the channels of some rows, of which at least `least_rows` are needed: of fewer they are means of 0 and channels of 1.
class ChannelFinder {
 public:
  static constexpr std::int64_t least_rows = 16;

  explicit ChannelFinder(std::int64_t count) : places_(static_cast<std::size_t>(count)), sorted_(places_.size()) {}
  void forget() noexcept;
  // A row with a NaN or an infinity is passed over.
  void add(const float* row) noexcept;
  void find(float* mean, float* channel) noexcept;

 private:
  struct Place {
    double sum;
    float least, most;
  };
  std::vector<Place> places_;
  std::vector<float> sorted_;  // room for the channels
  std::int64_t rows_ = 0;
};

}  // namespace polyhead::cache
