// What the machine can do at best, measured: the yardstick that kernels are held against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/runtime.hpp"

namespace polyhead::bench {

struct PeakKernel {
  // Independent chains of multiply-adds in registers; returns the number of floating-point operations done.
  double (*multiply_add)(std::int64_t rounds);
  // Reads count floats (a multiple of 1,024) and returns their sum, so that nothing can be left out.
  float (*read)(const float* data, std::size_t count);
};

// Null for a target without vectors (reference).
const PeakKernel* peak_kernel(Isa isa);

}  // namespace polyhead::bench
