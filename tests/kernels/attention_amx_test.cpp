// attention_f32, fast_attention_f32, attention_bf16 and attention_f16 on emulated tiles, with vectors of 256 bits.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#include "kernels/attention_amx_suite.hpp"
#endif
