// gemm_f32 in scalar arithmetic. A product of two floats is exact in double, so fused or not, a sum has the same bits.
#include "simd/contract/gemm.hpp"

#include "simd/floating_point.hpp"
#include "simd/reference/activation.hpp"
#include "simd/reference/reference.hpp"

namespace polyhead::simd::reference {
namespace {

// Panels of 4 columns [panel][k][4], the last padded with zeros: nothing here needs them, but callers' arithmetic with panels
// is the same as for the fast kernels.
constexpr std::int64_t kPanelWidth = 4;

std::int64_t padded(std::int64_t n) {
  return (n + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

std::size_t packed_bytes(std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(padded(n)) * static_cast<std::size_t>(k) * sizeof(float);
}

std::int64_t packed_index(std::int64_t n, std::int64_t k, std::int64_t k_count) {
  return (n / kPanelWidth * k_count + k) * kPanelWidth + n % kPanelWidth;
}

void pack(const PackF32Args& args) {
  for (std::int64_t n = 0; n < padded(args.n); ++n) {
    for (std::int64_t k = 0; k < args.k; ++k) {
      const float value = n < args.n ? *at(args.weight, args.n_stride * n + args.k_stride * k) : 0.0f;
      args.packed[packed_index(n, k, args.k)] = value;
    }
  }
}

POLYHEAD_NOINLINE void multiply(const GemmF32Args& args) {
  for (std::int64_t m = 0; m < args.m; ++m) {
    const float* a = at(args.a, args.a_stride * m);
    const float* residual = args.residual ? at(args.residual, args.residual_stride * m) : nullptr;
    float* c = at(args.c, args.c_stride * m);
    for (std::int64_t n = args.n_begin; n < args.n_end; ++n) {
      double sum = args.bias ? static_cast<double>(args.bias[n]) : 0.0;
      for (std::int64_t k = 0; k < args.k; ++k) {
        sum += static_cast<double>(a[k]) * static_cast<double>(args.packed[packed_index(n, k, args.k)]);
      }
      const float value = activate(args.activation, static_cast<float>(sum));
      c[n] = residual ? value + residual[n] : value;
    }
  }
}

void run(const GemmF32Args& args) {
  const KeepDenormals environment;
  multiply(args);
}

}  // namespace

extern const GemmKernel gemm_f32;
const GemmKernel gemm_f32 = {"gemm_f32_reference", kPanelWidth, 1, packed_bytes, pack, run};

}  // namespace polyhead::simd::reference
