// The instruction set that a source is compiled for, as kernels' names end in it.
#pragma once

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
#define POLYHEAD_KERNEL_NAME(kind) kind "_avx512"
#elif HWY_TARGET == HWY_AVX2
#define POLYHEAD_KERNEL_NAME(kind) kind "_avx2"
#elif HWY_TARGET == HWY_SSE4
#define POLYHEAD_KERNEL_NAME(kind) kind "_sse4"
#elif HWY_TARGET == HWY_NEON
#define POLYHEAD_KERNEL_NAME(kind) kind "_neon"
#elif HWY_TARGET == HWY_SVE
#define POLYHEAD_KERNEL_NAME(kind) kind "_sve"
#else
#error "No kernel is meant for this instruction set"
#endif
