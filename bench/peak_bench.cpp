// The yardsticks: multiply-adds a second from registers, and bytes a second that one core reads.
#include "suite.hpp"
#include "support/aligned_array.hpp"
#include "support/peak.hpp"

namespace polyhead::bench {
namespace {

void multiply_add(benchmark::State& state, const PeakKernel& kernel) {
  double flops = 0;
  for (auto _ : state) flops = kernel.multiply_add(100000);
  rate(state, "GFLOP/s", flops);
}

void read(benchmark::State& state, const PeakKernel& kernel, std::size_t bytes) {
  AlignedArray data(bytes / sizeof(float));
  data.fill_random(1);
  for (auto _ : state) benchmark::DoNotOptimize(kernel.read(data.data(), data.size()));
  rate(state, "GB/s", static_cast<double>(bytes));
}

}  // namespace

void register_peaks(const SuiteOptions& options) {
  for (const Isa isa : options.isas) {
    const PeakKernel* const kernel = peak_kernel(isa);
    if (kernel == nullptr) continue;
    const std::string suffix = std::string("/") + name(isa);
    benchmark::RegisterBenchmark(("peak/multiply_add" + suffix).c_str(), [kernel](benchmark::State& state) {
      multiply_add(state, *kernel);
    })->UseRealTime();
    struct Level {
      const char* name;
      std::size_t bytes;
    };
    for (const Level level :
         {Level{"16KB", 16u << 10}, Level{"256KB", 256u << 10}, Level{"8MB", 8u << 20}, Level{"512MB", 512u << 20}}) {
      benchmark::RegisterBenchmark(("peak/read/" + std::string(level.name) + suffix).c_str(), [kernel,
                                                                                               level](benchmark::State& state) {
        read(state, *kernel, level.bytes);
      })->UseRealTime();
    }
  }
}

}  // namespace polyhead::bench
