// Rounding weights to fewer bits, by the formulas of contract/gemm.hpp: scalar, since it is done once for each weight.
#pragma once

#include <cstdint>
#include <cstring>

namespace polyhead::simd {
namespace {

constexpr std::int64_t kInt4Block = 32;  // weights along k that share a scale
constexpr int kInt8Most = 127, kInt4Least = -8, kInt4Most = 7;

inline std::uint32_t FloatBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float FloatOfBits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint16_t NearestBf16(float value) {
  const std::uint32_t bits = FloatBits(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // or it might become infinity
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
// Towards zero, so that no multiple of a scale is larger than what it was made from.
inline std::uint16_t TruncatedBf16(float value) {
  return value != value ? NearestBf16(value) : static_cast<std::uint16_t>(FloatBits(value) >> 16);
}
inline float Bf16ToFloat(std::uint16_t bits) {
  return FloatOfBits(std::uint32_t{bits} << 16);
}

inline float Magnitude(float value) {
  return FloatOfBits(FloatBits(value) & 0x7FFFFFFF);
}
inline bool IsFinite(float value) {
  return (FloatBits(value) & 0x7F800000) != 0x7F800000;
}

// What makes NaN of any integer.
inline float NoScale() {
  return FloatOfBits(0x7FC00000);
}

// The integer of least .. most nearest to value / scale, of two as near the even one; 0 for a scale of 0 or NaN. Added to
// 1.5 * 2^52, a double's last place is 1.
inline int NearestMultiple(float value, float scale, int least, int most) {
  if (!(Magnitude(scale) > 0)) return 0;
  constexpr double shift = 6755399441055744.0;
  const double quotient = static_cast<double>(value) / static_cast<double>(scale);
  if (quotient <= least) return least;
  if (quotient >= most) return most;
  return static_cast<int>((quotient + shift) - shift);
}

// Whoever finds the scale of several weights shows them one after another.
class LargestWeight {
 public:
  void Take(float weight) {
    if (!IsFinite(weight)) finite_ = false;
    if (Magnitude(weight) > Magnitude(signed_)) signed_ = weight;
  }
  float Int8Scale() const {
    if (!finite_) return NoScale();
    const float scale = Magnitude(signed_) / static_cast<float>(kInt8Most);
    // Rounded up, a multiple of the largest numbers might be infinite.
    return IsFinite(scale * static_cast<float>(kInt8Most)) ? scale : FloatOfBits(FloatBits(scale) - 1);
  }
  std::uint16_t EvenInt4Scale() const { return TruncatedBf16(finite_ ? Magnitude(signed_) / 7 : NoScale()); }
  std::uint16_t WideInt4Scale() const { return TruncatedBf16(finite_ ? signed_ / -8 : NoScale()); }

 private:
  float signed_ = 0;
  bool finite_ = true;
};

struct Int4Block {
  std::uint16_t scale;  // bf16
  std::int8_t multiple[kInt4Block];
};

// An error of 24 bits has an exact square in double: a compiler may join product and sum or not.
inline double SquaredError(const float* weights, std::int64_t count, float scale, std::int8_t* multiples) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const int multiple = NearestMultiple(weights[i], scale, kInt4Least, kInt4Most);
    multiples[i] = static_cast<std::int8_t>(multiple);
    const double product = static_cast<double>(multiple) * static_cast<double>(scale);
    const auto error = static_cast<double>(static_cast<float>(static_cast<double>(weights[i]) - product));
    sum += error * error;
  }
  return sum;
}

// count: 1 .. kInt4Block.
inline void RoundToInt4(const float* weights, std::int64_t count, Int4Block* block) {
  LargestWeight largest;
  for (std::int64_t i = 0; i < count; ++i) largest.Take(weights[i]);
  Int4Block wide;
  block->scale = largest.EvenInt4Scale();
  wide.scale = largest.WideInt4Scale();
  const double even_error = SquaredError(weights, count, Bf16ToFloat(block->scale), block->multiple);
  const double wide_error = SquaredError(weights, count, Bf16ToFloat(wide.scale), wide.multiple);
  if (wide_error < even_error) *block = wide;
}

}  // namespace
}  // namespace polyhead::simd
