// The machine's own PeakMeter: peak.hpp's loops on all threads, timed in short bursts.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "support/pages.hpp"
#include "support/peak.hpp"
#include "support/roofline.hpp"
#include "support/together.hpp"

namespace polyhead::bench {
namespace {

constexpr double burst_seconds = 0.5e-3;
constexpr std::size_t bursts = 8;
// Sets that take longer to read are read in pieces, one a burst, round and round: a neighbour's traffic comes in waves.
constexpr std::size_t piece_bytes = std::size_t{4} << 20;
constexpr int piece_bursts = 24;
constexpr std::size_t granularity_bytes = read_granularity * sizeof(float);

struct ReadWay {
  PageSize pages;
  ReadOrder order;
};

constexpr std::array<ReadOrder, 7> read_orders = {{{0, 1}, {256, 1}, {512, 1}, {2048, 1}, {6144, 1}, {0, 2}, {0, 4}}};

class MachineMeter final : public PeakMeter {
 public:
  bool available(Arithmetic kind, Isa isa) override { return loop_of(kind, isa).run != nullptr; }

  double arithmetic(Arithmetic kind, Isa isa, int threads) override {
    const PeakLoop loop = loop_of(kind, isa);
    if (loop.run == nullptr) return 0;
    const auto nothing = [](int) {};
    std::int64_t rounds = 2000;
    double best = 0;
    for (std::size_t burst = 0; burst < bursts;) {
      std::vector<double> operations(static_cast<std::size_t>(threads));
      const double seconds = seconds_together(
          threads, nothing, [&](int thread) { operations[static_cast<std::size_t>(thread)] = loop.run(rounds); });
      if (seconds < burst_seconds / 2) {  // still looking for the number of rounds
        rounds = static_cast<std::int64_t>(static_cast<double>(rounds) * std::clamp(burst_seconds / seconds, 1.5, 50.0));
        continue;
      }
      double sum = 0;
      for (const double count : operations) sum += count;
      best = std::max(best, sum * 1e-9 / seconds);
      ++burst;
    }
    return best;
  }

  std::string arithmetic_name(Arithmetic kind, Isa isa) override {
    switch (kind) {
      case Arithmetic::fma_f32:
        return std::string("fma ") + name(isa);
      case Arithmetic::dot_int8:
        return std::string("dot int8 ") + loop_of(kind, isa).name;
      case Arithmetic::tile_bf16:
        return "tile bf16 amx";
      case Arithmetic::tile_int8:
        return "tile int8 amx";
    }
    return "unknown";
  }

  double read(const std::string& level, double bytes, Isa isa, int threads) override {
    const PeakKernel* const kernel = peak_kernel(isa);
    if (kernel == nullptr) return 0;
    const std::size_t share = share_of(level, bytes, threads);
    auto& way = ways_[{level, isa, threads}];
    if (!way) {
      double best = 0;
      for (const PageSize pages : {PageSize::small_4k, PageSize::huge_2m}) {
        for (const ReadOrder& order : read_orders) {
          const double rate = measure(*kernel, {pages, order}, level, share, threads).median;
          if (rate <= best) continue;
          best = rate;
          way = ReadWay{pages, order};
        }
      }
    }
    return measure(*kernel, *way, level, share, threads).best;
  }

  std::string best_way(const std::string& level, Isa isa, int threads) override {
    const auto found = ways_.find({level, isa, threads});
    if (found == ways_.end() || !found->second) return "";
    const ReadWay& way = *found->second;
    const std::string pages = way.pages == PageSize::huge_2m ? "2M pages, " : "4K pages, ";
    if (way.order.streams > 1) return pages + std::to_string(way.order.streams) + " streams";
    return pages + (way.order.ahead_bytes == 0 ? "plain" : "prefetch " + std::to_string(way.order.ahead_bytes) + " B ahead");
  }

