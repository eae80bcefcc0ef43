// The floating-point environment that kernels run in, and the caller's one brought back afterwards.
#pragma once

#include <cstdint>

namespace polyhead::simd {
namespace {

// Round to nearest, no traps, denormal operands and results are zero: one denormal in a multiply-add otherwise costs more than
// a hundred cycles on x86. The destructor restores the caller's modes and flags exactly. Use it around a call that is not
// inlined, so that no arithmetic can move across its borders.
class FlushDenormals {
 public:
#if defined(__x86_64__) || defined(__i386__)
  FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(0x9FC0u);
  }  // FZ, all masks, DAZ
  ~FlushDenormals() {
    __builtin_ia32_ldmxcsr(saved_);
  }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const std::uint64_t flush = std::uint64_t{1} << 24;
    asm volatile("msr fpcr, %0" : : "r"(flush) : "memory");
  }
  ~FlushDenormals() {
    asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
  }

 private:
  std::uint64_t saved_;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}

 private:
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace
}  // namespace polyhead::simd
