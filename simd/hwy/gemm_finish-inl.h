// What becomes of a GEMM's sums: activation, residual, and the way into C.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/hwy/activation-inl.h"
#include "simd/hwy/gemm_tile-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// C = activation(sums) + residual for rows x columns; the sums' rows are sums_stride floats apart.
template <Activation kActivation>
HWY_NOINLINE void Finish(const GemmF32Args& args, const float* HWY_RESTRICT sums, std::int64_t sums_stride, std::int64_t row,
                         std::int64_t rows, std::int64_t column, std::int64_t columns) {
  const GemmTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* from = sums + i * sums_stride;
    float* c = RowOf(args.c, args.c_stride, row + i) + column;
    const float* residual = args.residual ? RowOf(args.residual, args.residual_stride, row + i) + column : nullptr;
    std::int64_t j = 0;
    for (; j + lanes <= columns; j += lanes) {
      auto v = Activate<kActivation>(d, hn::LoadU(d, from + j));
      if (residual) v = hn::Add(v, hn::LoadU(d, residual + j));
      hn::StoreU(v, d, c + j);
    }
    if (j < columns) {
      const std::size_t count = static_cast<std::size_t>(columns - j);
      auto v = Activate<kActivation>(d, LoadPartial(d, from + j, count));
      if (residual) v = hn::Add(v, LoadPartial(d, residual + j, count));
      StorePartial(v, d, c + j, count);
    }
  }
}

void FinishAny(const GemmF32Args& args, const float* sums, std::int64_t sums_stride, std::int64_t row, std::int64_t rows,
               std::int64_t column, std::int64_t columns) {
  switch (args.activation) {
    case Activation::none:
      return Finish<Activation::none>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::relu:
      return Finish<Activation::relu>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::gelu_erf:
      return Finish<Activation::gelu_erf>(args, sums, sums_stride, row, rows, column, columns);
    case Activation::gelu_tanh:
      return Finish<Activation::gelu_tanh>(args, sums, sums_stride, row, rows, column, columns);
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