 private:
  static PeakLoop loop_of(Arithmetic kind, Isa isa) {
    switch (kind) {
      case Arithmetic::fma_f32: {
        const PeakKernel* const kernel = peak_kernel(isa);
        return {"fma", kernel == nullptr ? nullptr : kernel->multiply_add};
      }
      case Arithmetic::dot_int8:
        return int8_peak(isa);
      case Arithmetic::tile_bf16:
        return amx_bf16_peak();
      case Arithmetic::tile_int8:
        return amx_int8_peak();
    }
    return {"unknown", nullptr};
  }

  // Far beyond the caches, within what the machine can spare for both kinds of pages and the operands beside them.
  static double dram_bytes() {
    static const double bytes = [] {
      double caches = 0;
      for (const Cache& cache : machine_caches()) caches = std::max(caches, static_cast<double>(cache.bytes));
      const double memory = static_cast<double>(available_memory(platform::read_file));
      const double wanted = std::clamp(4 * caches, 256e6, 1024e6);
      return memory > 0 ? std::min(wanted, memory / 8) : wanted;
    }();
    return bytes;
  }

  // Bytes of one thread. What is said to come from DRAM is read in full only up to a size that certainly does.
  static std::size_t share_of(const std::string& level, double bytes, int threads) {
    double set = bytes > 0 ? bytes : dram_bytes();
    if (level == "DRAM") set = std::min(set, dram_bytes());
    const double pieces = std::floor(set / threads / static_cast<double>(granularity_bytes));
    return static_cast<std::size_t>(std::max(1.0, pieces)) * granularity_bytes;
  }

  struct Rates {
    double best = 0, median = 0;  // of the bursts
  };

  Rates measure(const PeakKernel& kernel, const ReadWay& way, const std::string& level, std::size_t share, int threads) {
    PagedMemory& memory = memory_[way.pages == PageSize::huge_2m ? 1 : 0];
    const std::size_t needed = share * static_cast<std::size_t>(threads);
    if (memory.size() < needed) {
      memory = PagedMemory();  // first, so that there are never two of them
      memory = PagedMemory(needed, way.pages);
    }
    const auto read = [&](int thread, std::size_t begin, std::size_t bytes, std::int64_t passes) {
      const std::size_t at = static_cast<std::size_t>(thread) * share + begin;
      volatile float keep = kernel.read(memory.data() + at / sizeof(float), bytes / sizeof(float), passes, way.order);
      (void)keep;
    };
    // The caches hold each thread's share as far as they can, as for a computation that is repeated.
    const auto warm = [&](int thread) { read(thread, 0, share, 1); };
    const auto nothing = [](int) {};
    std::vector<double> rates;
    const auto keep_rate = [&](std::size_t bytes, double seconds) {
      rates.push_back(static_cast<double>(bytes) * threads * 1e-9 / seconds);
    };
    const std::size_t pieces = std::max<std::size_t>(1, share / piece_bytes);
    if (pieces == 1) {
      std::int64_t passes = 1;
      while (rates.size() < bursts) {
        const double seconds = seconds_together(threads, warm, [&](int thread) { read(thread, 0, share, passes); });
        if (seconds < burst_seconds / 2) {
          passes = static_cast<std::int64_t>(static_cast<double>(passes) * std::clamp(burst_seconds / seconds, 2.0, 50.0));
        } else {
          keep_rate(share * static_cast<std::size_t>(passes), seconds);
        }
      }
    } else {
      if (level != "DRAM") seconds_together(threads, nothing, warm);
      for (int burst = 0; burst < piece_bursts; ++burst) {
        const std::size_t begin = next_piece_++ % pieces * piece_bytes;
        keep_rate(piece_bytes, seconds_together(threads, nothing, [&](int thread) { read(thread, begin, piece_bytes, 1); }));
      }
    }
    std::sort(rates.begin(), rates.end());
    return {rates.back(), rates[rates.size() / 2]};
  }

  std::size_t next_piece_ = 0;
  std::map<std::tuple<std::string, Isa, int>, std::optional<ReadWay>> ways_;
  PagedMemory memory_[2];
};

}  // namespace

std::unique_ptr<PeakMeter> make_peak_meter() {
  return std::make_unique<MachineMeter>();
}

}  // namespace polyhead::bench
