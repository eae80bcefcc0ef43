// What Highway leaves open between its versions and targets. Differences end here: no algorithm asks which target it is on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#define POLYHEAD_UNROLL _Pragma("GCC unroll 32")
// For a lambda that works on vectors of its surroundings: called, it would find them in memory.
#define POLYHEAD_INLINED __attribute__((always_inline))

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Ints = hn::Vec<IntTag>;
#if !HWY_HAVE_SCALABLE
constexpr int kFloatLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
#endif

// Highway's Max and Min say nothing about NaN: x86 gives the second operand, ARM's maxnm the number.

// max(clean, x), NaN where x is NaN. `clean` holds no NaN.
HWY_INLINE Floats MaxKeepingNaN(FloatTag df, Floats clean, Floats x) {
#if HWY_ARCH_X86
  (void)df;
  return hn::Max(clean, x);
#else
  (void)df;
  return hn::IfThenElse(hn::Lt(x, clean), clean, x);
#endif
}

// max(x, clean), `clean` where x is NaN. `clean` holds no NaN.
HWY_INLINE Floats MaxDroppingNaN(FloatTag df, Floats x, Floats clean) {
  (void)df;
  return hn::Max(x, clean);
}

// sum + a * b where sum and its result share a register, for loops that need all 16. Left alone, gcc 12 picks the form that
// overwrites a factor and pays with copies and repeated loads, and clang 19 spills sums (2.5 times the time). clang keeps the
// order of the source only where it must; gcc's own order is 2 to 4 % better for few rows.
template <class V>
HWY_INLINE V MulAddInPlace(V a, V b, V sum) {
#if HWY_TARGET == HWY_AVX2 && HWY_COMPILER_CLANG
  __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
  return sum;
#elif HWY_TARGET == HWY_AVX2
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
  return sum;
#else
  return hn::MulAdd(a, b, sum);
#endif
}

// Asks for a cache line. It never faults, so the address may lie beyond the operand.
HWY_INLINE void PrefetchLine(const void* address) {
  __builtin_prefetch(address, 0, 3);
}

// The same into the second-level cache, for what is wanted later than the first has room for.
HWY_INLINE void PrefetchLineFar(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

// Moves a pointer by a stride in bytes.
template <class T>
HWY_INLINE T* Offset(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + static_cast<std::uintptr_t>(bytes));
}

// Asks for the first `columns` values of each row.
template <class T>
HWY_INLINE void PrefetchRows(const T* rows, std::ptrdiff_t stride, size_t count, size_t columns) {
  for (size_t i = 0; i < count; ++i) {
    const T* row = Offset(rows, static_cast<std::ptrdiff_t>(i) * stride);
    for (size_t column = 0; column < columns; column += 64 / sizeof(T)) PrefetchLine(row + column);
  }
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
