// The portable kernels: scalar C++, double arithmetic on float storage, written to be seen to be right. They complete the
// kernel table where no instruction set is known, and are what a doubtful result of a fast kernel is compared with first.
#pragma once

#include <cstddef>
#include <cstdint>

// A kernel's body, called inside the kernel's own floating-point environment: inlined, its arithmetic could move out of it.
#define POLYHEAD_NOINLINE __attribute__((noinline))

namespace polyhead::simd::reference {

// A pointer moved by a stride in bytes.
template <class T>
static inline T* at(T* base, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(bytes));
}

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kInfinity = __builtin_inf();
// The shift of a partial result that has seen no key.
constexpr float kNoKey = -3.402823466e+38f;

}  // namespace polyhead::simd::reference
