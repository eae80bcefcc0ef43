// A product with weights in fewer bits, its operands in guarded memory, beside the same product by gemm_f32 on weights that the
// oracle has rounded.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/guarded.hpp"
#include "polyhead/weight_type.hpp"
#include "simd/contract/gemm.hpp"
#include "support/random.hpp"
#include "support/rounded_weights.hpp"

namespace polyhead::test {

using simd::Activation;
using simd::GemmF32Args;
using simd::GemmKernel;
using simd::PackF32Args;

struct WeightsKernelCase {
  std::string name;
  WeightType type;
  const GemmKernel* kernel;
  const GemmKernel* plain;  // gemm_f32 of the same instruction set
};

#if defined(POLYHEAD_TEST_EMULATED)
constexpr bool emulated = true;  // then sweeps take every fifth case
#else
constexpr bool emulated = false;
#endif

constexpr std::ptrdiff_t float_bytes = sizeof(float);

inline std::size_t count_of(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

// W [n][k], packed by a kernel into guarded memory.
class Packed {
 public:
  Packed(const GemmKernel& kernel, const float* weight, std::int64_t n, std::int64_t k) : Packed(kernel, weight, n, k, k, 1) {}
  Packed(const GemmKernel& kernel, const float* weight, std::int64_t n, std::int64_t k, std::int64_t n_stride,
         std::int64_t k_stride)
      : bytes_(kernel.packed_bytes(n, k)), memory_(bytes_, 64) {
    PackF32Args args;
    args.weight = weight;
    args.n_stride = n_stride * float_bytes;
    args.k_stride = k_stride * float_bytes;
    args.n = n;
    args.k = k;
    args.packed = memory_.data();
    kernel.pack(args);
  }
  const void* data() const { return memory_.data(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  Guarded<unsigned char> memory_;
};

// A product by the kernel, and the same by gemm_f32 on rounded weights.
struct WeightsProduct {
  WeightsProduct(const WeightsKernelCase& kernels, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                 std::int64_t gap, std::uint32_t seed)
      : m(rows),
        n(columns),
        k(depth),
        a_width(depth + gap),
        c_width(columns + gap),
        weight(count_of(columns, depth)),
        a(extent(depth, a_width)),
        bias(count_of(columns, 1)),
        residual(extent(columns, c_width)),
        c(extent(columns, c_width)),
        expected(c.size()) {
    a.fill_random(seed);
    bias.fill_random(seed + 1);
    residual.fill_random(seed + 2);
    polyhead::testing::Random random(seed + 3);
    for (float& value : weight) value = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(depth)));
    pack(kernels);
  }

  void pack(const WeightsKernelCase& kernels) {
    rounded = polyhead::testing::rounded_weights(kernels.type, weight, n, k);
    packed = std::make_unique<Packed>(*kernels.kernel, weight.data(), n, k);
    plain_packed = std::make_unique<Packed>(*kernels.plain, rounded.data(), n, k);
  }

  std::size_t extent(std::int64_t columns, std::int64_t width) const {
    return m == 0 ? 0 : static_cast<std::size_t>((m - 1) * width + columns);
  }

  GemmF32Args args() {
    GemmF32Args args;
    args.a = a.data();
    args.a_stride = a_width * float_bytes;
    args.packed = packed->data();
    args.bias = bias.data();
    args.c = c.data();
    args.c_stride = c_width * float_bytes;
    args.m = m;
    args.n = n;
    args.k = k;
    args.n_end = n;
    return args;
  }

  // Runs both and compares every byte of C. `in_place`: the residual is C itself.
  void expect_bits_of_plain(const WeightsKernelCase& kernels, GemmF32Args args, bool in_place = false) {
    for (Guarded<float>* target : {&c, &expected}) {
      for (std::size_t i = 0; i < c.size(); ++i) (*target)[i] = in_place ? residual[i] : untouched;
    }
    const std::ptrdiff_t c_offset = args.c - c.data();
    GemmF32Args plain = args;
    plain.c = expected.data() + c_offset;
    plain.packed = plain_packed->data();
    if (in_place) {
      args.residual = args.c;
      plain.residual = plain.c;
      args.residual_stride = plain.residual_stride = args.c_stride;
    }
    kernels.kernel->run(args);
    kernels.plain->run(plain);
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (bits_of(c[i]) == bits_of(expected[i])) continue;
      if (std::isnan(c[i]) && std::isnan(expected[i])) continue;  // of any payload
      FAIL() << "M " << m << " N " << n << " K " << k << ", element " << i << " (rows of " << c_width << "): " << c[i]
             << " instead of " << expected[i] << (args.bias ? ", bias" : "") << (in_place ? ", residual is C" : "")
             << ", activation " << static_cast<int>(args.activation);
    }
  }

  static constexpr float untouched = 12345.0f;
  std::int64_t m, n, k, a_width, c_width;
  std::vector<float> weight, rounded;
  Guarded<float> a, bias, residual, c, expected;
  std::unique_ptr<Packed> packed, plain_packed;
};

}  // namespace polyhead::test
