// The GEMM in scalar arithmetic, for weights of any kind. A product of two floats is exact in double, so fused or not, a sum
// has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/contract/element.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/floating_point.hpp"
#include "simd/quantise.hpp"
#include "simd/reference/activation.hpp"
#include "simd/reference/element.hpp"
#include "simd/reference/reference.hpp"

namespace polyhead::simd::reference {
namespace {

// Nothing here needs panels, but callers' arithmetic with them is the same as for the fast kernels.
constexpr std::int64_t panel_width = 4;

// How each kind is stored: a column of W after the other, each of column_bytes(k).

template <class T>
struct ElementWeights {
  static std::int64_t column_bytes(std::int64_t k) { return k * static_cast<std::int64_t>(sizeof(T)); }
  static void pack(const float* weight, std::ptrdiff_t stride, std::int64_t k, unsigned char* column) {
    for (std::int64_t i = 0; i < k; ++i) {
      const T element = rounded<T>(*at(weight, stride * i));
      std::memcpy(column + i * static_cast<std::int64_t>(sizeof(T)), &element, sizeof(T));
    }
  }
  static double weight(const unsigned char* column, std::int64_t i) {
    T element;
    std::memcpy(&element, column + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return to_double(element);
  }
};
using F32Weights = ElementWeights<float>;
using Bf16Weights = ElementWeights<Bf16>;
using F16Weights = ElementWeights<F16>;

struct Int8Weights {  // the scale, then a byte each
  static std::int64_t column_bytes(std::int64_t k) { return static_cast<std::int64_t>(sizeof(float)) + k; }
  static void pack(const float* weight, std::ptrdiff_t stride, std::int64_t k, unsigned char* column) {
    LargestWeight largest;
    for (std::int64_t i = 0; i < k; ++i) largest.Take(*at(weight, stride * i));
    const float scale = largest.Int8Scale();
    std::memcpy(column, &scale, sizeof scale);
    for (std::int64_t i = 0; i < k; ++i) {
      const int multiple = NearestMultiple(*at(weight, stride * i), scale, -kInt8Most, kInt8Most);
      column[static_cast<std::int64_t>(sizeof scale) + i] = static_cast<unsigned char>(multiple);
    }
  }
  static float scale(const unsigned char* column) {
    float value;
    std::memcpy(&value, column, sizeof value);
    return value;
  }
  static int multiple(const unsigned char* column, std::int64_t i) {
    return static_cast<std::int8_t>(column[static_cast<std::int64_t>(sizeof(float)) + i]);
  }
  static double weight(const unsigned char* column, std::int64_t i) {
    return static_cast<double>(static_cast<float>(multiple(column, i)) * scale(column));
  }
};

struct Int4Weights {  // for each block its scale, then a byte each
  static constexpr std::int64_t block_bytes = 2 + kInt4Block;
  static std::int64_t column_bytes(std::int64_t k) { return (k + kInt4Block - 1) / kInt4Block * block_bytes; }
  static void pack(const float* weight, std::ptrdiff_t stride, std::int64_t k, unsigned char* column) {
    for (std::int64_t begin = 0; begin < k; begin += kInt4Block, column += block_bytes) {
      const std::int64_t count = k - begin < kInt4Block ? k - begin : kInt4Block;
      float weights[kInt4Block];
      for (std::int64_t i = 0; i < count; ++i) weights[i] = *at(weight, stride * (begin + i));
      Int4Block block;
      RoundToInt4(weights, count, &block);
      std::memcpy(column, &block.scale, 2);
      std::memcpy(column + 2, block.multiple, static_cast<std::size_t>(count));
    }
  }
  static double weight(const unsigned char* column, std::int64_t i) {
    column += i / kInt4Block * block_bytes;
    std::uint16_t scale;
    std::memcpy(&scale, column, sizeof scale);
    return static_cast<double>(static_cast<std::int8_t>(column[2 + i % kInt4Block])) * to_double(Bf16{scale});
  }
};

// In whole floats, so that a caller may count in them.
template <class Weights>
std::size_t packed_bytes(std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>((n * Weights::column_bytes(k) + 3) / 4 * 4);
}

template <class Weights>
POLYHEAD_NOINLINE void pack_columns(const PackF32Args& args) {
  auto* column = static_cast<unsigned char*>(args.packed);
  std::memset(column, 0, packed_bytes<Weights>(args.n, args.k));
  for (std::int64_t n = 0; n < args.n; ++n, column += Weights::column_bytes(args.k)) {
    Weights::pack(at(args.weight, args.n_stride * n), args.k_stride, args.k, column);
  }
}

template <class Weights>
void pack(const PackF32Args& args) {
  const KeepDenormals environment;  // and rounding to nearest
  pack_columns<Weights>(args);
}

// Numbers of A are rounded to Row first.
template <class Weights, class Row = float>
POLYHEAD_NOINLINE void multiply(const GemmF32Args& args) {
  const auto* packed = static_cast<const unsigned char*>(args.packed);
  for (std::int64_t m = 0; m < args.m; ++m) {
    const float* a = at(args.a, args.a_stride * m);
    const float* residual = args.residual ? at(args.residual, args.residual_stride * m) : nullptr;
    float* c = at(args.c, args.c_stride * m);
    for (std::int64_t n = args.n_begin; n < args.n_end; ++n) {
      const unsigned char* column = packed + n * Weights::column_bytes(args.k);
      double sum = args.bias ? static_cast<double>(args.bias[n]) : 0.0;
      for (std::int64_t k = 0; k < args.k; ++k) sum += to_double(rounded<Row>(a[k])) * Weights::weight(column, k);
      const float value = activate(args.activation, static_cast<float>(sum));
      c[n] = residual ? value + residual[n] : value;
    }
  }
}

template <class Weights>
void run(const GemmF32Args& args) {
  const KeepDenormals environment;
  multiply<Weights>(args);
}

template <class Weights>
constexpr GemmKernel kernel(const char* name) {
  return {name, panel_width, 1, packed_bytes<Weights>, pack<Weights>, run<Weights>};
}

}  // namespace
}  // namespace polyhead::simd::reference
