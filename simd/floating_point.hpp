// The floating-point environment that kernels run in, and the caller's one brought back afterwards: whatever the caller's
// rounding mode or treatment of denormals is, a kernel's bits are the same.
#pragma once

#include <cstdint>

namespace polyhead::simd {
namespace {

// Round to nearest, no traps; denormals as the derived class says. The destructor restores the caller's modes and flags
// exactly. Use it around a call that is not inlined, so that no arithmetic can move across its borders.
class FloatingPointMode {
 public:
  FloatingPointMode(const FloatingPointMode&) = delete;
  FloatingPointMode& operator=(const FloatingPointMode&) = delete;

#if defined(__x86_64__) || defined(__i386__)

 protected:
  // Exception masks; FZ and DAZ.
  explicit FloatingPointMode(bool flush) : saved_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(flush ? 0x9FC0u : 0x1F80u);
  }
  ~FloatingPointMode() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)

 protected:
  explicit FloatingPointMode(bool flush) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const std::uint64_t mode = flush ? std::uint64_t{1} << 24 : 0;
    asm volatile("msr fpcr, %0" : : "r"(mode) : "memory");
  }
  ~FloatingPointMode() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  std::uint64_t saved_;
#else

 protected:
  explicit FloatingPointMode(bool) {}
  ~FloatingPointMode() {}
#endif
};

// Denormal operands and results are zero: one denormal in a multiply-add otherwise costs more than a hundred cycles on x86.
class FlushDenormals : FloatingPointMode {
 public:
  FlushDenormals() : FloatingPointMode(true) {}
};

// Denormals are what IEEE 754 says: for kernels that are to be exact, not fast.
class KeepDenormals : FloatingPointMode {
 public:
  KeepDenormals() : FloatingPointMode(false) {}
};

}  // namespace
}  // namespace polyhead::simd
