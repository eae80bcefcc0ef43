// What bounds a computation on this machine, measured in the same run: its arithmetic, or reading its operands.
//
// Method
// - Arithmetic: independent chains of the instruction that the computation is made of (peak.hpp), one set of chains a thread,
//   all threads started together; operations of all of them by the time from the first start to the last end.
// - Reading: each thread reads its own contiguous share of a working set as large as the computation's operands, over and over.
//   The first time a level of memory is met, every way of reading it is tried: 4 KB and 2 MB pages (by madvise), without
//   prefetch, with prefetch several distances ahead, and two or four streams that prefetch each other; the best is then kept.
//   Memory is written by the measuring thread first, so on a machine with several nodes of memory it lies in that thread's
//   node.
// - Level: the smallest cache that the operands fit in. Caches of one core count once for each thread, shared ones once for
//   each group of CPUs that the threads must fill. What fits in none comes from DRAM, and so does everything of a cold case.
// - The bound is the slower of the two: operations / arithmetic rate against bytes / reading rate. Bytes are the operands once:
//   what a computation reads again is its own affair, so no computation can beat its bound except by the clock.
// - Clocks and neighbours move by 10 % and more within seconds. So nothing is measured at the start and believed later: the
// rate
//   that applies is measured again right before and right after each timed case, each time the best of several bursts of about
//   half a millisecond (large sets are read in pieces, one a burst), and the larger of the two counts: a share never flatters.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "polyhead/runtime.hpp"
#include "support/machine.hpp"

namespace polyhead::bench {

// The instruction that does a computation's arithmetic.
enum class Arithmetic : std::uint8_t {
  fma_f32,    // multiply-adds of the instruction set's vectors
  dot_int8,   // AVX512-VNNI, AVX-VNNI or ARM's i8mm
  tile_bf16,  // AMX
  tile_int8,
};

// One call of a computation.
struct Work {
  double operations = 0;  // a multiply-add counts two; 0: no arithmetic worth a bound
  double bytes = 0;       // operands and results, each once
  Isa isa = Isa::reference;
  int threads = 1;
  bool cold = false;  // the operands are not in any cache
  Arithmetic arithmetic = Arithmetic::fma_f32;
};

struct Bound {
  enum class Kind : std::uint8_t { none, arithmetic, read };
  Kind kind = Kind::none;  // none: the instruction set has no peak that we measure (reference)
  std::string name;        // "fma avx2", "read L2"
  double rate = 0;         // 10^9 operations or bytes a second

  bool exists() const { return kind != Kind::none; }
  const char* unit() const { return kind == Kind::arithmetic ? "GFLOP/s" : "GB/s"; }  // of the rate, and the counter it bounds
  double amount(const Work& work) const { return kind == Kind::arithmetic ? work.operations : work.bytes; }
  // Of the bound's rate, for a call that takes this long; 1 is the bound itself.
  double share(const Work& work, double seconds) const { return rate > 0 ? amount(work) * 1e-9 / seconds / rate : 0; }
  std::string label() const { return exists() ? "bound: " + name : ""; }
};

// Where bytes come from: "L1", "L2", ... or "DRAM".
std::string memory_level(const std::vector<Cache>& caches, double bytes, int threads);

// Measures rates, in 10^9 a second. An interface, so that the choice of bounds is tested without a machine.
class PeakMeter {
 public:
  virtual ~PeakMeter() = default;
  // Whether CPU and operating system have the instruction.
  virtual bool available(Arithmetic kind, Isa isa) = 0;
  // 0 where they don't.
  virtual double arithmetic(Arithmetic kind, Isa isa, int threads) = 0;
  // What does it, for the bound's name: "fma avx2", "tile bf16 amx".
  virtual std::string arithmetic_name(Arithmetic kind, Isa isa) = 0;
  // `bytes`: the working set of all threads together.
  virtual double read(const std::string& level, double bytes, Isa isa, int threads) = 0;
  // The way of reading that has been found best there, for people: "2M pages, 4 streams". Empty before the first read.
  virtual std::string best_way(const std::string& level, Isa isa, int threads) = 0;
};

// This machine's, as described above.
std::unique_ptr<PeakMeter> make_peak_meter();

// Not for several threads at once.
class Roofline {
 public:
  Roofline() : Roofline(make_peak_meter(), machine_caches()) {}
  Roofline(std::unique_ptr<PeakMeter> meter, std::vector<Cache> caches)
      : meter_(std::move(meter)), caches_(std::move(caches)) {}

  // Right before the work is timed: what bounds it, at the rate measured now.
  Bound bound(const Work& work);
  // Right after: the same bound at the larger of its rate then and its rate now.
  Bound bound_after(const Work& work, const Bound& before);

 private:
  double arithmetic_rate(const Work& work, bool now);
  double read_rate(const Work& work, bool now);
  std::string level_of(const Work& work) const;

  std::unique_ptr<PeakMeter> meter_;
  std::vector<Cache> caches_;
  // Rates seen last, to tell when the other bound is so far off that it need not be measured again.
  std::map<std::tuple<Arithmetic, Isa, int>, double> arithmetic_seen_;
  std::map<std::tuple<std::string, Isa, int>, double> read_seen_;
};

}  // namespace polyhead::bench
