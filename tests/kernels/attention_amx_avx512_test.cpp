// attention_f32 and fast_attention_f32 on emulated tiles, with the vectors that the kernels for AMX have.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX3
#include "kernels/attention_amx_suite.hpp"
#endif
