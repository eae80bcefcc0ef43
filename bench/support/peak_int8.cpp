// 8-bit dot products: AVX512-VNNI, AVX-VNNI, and ARM's matrix multiplication (i8mm). Whole loops in assembly: no flags for this
// file, and nothing for a compiler to merge or to spill. Ten chains, since two units of latency 4 or 5 may be there.
#include "dispatch/cpu_features.hpp"
#include "support/peak.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace polyhead::bench {
namespace {

#if defined(__x86_64__)

// Operands of all ones bits, 255 times -1; the sums wrap around.
#define POLYHEAD_TEN_SUMS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9"
#define POLYHEAD_LOOP(step)                                                                          \
  "1:\n\t" step("0") step("1") step("2") step("3") step("4") step("5") step("6") step("7") step("8") \
      step("9") "dec %0\n\tjnz 1b\n\tvzeroupper"

#define POLYHEAD_STEP(sum) "vpdpbusd %%zmm11, %%zmm10, %%zmm" sum "\n\t"
double avx512_vnni(std::int64_t rounds) {
  std::int64_t left = rounds;
  __asm__ volatile("vpternlogd $255, %%zmm10, %%zmm10, %%zmm10\n\tvmovdqa64 %%zmm10, %%zmm11\n\t" POLYHEAD_LOOP(POLYHEAD_STEP)
                   : "+r"(left)
                   :
                   : "cc", POLYHEAD_TEN_SUMS, "xmm10", "xmm11");
  return static_cast<double>(rounds) * 10 * 64 * 2;
}
#undef POLYHEAD_STEP

#define POLYHEAD_STEP(sum) "%{vex%} vpdpbusd %%ymm11, %%ymm10, %%ymm" sum "\n\t"
double avx_vnni(std::int64_t rounds) {
  std::int64_t left = rounds;
  __asm__ volatile("vpcmpeqd %%ymm10, %%ymm10, %%ymm10\n\tvmovdqa %%ymm10, %%ymm11\n\t" POLYHEAD_LOOP(POLYHEAD_STEP)
                   : "+r"(left)
                   :
                   : "cc", POLYHEAD_TEN_SUMS, "xmm10", "xmm11");
  return static_cast<double>(rounds) * 10 * 32 * 2;
}
#undef POLYHEAD_STEP

#elif defined(__aarch64__)

// Each instruction multiplies a 2 x 8 by an 8 x 2 matrix.
#define POLYHEAD_STEP(sum) "smmla v" sum ".4s, v10.16b, v11.16b\n\t"
double i8mm(std::int64_t rounds) {
  std::int64_t left = rounds;
  __asm__ volatile(".arch armv8.6-a\n\tmovi v10.16b, #3\n\tmovi v11.16b, #255\n\t1:\n\t" POLYHEAD_STEP("0") POLYHEAD_STEP("1")
                       POLYHEAD_STEP("2") POLYHEAD_STEP("3") POLYHEAD_STEP("4") POLYHEAD_STEP("5") POLYHEAD_STEP("6")
                           POLYHEAD_STEP("7") POLYHEAD_STEP("8") POLYHEAD_STEP("9") "subs %0, %0, #1\n\tb.ne 1b"
                   : "+r"(left)
                   :
                   : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11");
  return static_cast<double>(rounds) * 10 * 32 * 2;
}
#undef POLYHEAD_STEP

bool has_i8mm() {
#if defined(__linux__)
  constexpr unsigned long hwcap2_i8mm = 1ul << 13;
  return (getauxval(AT_HWCAP2) & hwcap2_i8mm) != 0;
#else
  return false;
#endif
}

#endif

}  // namespace

PeakLoop int8_peak(Isa isa) {
#if defined(__x86_64__)
  const dispatch::CpuFeatures& cpu = dispatch::cpu_features();
  if ((isa == Isa::avx512 || isa == Isa::avx512_bf16) && cpu.avx512_vnni) return {"avx512_vnni", avx512_vnni};
  if ((isa == Isa::avx512 || isa == Isa::avx512_bf16 || isa == Isa::avx2) && cpu.avx_vnni) return {"avx_vnni", avx_vnni};
#elif defined(__aarch64__)
  if (isa != Isa::reference && has_i8mm()) return {"i8mm", i8mm};
#endif
  (void)isa;
  return {"int8", nullptr};
}

}  // namespace polyhead::bench
