// What a GEMM kernel promises: C = activation(A W' + bias) + residual with packed weights. See attention.hpp for the rules
// that every kernel keeps.
//
// Every element of C is one sum over its own row of A and column of W, k ascending: its bits depend neither on M, nor on the
// tile it falls in, nor on n_begin and n_end, and a NaN or an infinity reaches its own row or column and nothing else.
//
// Weights may be stored in fewer bits than f32's 32. pack rounds them, run widens them, and the bits of C are those of the same
// instruction set's multiply-adds with the widened weights in f32. What W[n][k] becomes, "nearest" being to even of two as
// near:
//   f32   itself
//   bf16  the nearest bf16                   } NaN stays NaN, what is too large becomes infinite; a bf16 denormal
//   f16   the nearest f16, denormals too     } may count as 0
//   int8  q * scale rounded to f32, q the integer in -127..127 nearest to W / scale; scale is f32, one for each n: the largest
//         |W[n][.]| / 127
//   int4  q * scale, exact in f32, q the nearest integer in -8..7; scale is bf16, one for each n and 32 k (the last block may
//         be shorter), truncated from the block's largest |W| / 7 or from the W that is largest / -8, whichever gives the
//         smaller sum of squared errors (the first if equal)
// An int8 column, or a block of int4, that holds something not finite is NaN.
//
// gemm_i8_i8 rounds rows of A too: q is the integer nearest to a * (127 / largest |A[m][.]|), both operations in f32, and the
// row's scale is largest / 127. The sum of products of integers is exact, and C = sum * (row scale * column scale) + bias,
// rounded once for each operation but the last two, which are one. A row whose largest is below 2^-100 counts as zeros, one
// that holds something not finite gives NaN. Rows of more than 65,536 numbers stay f32, and C is gemm_f32_i8's.
//
// gemm_bf16_bf16 rounds each number of A to the nearest bf16, as pack does those of W. Products are exact in f32; sums are
// f32's (the scalar kernel's double's), a multiply-add for each k, or what the instruction set makes of two products and a sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::simd {

enum class Activation : std::uint8_t { none = 0, relu = 1, gelu_erf = 2, gelu_tanh = 3 };

struct PackF32Args {
  const float* weight = nullptr;  // W[n][k] at weight + n * n_stride + k * k_stride (bytes)
  std::ptrdiff_t n_stride = 0;
  std::ptrdiff_t k_stride = 0;
  std::int64_t n = 0;      // output features
  std::int64_t k = 0;      // input features
  void* packed = nullptr;  // GemmKernel::packed_bytes(n, k) bytes, 64-byte aligned
};

struct GemmF32Args {
  const float* a = nullptr;  // A[m][k], rows a_stride bytes apart, k contiguous
  std::ptrdiff_t a_stride = 0;
  const void* packed = nullptr;     // the whole packed W, made by this kernel's pack for the same n and k
  const float* bias = nullptr;      // [n] or nullptr
  const float* residual = nullptr;  // [m][n] added after the activation, or nullptr; may be c itself
  std::ptrdiff_t residual_stride = 0;
  float* c = nullptr;  // C[m][n], rows c_stride bytes apart; only columns [n_begin, n_end) are written
  std::ptrdiff_t c_stride = 0;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t n_begin = 0;  // multiple of panel_width
  std::int64_t n_end = 0;    // multiple of panel_width, or n
  Activation activation = Activation::none;
};

struct GemmKernel {
  const char* name;          // "gemm_f32_avx2"; "gemm_f32_i8_avx2" with int8 weights
  std::int32_t panel_width;  // columns of one packed panel
  std::int32_t row_tile;     // rows of one register tile: cut m at multiples of it where there is a choice
  std::size_t (*packed_bytes)(std::int64_t n, std::int64_t k);
  void (*pack)(const PackF32Args& args);
  void (*run)(const GemmF32Args& args);
};

}  // namespace polyhead::simd
