#include "support/operand.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "io/array.hpp"
#include "platform/aligned_memory.hpp"

namespace polyhead::bench {
namespace {

// To nearest, ties to even; what is too large becomes infinite.
std::uint16_t narrow(DType dtype, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7FFF);
  if (dtype == DType::bf16) return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00);
  // In steps of the last place, which run on from one exponent to the next as the bits do.
  const int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | (((exponent + 14) * 1024) + steps));
}

float widen(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? io::bf16_to_f32(bits) : io::f16_to_f32(bits);
}

}  // namespace

void Operand::Free::operator()(std::uint16_t* memory) const {
  platform::aligned_free(memory);
}

Operand::Operand(DType dtype, std::size_t count) : dtype_(dtype), count_(count) {
  if (dtype == DType::f32) {
    floats_ = AlignedArray(count);
  } else {
    halves_.reset(static_cast<std::uint16_t*>(platform::aligned_allocate(bytes())));
  }
}

Operand::Operand(DType dtype, AlignedArray numbers) : Operand(dtype, dtype == DType::f32 ? 0 : numbers.size()) {
  count_ = numbers.size();
  if (dtype == DType::f32) {
    floats_ = std::move(numbers);
    return;
  }
  for (std::size_t i = 0; i < count_; ++i) halves_.get()[i] = narrow(dtype_, numbers[i]);
}

const float* Operand::numbers(std::size_t first, std::size_t count, std::vector<float>& room) const {
  if (dtype_ == DType::f32) return floats_.data() + first;
  room.resize(count);
  for (std::size_t i = 0; i < count; ++i) room[i] = widen(dtype_, halves_.get()[first + i]);
  return room.data();
}

float Operand::get(std::size_t index) const {
  return dtype_ == DType::f32 ? floats_[index] : widen(dtype_, halves_.get()[index]);
}

void Operand::set(std::size_t index, float value) {
  if (dtype_ == DType::f32) {
    floats_[index] = value;
  } else {
    halves_.get()[index] = narrow(dtype_, value);
  }
}

void Operand::fill(float value) {
  if (dtype_ == DType::f32) return floats_.fill(value);
  const std::uint16_t element = narrow(dtype_, value);
  for (std::size_t i = 0; i < count_; ++i) halves_.get()[i] = element;
}

double rounding_error(DType dtype, double result) {
  if (dtype == DType::bf16) return std::ldexp(std::fabs(result), -8);
  if (dtype == DType::f16) return std::ldexp(std::fabs(result), -11) + std::ldexp(1.0, -25);
  return 0.0;
}

double weight_rounding_error(DType dtype, double largest_value) {
  return dtype == DType::bf16 ? std::ldexp(largest_value, -8) : 0.0;
}

}  // namespace polyhead::bench
