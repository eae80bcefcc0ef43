// Compiled once for each instruction set, as the kernels are.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "support/peak.hpp"

HWY_BEFORE_NAMESPACE();
namespace polyhead::bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains cover the latency of two multiply-add units (8 to 10 in flight) and fit in sixteen registers.
double MultiplyAdd(std::int64_t rounds) {
  const hn::ScalableTag<float> d;
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

float Read(const float* data, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    hwy::Prefetch(data + i + 1024);
    a = hn::Add(a, hn::LoadU(d, data + i));
    b = hn::Add(b, hn::LoadU(d, data + i + lanes));
    c = hn::Add(c, hn::LoadU(d, data + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace

extern const PeakKernel peak;
const PeakKernel peak = {MultiplyAdd, Read};

}  // namespace HWY_NAMESPACE
}  // namespace polyhead::bench
HWY_AFTER_NAMESPACE();
