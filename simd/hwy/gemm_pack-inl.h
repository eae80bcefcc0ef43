// Packing of weights into panels: [panel][k][panel width], each panel contiguous, the last one padded with zero columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "simd/contract/gemm.hpp"
#include "simd/hwy/gemm_tile-inl.h"
#include "simd/hwy/partial_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// 4 rows of 4 contiguous values become 4 k-steps of 4 columns.
HWY_INLINE void Transpose4x4(const float* from, std::ptrdiff_t n_stride, float* HWY_RESTRICT to, std::int64_t to_stride) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;
  const auto row0 = hn::LoadU(d, from);
  const auto row1 = hn::LoadU(d, RowOf(from, n_stride, 1));
  const auto row2 = hn::LoadU(d, RowOf(from, n_stride, 2));
  const auto row3 = hn::LoadU(d, RowOf(from, n_stride, 3));
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, row2, row3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23)), d, to + 3 * to_stride);
}

HWY_INLINE void PackElements(const PackF32Args& args, std::int64_t n_first, std::int64_t n_count, std::int64_t k_first,
                             std::int64_t k_end, float* panel, std::int64_t width, std::int64_t column) {
  for (std::int64_t k = k_first; k < k_end; ++k) {
    for (std::int64_t n = 0; n < n_count; ++n) {
      panel[k * width + column + n] = *RowOf(RowOf(args.weight, args.n_stride, n_first + n), args.k_stride, k);
    }
  }
}

// One panel of `columns` features from n_first on, rows `width` floats apart.
HWY_NOINLINE void PackPanel(const PackF32Args& args, std::int64_t n_first, std::int64_t columns, std::int64_t width,
                            float* HWY_RESTRICT panel) {
  constexpr std::ptrdiff_t kFloat = sizeof(float);
  if (columns < width) {
    for (std::int64_t k = 0; k < args.k; ++k) {
      for (std::int64_t n = columns; n < width; ++n) panel[k * width + n] = 0.0f;
    }
  }
  if (args.k_stride == kFloat) {
    // A cache line (16 values of k) of each row before the next one: the lines of many rows, often a power of two apart,
    // need not stay in the first-level cache.
    constexpr std::int64_t kLine = 16;
    const std::int64_t quads = columns / 4 * 4;
    std::int64_t k = 0;
    for (; k + 4 <= args.k; k += kLine) {
      const std::int64_t k_end = k + kLine < args.k ? k + kLine : args.k / 4 * 4;
      for (std::int64_t n = 0; n < quads; n += 4) {
        for (std::int64_t kk = k; kk < k_end; kk += 4) {
          Transpose4x4(RowOf(args.weight, args.n_stride, n_first + n) + kk, args.n_stride, panel + kk * width + n, width);
        }
      }
    }
    if (quads < columns) PackElements(args, n_first + quads, columns - quads, 0, args.k / 4 * 4, panel, width, quads);
    PackElements(args, n_first, columns, args.k / 4 * 4, args.k, panel, width, 0);
  } else if (args.n_stride == kFloat) {
    const GemmTag d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t k = 0; k < args.k; ++k) {
      const float* from = RowOf(args.weight + n_first, args.k_stride, k);
      std::int64_t n = 0;
      for (; n + lanes <= columns; n += lanes) hn::StoreU(hn::LoadU(d, from + n), d, panel + k * width + n);
      for (; n < columns; ++n) panel[k * width + n] = from[n];
    }
  } else {
    PackElements(args, n_first, columns, 0, args.k, panel, width, 0);
  }
}

std::size_t PackedBytes(std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>(PackedColumns(n)) * static_cast<std::size_t>(k) * sizeof(float);
}

void Pack(const PackF32Args& args) {
  for (std::int64_t n = 0; n < args.n; n += kPanelWidth) {
    const std::int64_t columns = args.n - n < kPanelWidth ? args.n - n : kPanelWidth;
    PackPanel(args, n, columns, PaddedColumns(columns), static_cast<float*>(args.packed) + n * args.k);
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
