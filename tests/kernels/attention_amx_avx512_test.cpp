// attention_f32, fast_attention_f32, attention_bf16 and attention_f16 on emulated tiles, with the vectors that the kernels for
// AMX have.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX3
#include "kernels/attention_amx_suite.hpp"
#endif
