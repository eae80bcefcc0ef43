#include "support/roofline.hpp"

#include <algorithm>

namespace polyhead::bench {
namespace {

// A bound whose time is this much shorter than the other's cannot come to apply by a change of clocks.
constexpr double clear_margin = 2.0;

}  // namespace

std::string memory_level(const std::vector<Cache>& caches, double bytes, int threads) {
  int best = 0;
  for (const Cache& cache : caches) {
    if (cache.type == "Instruction") continue;
    const int copies = (std::max(1, threads) + cache.shared_by - 1) / cache.shared_by;
    const bool fits = bytes <= static_cast<double>(cache.bytes) * copies;
    if (fits && (best == 0 || cache.level < best)) best = cache.level;
  }
  return best == 0 ? "DRAM" : "L" + std::to_string(best);
}

std::string Roofline::level_of(const Work& work) const {
  return work.cold ? "DRAM" : memory_level(caches_, work.bytes, work.threads);
}

double Roofline::arithmetic_rate(const Work& work, bool now) {
  double& seen = arithmetic_seen_[{work.arithmetic, work.isa, work.threads}];
  if (now || seen == 0) seen = meter_->arithmetic(work.arithmetic, work.isa, work.threads);
  return seen;
}

double Roofline::read_rate(const Work& work, bool now) {
  const std::string level = level_of(work);
  double& seen = read_seen_[{level, work.isa, work.threads}];
  if (now || seen == 0) seen = meter_->read(level, work.cold ? 0 : work.bytes, work.isa, work.threads);
  return seen;
}

Bound Roofline::bound(const Work& work) {
  Bound bound;
  double operation_rate = arithmetic_rate(work, false), byte_rate = read_rate(work, false);
  // Without a peak of its arithmetic a bound by reading alone could be far from what applies.
  if (byte_rate <= 0 || (work.operations > 0 && operation_rate <= 0)) return bound;
  const auto arithmetic_time = [&] { return work.operations > 0 ? work.operations / operation_rate : 0.0; };
  const auto read_time = [&] { return work.bytes / byte_rate; };
  if (arithmetic_time() * clear_margin >= read_time()) operation_rate = arithmetic_rate(work, true);
  if (read_time() * clear_margin >= arithmetic_time()) byte_rate = read_rate(work, true);
  if (arithmetic_time() >= read_time()) {
    bound.kind = Bound::Kind::arithmetic;
    bound.name = meter_->arithmetic_name(work.arithmetic, work.isa);
    bound.rate = operation_rate;
  } else {
    bound.kind = Bound::Kind::read;
    bound.name = "read " + level_of(work);
    bound.rate = byte_rate;
  }
  return bound;
}

Bound Roofline::bound_after(const Work& work, const Bound& before) {
  Bound bound = before;
  if (bound.kind == Bound::Kind::arithmetic) bound.rate = std::max(bound.rate, arithmetic_rate(work, true));
  if (bound.kind == Bound::Kind::read) bound.rate = std::max(bound.rate, read_rate(work, true));
  return bound;
}

}  // namespace polyhead::bench
