// gemm_i8_i8 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {
namespace {

constexpr std::int64_t most_rounded = 65536;
constexpr float least_row = 7.888609052210118e-31f;  // 2^-100

struct RowScale {
  float factor, scale;
};

RowScale scale_of_row(const float* a, std::int64_t k) {
  float largest = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    if (!IsFinite(a[i])) return {0.0f, NoScale()};
    if (Magnitude(a[i]) > largest) largest = Magnitude(a[i]);
  }
  if (largest < least_row) return {0.0f, 0.0f};
  return {static_cast<float>(kInt8Most) / largest, largest / static_cast<float>(kInt8Most)};
}

std::int64_t rounded_number(float value, float factor) {
  return factor == 0 ? 0 : NearestMultiple(value * factor, 1.0f, -kInt8Most, kInt8Most);
}

POLYHEAD_NOINLINE void multiply_rounded(const GemmF32Args& args) {
  const auto* packed = static_cast<const unsigned char*>(args.packed);
  for (std::int64_t m = 0; m < args.m; ++m) {
    const float* a = at(args.a, args.a_stride * m);
    const float* residual = args.residual ? at(args.residual, args.residual_stride * m) : nullptr;
    float* c = at(args.c, args.c_stride * m);
    const RowScale row = scale_of_row(a, args.k);
    for (std::int64_t n = args.n_begin; n < args.n_end; ++n) {
      const unsigned char* column = packed + n * Int8Weights::column_bytes(args.k);
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < args.k; ++k) sum += rounded_number(a[k], row.factor) * Int8Weights::multiple(column, k);
      const float scale = row.scale * Int8Weights::scale(column);
      const double value = static_cast<double>(static_cast<float>(sum)) * static_cast<double>(scale) +
                           (args.bias ? static_cast<double>(args.bias[n]) : 0.0);
      const float activated = activate(args.activation, static_cast<float>(value));
      c[n] = residual ? activated + residual[n] : activated;
    }
  }
}

void run_rounded(const GemmF32Args& args) {
  if (args.k > most_rounded) return run<Int8Weights>(args);
  const KeepDenormals environment;
  multiply_rounded(args);
}

}  // namespace

extern const GemmKernel gemm_i8_i8;
const GemmKernel gemm_i8_i8 = {"gemm_i8_i8_reference",    panel_width,       1,
                               packed_bytes<Int8Weights>, pack<Int8Weights>, run_rounded};

}  // namespace polyhead::simd::reference
