// gemm_bf16_bf16 in scalar arithmetic.
#include "simd/reference/gemm.hpp"

namespace polyhead::simd::reference {
namespace {

void run_rounded(const GemmF32Args& args) {
  const KeepDenormals environment;
  multiply<Bf16Weights, Bf16>(args);
}

}  // namespace

extern const GemmKernel gemm_bf16_bf16;
const GemmKernel gemm_bf16_bf16 = {"gemm_bf16_bf16_reference", panel_width,       1,
                                   packed_bytes<Bf16Weights>,  pack<Bf16Weights>, run_rounded};

}  // namespace polyhead::simd::reference
