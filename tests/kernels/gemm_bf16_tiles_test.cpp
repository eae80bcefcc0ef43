// gemm_bf16_bf16 on emulated tiles, with vectors of 256 bits.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#include "kernels/gemm_bf16_tiles_suite.hpp"
#endif
