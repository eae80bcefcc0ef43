// The GEMM with f32 weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/gemm_loops-inl.h"
#include "simd/hwy/gemm_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

void Gemm(const GemmF32Args& args) {
  if (args.m <= 0 || args.n_begin >= args.n_end) return;
  const FlushDenormals environment;
  PlainRows source;
  RunGemm(args, source);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
