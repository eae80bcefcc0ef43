#include "support/evict.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/machine.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace polyhead::bench {
namespace {

constexpr std::size_t line_bytes = 64;

#if defined(__x86_64__)
bool has_clflushopt() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 23)) != 0;
  }();
  return has;
}
#endif

}  // namespace

void evict(const void* memory, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(memory) / line_bytes * line_bytes;
  const auto last = reinterpret_cast<std::uintptr_t>(memory) + bytes;
#if defined(__x86_64__)
  // In assembly, since the intrinsic of the faster one needs a flag for the whole file.
  if (has_clflushopt()) {
    for (std::uintptr_t line = first; line < last; line += line_bytes) {
      __asm__ volatile("clflushopt (%0)" ::"r"(line) : "memory");
    }
  } else {
    for (std::uintptr_t line = first; line < last; line += line_bytes) {
      __asm__ volatile("clflush (%0)" ::"r"(line) : "memory");
    }
  }
  __asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__) && defined(__linux__)
  // Linux lets programs clean and invalidate their own lines.
  for (std::uintptr_t line = first; line < last; line += line_bytes) __asm__ volatile("dc civac, %0" ::"r"(line) : "memory");
  __asm__ volatile("dsb sy" ::: "memory");
#else
  (void)first;
  (void)last;
  evict_all();
#endif
}

void evict_all() {
  static std::vector<std::uint8_t> memory = [] {
    std::int64_t largest = std::int64_t{32} << 20;
    for (const Cache& cache : machine_caches()) largest = std::max(largest, cache.bytes);
    return std::vector<std::uint8_t>(static_cast<std::size_t>(std::min<std::int64_t>(2 * largest, std::int64_t{1} << 30)), 1);
  }();
  std::uint8_t sum = 0;
  for (std::size_t i = 0; i < memory.size(); i += line_bytes) sum = static_cast<std::uint8_t>(sum + memory[i]);
  volatile std::uint8_t keep = sum;
  (void)keep;
}

}  // namespace polyhead::bench
