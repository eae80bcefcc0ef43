#include "bench_measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

namespace polyhead::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Call = std::function<void()>;

constexpr double shortest_sample = 20e-6;
constexpr double blocks_wanted = 25;
constexpr double most_samples = 100000;  // a run of an hour must not fill the memory
constexpr auto pause_between = std::chrono::milliseconds(4);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Of an ascending list: 0 the smallest, 0.5 the median, 1 the largest.
double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

class Contender {
 public:
  Contender(const Call& call, double min_time) : call_(call), block_time_(min_time / blocks_wanted) {
    call_();
    const Clock::time_point first = Clock::now();
    call_();
    const double sample = std::max(shortest_sample, min_time / most_samples);
    calls_a_sample_ = std::max<std::int64_t>(1, std::llround(sample / std::max(seconds_since(first), 1e-9)));
  }

  // False when it was told to stop.
  bool block(bool warm, const std::function<bool()>& stop) {
    if (warm) call_();
    const std::size_t first_sample = samples_.size();
    const double cpu_before = processor_seconds();
    const Clock::time_point start = Clock::now();
    Clock::time_point now = start;
    do {
      const Clock::time_point sample_start = now;
      for (std::int64_t call = 0; call < calls_a_sample_; ++call) call_();
      now = Clock::now();
      samples_.push_back(std::chrono::duration<double>(now - sample_start).count() / static_cast<double>(calls_a_sample_));
      if (stop && stop()) return false;
    } while (std::chrono::duration<double>(now - start).count() < block_time_);
    time_ += std::chrono::duration<double>(now - start).count();
    cpu_ += processor_seconds() - cpu_before;
    block_medians_.push_back(median({samples_.begin() + static_cast<std::ptrdiff_t>(first_sample), samples_.end()}));
    return true;
  }

  double time() const { return time_; }

  Timing timing(const Contender& first) {
    Timing result;
    result.calls = static_cast<std::int64_t>(samples_.size()) * calls_a_sample_;
    result.cpu = cpu_ / static_cast<double>(result.calls);
    std::vector<double> sorted = samples_;
    std::sort(sorted.begin(), sorted.end());
    result.minimum = sorted.front();
    result.median = quantile(sorted, 0.5);
    result.spread = (quantile(sorted, 0.75) - quantile(sorted, 0.25)) / 2 / result.median;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < block_medians_.size(); ++round)
      ratios.push_back(block_medians_[round] / first.block_medians_[round]);
    std::sort(ratios.begin(), ratios.end());
    result.ratio = quantile(ratios, 0.5);
    // How many of n values lie below the median is binomial: n/2 and 1.96 times half of the square root of n.
    const auto count = static_cast<double>(ratios.size());
    const double reach = 0.98 * std::sqrt(count);
    result.ratio_low = ratios[static_cast<std::size_t>(std::max(0.0, std::floor(count / 2 - reach)))];
    result.ratio_high = ratios[static_cast<std::size_t>(std::min(count, std::ceil(count / 2 + reach)) - 1)];
    return result;
  }

 private:
  const Call& call_;
  double block_time_;
  std::int64_t calls_a_sample_ = 1;
  double time_ = 0, cpu_ = 0;
  std::vector<double> samples_, block_medians_;
};

}  // namespace

std::vector<Timing> measure(const std::vector<Call>& calls, const MeasureOptions& options) {
  std::vector<Contender> contenders;
  for (const Call& call : calls) contenders.emplace_back(call, options.min_time);
  const bool several = contenders.size() > 1;
  const std::size_t least_rounds = several ? 5 : 3;
  const double wanted = options.min_time * static_cast<double>(contenders.size());
  const Clock::time_point start = Clock::now();
  for (std::size_t round = 0;; ++round) {
    double least = contenders.front().time(), sum = 0;
    for (const Contender& contender : contenders) {
      least = std::min(least, contender.time());
      sum += std::min(contender.time(), options.min_time);
    }
    const double elapsed = seconds_since(start);
    if (round >= least_rounds && (least >= options.min_time || elapsed >= 2 * wanted)) break;
    if (options.progress) options.progress(std::min(1.0, wanted > 0 ? std::max(sum / wanted, elapsed / 2 / wanted) : 1.0));
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      if (options.pause) std::this_thread::sleep_for(pause_between);
      if (!contenders[(round + i) % contenders.size()].block(several, options.stop)) return {};
    }
  }
  std::vector<Timing> timings;
  for (Contender& contender : contenders) timings.push_back(contender.timing(contenders.front()));
  return timings;
}

}  // namespace polyhead::cli
