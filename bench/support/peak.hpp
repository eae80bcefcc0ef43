// The inner loops that roofline.hpp measures with: what a core can do at best. Each runs on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "polyhead/runtime.hpp"

namespace polyhead::bench {

// In what order memory is read.
struct ReadOrder {
  // One stream from front to back, each line asked for this many bytes ahead; 0: not asked for.
  std::size_t ahead_bytes = 0;
  // With 2 or 4 streams, the halves or quarters, by turns in blocks of 4 KB: while a block is read the next stream's is asked
  // for.
  int streams = 1;
};

// Each target's, compiled as its kernels are.
struct PeakKernel {
  // Independent chains of multiply-adds in registers; returns the number of floating-point operations done.
  double (*multiply_add)(std::int64_t rounds);
  // Reads count floats (a multiple of read_granularity) `passes` times; returns something that depends on all of them.
  float (*read)(const float* data, std::size_t count, std::int64_t passes, ReadOrder order);
};
constexpr std::size_t read_granularity = 4096;  // floats: one block of 4 KB for each of four streams

// Null for a target without vectors (reference).
const PeakKernel* peak_kernel(Isa isa);

// Products of 8-bit integers, summed in 32 bits; returns the number of operations done (a multiply-add counts two).
struct PeakLoop {
  const char* name;  // "avx512_vnni", for people
  double (*run)(std::int64_t rounds);
};

// Where there is none on this CPU: a null `run`. A target takes the widest of those that its machines have.
PeakLoop int8_peak(Isa isa);

// AMX tiles, after asking the operating system once for the permission to use them. Null `run` where CPU or system say no.
PeakLoop amx_bf16_peak();
PeakLoop amx_int8_peak();

}  // namespace polyhead::bench
