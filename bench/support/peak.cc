// Compiled once for each instruction set, as the kernels are.
#include "support/peak.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace polyhead::bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Floats = hn::Vec<Tag>;

constexpr std::size_t line_floats = 16;                     // one cache line
constexpr std::size_t block_floats = read_granularity / 4;  // of one stream among several

// Twelve chains cover the latency of two multiply-add units (8 to 10 in flight) and fit in sixteen registers.
double MultiplyAdd(std::int64_t rounds) {
  const Tag d;
  const auto factor = hn::Set(d, 0.999f);
  const auto addend = hn::Set(d, 0.001f);
  // Different starts: equal chains would be one chain to the compiler.
  const auto start = [d](int chain) HWY_ATTR { return hn::Set(d, 1.0f + static_cast<float>(chain)); };
  auto a = start(0), b = start(1), c = start(2), e = start(3), f = start(4), g = start(5), h = start(6), i = start(7),
       j = start(8), k = start(9), l = start(10), m = start(11);
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, factor, addend);
    b = hn::MulAdd(b, factor, addend);
    c = hn::MulAdd(c, factor, addend);
    e = hn::MulAdd(e, factor, addend);
    f = hn::MulAdd(f, factor, addend);
    g = hn::MulAdd(g, factor, addend);
    h = hn::MulAdd(h, factor, addend);
    i = hn::MulAdd(i, factor, addend);
    j = hn::MulAdd(j, factor, addend);
    k = hn::MulAdd(k, factor, addend);
    l = hn::MulAdd(l, factor, addend);
    m = hn::MulAdd(m, factor, addend);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i))),
                           hn::Add(hn::Add(j, k), hn::Add(l, m)));
  volatile float keep = hn::GetLane(sum);
  (void)keep;
  return static_cast<double>(rounds) * 12.0 * 2.0 * static_cast<double>(hn::Lanes(d));
}

// Loads are what is measured, so what is done with them must not limit: bitwise or takes one cycle everywhere, and has no slow
// operands.
template <bool kAskAhead>
HWY_INLINE void ReadRun(Tag d, const float* data, std::size_t count, const float* ahead, Floats& a, Floats& b, Floats& c,
                        Floats& e) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < count; i += 8 * lanes) {
    if (kAskAhead) {
      for (std::size_t line = 0; line < 8 * lanes; line += line_floats) hwy::Prefetch(ahead + i + line);
    }
    const float* const at = data + i;
    a = hn::Or(a, hn::LoadU(d, at));
    b = hn::Or(b, hn::LoadU(d, at + lanes));
    c = hn::Or(c, hn::LoadU(d, at + 2 * lanes));
    e = hn::Or(e, hn::LoadU(d, at + 3 * lanes));
    a = hn::Or(a, hn::LoadU(d, at + 4 * lanes));
    b = hn::Or(b, hn::LoadU(d, at + 5 * lanes));
    c = hn::Or(c, hn::LoadU(d, at + 6 * lanes));
    e = hn::Or(e, hn::LoadU(d, at + 7 * lanes));
  }
}

float Read(const float* data, std::size_t count, std::int64_t passes, ReadOrder order) {
  const Tag d;
  Floats a = hn::Zero(d), b = a, c = a, e = a;
  const std::size_t ahead = order.ahead_bytes / sizeof(float), streams = static_cast<std::size_t>(order.streams);
  const std::size_t stream_floats = count / streams;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    if (order.streams > 1) {
      for (std::size_t block = 0; block < stream_floats; block += block_floats) {
        for (std::size_t stream = 0; stream < streams; ++stream) {
          const float* const next =
              stream + 1 < streams ? data + (stream + 1) * stream_floats + block : data + block + block_floats;
          ReadRun<true>(d, data + stream * stream_floats + block, block_floats, next, a, b, c, e);
        }
      }
    } else if (ahead > 0) {
      ReadRun<true>(d, data, count, data + ahead, a, b, c, e);
    } else {
      ReadRun<false>(d, data, count, data, a, b, c, e);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Or(hn::Or(a, b), hn::Or(c, e))));
}

}  // namespace

extern const PeakKernel peak;
const PeakKernel peak = {MultiplyAdd, Read};

}  // namespace HWY_NAMESPACE
}  // namespace polyhead::bench
HWY_AFTER_NAMESPACE();
