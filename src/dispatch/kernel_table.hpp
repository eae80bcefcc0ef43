// The one kernel table: for each instruction set a complete row of kernels. Only this folder names concrete kernels.
#pragma once

#include <vector>

#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"
#include "polyhead/weight_type.hpp"
#include "simd/contract/attention.hpp"
#include "simd/contract/gemm.hpp"
#include "simd/contract/mask_marks.hpp"
#include "simd/contract/rowwise.hpp"

namespace polyhead::dispatch {

// Pointers are never null. `name` in each kernel tells which target it was really compiled for.
struct KernelTable {
  Isa isa;
  const simd::AttentionKernel* attention_f32;       // transposed scores: any query length
  const simd::AttentionKernel* fast_attention_f32;  // the same for Precision::fast; attention_f32 where a target has none
  const simd::AttentionKernel* decode_f32;          // row-major scores: few rows a kv head, bound by reading K and V
  const simd::MergeKernel* merge_f32;
  const simd::GemmKernel* gemm_f32;
  const simd::LayerNormKernel* layer_norm_f32;
  const simd::SoftmaxKernel* softmax_f32;
  const simd::ActivationKernel* activation_f32;
  const simd::MaskMarksKernel* mask_marks;
#if defined(POLYHEAD_HAVE_BF16)
  const simd::AttentionKernel* attention_bf16;
  const simd::AttentionKernel* decode_bf16;
  const simd::MergeKernel* merge_bf16;
  const simd::GemmKernel* gemm_f32_bf16;   // rows of f32, weights of bf16
  const simd::GemmKernel* gemm_bf16_bf16;  // rows are rounded as they come
#endif
#if defined(POLYHEAD_HAVE_F16)
  const simd::AttentionKernel* attention_f16;
  const simd::AttentionKernel* decode_f16;
  const simd::MergeKernel* merge_f16;
  const simd::GemmKernel* gemm_f32_f16;
#endif
#if defined(POLYHEAD_HAVE_I8)
  const simd::GemmKernel* gemm_f32_i8;
  const simd::GemmKernel* gemm_i8_i8;  // rows are rounded as they come; gemm_kernel may know a faster one with its bits
#endif
#if defined(POLYHEAD_HAVE_I4)
  const simd::GemmKernel* gemm_f32_i4;
#endif
#if defined(POLYHEAD_HAVE_I8)
  const simd::AttentionKernel* attention_i8;  // over caches
  const simd::AttentionKernel* decode_i8;
#endif
};

// What serves attention whose keys and values are of one dtype, and out where parts are merged.
struct AttentionKernels {
  const simd::AttentionKernel* transposed;  // any query length
  const simd::AttentionKernel* fast;        // the same for Precision::fast
  const simd::AttentionKernel* decode;      // few rows a kv head
  const simd::MergeKernel* merge;
};

// The dtypes that this build has attention kernels for, f32 first.
const std::vector<DType>& attention_dtypes();

// The table whose attention kernels take a query and an out of other types than the keys', which are `of_keys`: `table`, or the
// next plainer one that is built where its own multiply bf16 or pieces of f16 as they are, which a query of f32 is not.
const KernelTable& mixing_table(const KernelTable& table, DType of_keys);

// The dtypes that keys and values of a cache may be stored in: those, and i8.
const std::vector<DType>& cache_dtypes();

// What kernels call a dtype that is among attention_dtypes().
simd::Element element_of(DType dtype);

// For keys of one dtype. i8 has no out of its own: its merge is that of f32. Errors: unsupported for a dtype that is not among
// cache_dtypes().
AttentionKernels attention_kernels(const KernelTable& table, DType dtype);

// The kinds of weights that this build has GEMM kernels for, f32 first.
const std::vector<WeightType>& weight_types();

// Errors: unsupported for a kind that is not among weight_types().
const simd::GemmKernel& gemm_kernel(const KernelTable& table, WeightType weights);

// The table of one instruction set that this build contains (see available_isas for what the machine can run). Errors:
// unsupported for another one.
const KernelTable& kernel_table(Isa isa);

// Instruction sets that this build has kernels for, plainest first.
std::vector<Isa> built_isas();

// A row of kernels.inc; `name` is the kernel's own, as in "gemm_f32_avx2".
struct KernelRow {
  const char* kind;
  Isa target;
  const char* name;
};
std::vector<KernelRow> kernel_rows();

}  // namespace polyhead::dispatch
