// gemm_bf16_bf16 on emulated tiles, with the vectors that the kernel for AMX has.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX3
#include "kernels/gemm_bf16_tiles_suite.hpp"
#endif
