// Which bound applies, what a machine's files say about its caches, and that the real measurements are of this world.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/context.hpp"
#include "support/machine.hpp"
#include "support/roofline.hpp"

namespace polyhead::bench {
namespace {

// ---- cache sizes

TEST(CacheSize, ReadsWhatSysfsWrites) {
  EXPECT_EQ(parse_cache_size("32K\n"), 32 << 10);
  EXPECT_EQ(parse_cache_size("1536K"), 1536 << 10);
  EXPECT_EQ(parse_cache_size("32M\n"), 32 << 20);
  EXPECT_EQ(parse_cache_size("1G"), 1 << 30);
  EXPECT_EQ(parse_cache_size("49152"), 49152);
  EXPECT_EQ(parse_cache_size(" 48K \n"), 48 << 10);
}

TEST(CacheSize, TakesNothingElse) {
  for (const char* text :
       {"", "\n", "K", "-32K", "3.5M", "32KB", "0x20K", "32 K", "many", "99999999999999999999K", "9999999G"}) {
    EXPECT_EQ(parse_cache_size(text), 0) << "'" << text << "'";
  }
}

using Files = std::map<std::string, std::string>;

platform::FileReader reader_of(Files files) {
  return [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

void add_cache(Files& files, int index, const char* level, const char* type, const char* size, const char* shared) {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
  const auto add = [&](const char* name, const char* text) {
    if (text != nullptr) files[folder + name] = std::string(text) + "\n";
  };
  add("level", level);
  add("type", type);
  add("size", size);
  add("shared_cpu_list", shared);
}

TEST(CachesFromSysfs, AnOrdinaryMachine) {
  Files files;
  add_cache(files, 0, "1", "Data", "48K", "0,32");
  add_cache(files, 1, "1", "Instruction", "32K", "0,32");
  add_cache(files, 2, "2", "Unified", "2048K", "0,32");
  add_cache(files, 3, "3", "Unified", "107520K", "0-63");
  const std::vector<Cache> caches = caches_from_sysfs(reader_of(files));
  ASSERT_EQ(caches.size(), 4u);
  EXPECT_EQ(caches[0].type, "Data");
  EXPECT_EQ(caches[0].bytes, 48 << 10);
  EXPECT_EQ(caches[0].shared_by, 2);
  EXPECT_EQ(caches[3].level, 3);
  EXPECT_EQ(caches[3].bytes, 105 << 20);
  EXPECT_EQ(caches[3].shared_by, 64);
}

TEST(CachesFromSysfs, OddAndMissingFiles) {
  EXPECT_TRUE(caches_from_sysfs(reader_of({})).empty());

  Files files;
  add_cache(files, 0, "1", "Data", nullptr, "0");        // no size
  add_cache(files, 1, nullptr, "Data", "32K", "0");      // no level
  add_cache(files, 2, "zero", "Unified", "512K", "0");   // no number
  add_cache(files, 3, "2", "Victim", "512K", "0");       // a type that nobody knows
  add_cache(files, 4, "2", "Unified", "0K", "0");        // empty
  add_cache(files, 5, "2", "Unified", "512K", nullptr);  // shared by whom? by nobody
  add_cache(files, 6, "3", "Unified", "8M", "7-3");      // a list that is none
  add_cache(files, 8, "4", "Unified", "64M", "0-7");     // behind a gap
  const std::vector<Cache> caches = caches_from_sysfs(reader_of(files));
  ASSERT_EQ(caches.size(), 2u);
  EXPECT_EQ(caches[0].level, 2);
  EXPECT_EQ(caches[0].shared_by, 1);
  EXPECT_EQ(caches[1].level, 3);
  EXPECT_EQ(caches[1].shared_by, 1);
}

TEST(Governor, AgreesDiffersOrIsUnknown) {
  const auto path = [](int cpu) { return "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor"; };
  EXPECT_EQ(frequency_governor(reader_of({}), {0, 1}), "unknown");
  EXPECT_EQ(frequency_governor(reader_of({{path(0), "\n"}}), {0}), "unknown");
  EXPECT_EQ(frequency_governor(reader_of({{path(0), "performance\n"}, {path(1), "performance\n"}}), {0, 1}), "performance");
  EXPECT_EQ(frequency_governor(reader_of({{path(0), "schedutil\n"}, {path(1), "performance\n"}}), {0, 1}),
            "performance,schedutil");
  EXPECT_EQ(frequency_governor(reader_of({{path(3), "powersave\n"}}), {0, 1}), "unknown");  // not ours
}

TEST(AvailableMemory, ReadsMeminfo) {
  const auto memory = [](const char* text) { return available_memory(reader_of({{"/proc/meminfo", text}})); };
  EXPECT_EQ(memory("MemTotal:       24684388 kB\nMemAvailable:   22545748 kB\n"), std::int64_t{22545748} << 10);
  EXPECT_EQ(memory("MemTotal: 1 kB\n"), 0);
  EXPECT_EQ(memory("MemAvailable: lots kB\n"), 0);
  EXPECT_EQ(memory("MemAvailable: 12\n"), 0);
  EXPECT_EQ(available_memory(reader_of({})), 0);
}

// ---- levels

// Two cores share each L3.
const std::vector<Cache> example = {
    {"Data", 1, 32 << 10, 1}, {"Instruction", 1, 64 << 10, 1}, {"Unified", 2, 512 << 10, 1}, {"Unified", 3, 32 << 20, 2}};

TEST(MemoryLevel, IsTheSmallestThatFits) {
  EXPECT_EQ(memory_level(example, 32 << 10, 1), "L1");
  EXPECT_EQ(memory_level(example, (32 << 10) + 1, 1), "L2");  // the cache of instructions holds none of it
  EXPECT_EQ(memory_level(example, 512 << 10, 1), "L2");
  EXPECT_EQ(memory_level(example, 33 << 19, 1), "L3");
  EXPECT_EQ(memory_level(example, 33 << 20, 1), "DRAM");
  EXPECT_EQ(memory_level({}, 1, 1), "DRAM");
}

TEST(MemoryLevel, CountsPrivateCachesOncePerThread) {
  EXPECT_EQ(memory_level(example, 64 << 10, 2), "L1");
  EXPECT_EQ(memory_level(example, 1 << 20, 2), "L2");
  EXPECT_EQ(memory_level(example, 33 << 20, 2), "DRAM");  // both threads on one L3
  EXPECT_EQ(memory_level(example, 33 << 20, 3), "L3");    // three need two
}

// ---- bounds

// Rates that a test sets, and what was asked for.
struct Machine {
  double operations = 100, bytes = 10;  // 10^9 a second
  std::vector<std::string> asked;
};

class ForgedMeter final : public PeakMeter {
 public:
  explicit ForgedMeter(Machine& machine) : machine_(machine) {}
  bool available(Arithmetic, Isa) override { return machine_.operations > 0; }
  double arithmetic(Arithmetic, Isa, int) override {
    machine_.asked.push_back("arithmetic");
    return machine_.operations;
  }
  std::string arithmetic_name(Arithmetic, Isa isa) override { return std::string("fma ") + name(isa); }
  double read(const std::string& level, double bytes, Isa, int) override {
    machine_.asked.push_back(level + " " + std::to_string(static_cast<std::int64_t>(bytes)));
    return machine_.bytes;
  }
  std::string best_way(const std::string&, Isa, int) override { return "plain"; }

 private:
  Machine& machine_;
};

Work work_of(double operations, double bytes) {
  Work work;
  work.operations = operations;
  work.bytes = bytes;
  work.isa = Isa::avx2;
  return work;
}

TEST(Bound, IsTheSlowerOfTheTwo) {
  Machine machine;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  // 100 operations and 10 bytes take the same time: ten operations a byte is the ridge.
  const Bound compute = roofline.bound(work_of(11e6, 1e6));
  EXPECT_EQ(compute.kind, Bound::Kind::arithmetic);
  EXPECT_EQ(compute.label(), "bound: fma avx2");
  EXPECT_STREQ(compute.unit(), "GFLOP/s");
  EXPECT_EQ(compute.rate, 100);
  const Bound reading = roofline.bound(work_of(9e6, 1e6));
  EXPECT_EQ(reading.kind, Bound::Kind::read);
  EXPECT_EQ(reading.label(), "bound: read L3");
  EXPECT_STREQ(reading.unit(), "GB/s");
  EXPECT_EQ(reading.rate, 10);
}

TEST(Bound, WithoutArithmeticItIsReading) {
  Machine machine;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  EXPECT_EQ(roofline.bound(work_of(0, 1000)).label(), "bound: read L1");
}

TEST(Bound, ColdOperandsComeFromMemory) {
  Machine machine;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  Work work = work_of(0, 1000);
  work.cold = true;
  EXPECT_EQ(roofline.bound(work).label(), "bound: read DRAM");
  EXPECT_EQ(machine.asked.back(), "DRAM 0");  // not 1,000 bytes, which would be read from L1
}

TEST(Bound, WithoutAPeakThereIsNone) {
  Machine machine;
  machine.operations = 0;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  const Work work = work_of(1e6, 1);
  const Bound bound = roofline.bound(work);
  EXPECT_FALSE(bound.exists());
  EXPECT_EQ(bound.label(), "");
  EXPECT_FALSE(roofline.bound_after(work, bound).exists());
}

TEST(Bound, ShareOfTimeAndRate) {
  Bound bound;
  bound.kind = Bound::Kind::arithmetic;
  bound.rate = 100;
  EXPECT_DOUBLE_EQ(bound.share(work_of(1e9, 5), 0.02), 0.5);
  bound.kind = Bound::Kind::read;
  EXPECT_DOUBLE_EQ(bound.share(work_of(5, 1e9), 0.04), 0.25);
}

TEST(Bound, FollowsTheClock) {
  Machine machine;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  const Work work = work_of(1e9, 1e3);
  EXPECT_EQ(roofline.bound(work).rate, 100);
  machine.operations = 80;  // the clock goes down: what was measured then is not believed now
  const Bound before = roofline.bound(work);
  EXPECT_EQ(before.rate, 80);
  machine.operations = 90;
  EXPECT_EQ(roofline.bound_after(work, before).rate, 90);
  machine.operations = 70;
  EXPECT_EQ(roofline.bound_after(work, before).rate, 80) << "the larger of before and after";
}

TEST(Bound, TheOtherIsMeasuredAgainOnlyWhereItMightApply) {
  Machine machine;
  Roofline roofline(std::make_unique<ForgedMeter>(machine), example);
  const Work clear = work_of(1e9, 1e3);
  roofline.bound(clear);
  machine.asked.clear();
  const Bound bound = roofline.bound(clear);
  EXPECT_EQ(machine.asked, std::vector<std::string>{"arithmetic"});
  machine.asked.clear();
  roofline.bound_after(clear, bound);
  EXPECT_EQ(machine.asked, std::vector<std::string>{"arithmetic"});

  const Work close = work_of(9e6, 1e6);
  roofline.bound(close);
  machine.asked.clear();
  machine.bytes = 20;  // caches that have become faster turn the bound round
  EXPECT_EQ(roofline.bound(close).kind, Bound::Kind::arithmetic);
  EXPECT_EQ(machine.asked, (std::vector<std::string>{"arithmetic", "L3 1000000"}));
}

// ---- this machine

TEST(ThisMachine, PeaksAreOfThisWorld) {
  const std::unique_ptr<PeakMeter> meter = make_peak_meter();
  for (const Isa isa : available_isas()) {
    const bool vectors = isa != Isa::reference;
    EXPECT_EQ(meter->available(Arithmetic::fma_f32, isa), vectors);
    const double rate = meter->arithmetic(Arithmetic::fma_f32, isa, 1);
    EXPECT_EQ(rate > 0.1, vectors) << name(isa) << ": " << rate;
    EXPECT_LT(rate, 2000) << name(isa);  // 4 vectors of 16 lanes a cycle at 10 GHz would be 1,280
    for (const Arithmetic kind : {Arithmetic::dot_int8, Arithmetic::tile_bf16, Arithmetic::tile_int8}) {
      // Where the instruction is not there, nothing may be executed; where it is, it must do better than scalar code.
      const double other = meter->arithmetic(kind, isa, 1);
      EXPECT_EQ(other > 1, meter->available(kind, isa)) << name(isa) << ": " << other;
    }
  }
  const double cached = meter->read("L1", 16 << 10, default_isa(), 1);
  if (default_isa() == Isa::reference) return;
  EXPECT_NE(meter->best_way("L1", default_isa(), 1).find("pages, "), std::string::npos);
  EXPECT_EQ(meter->best_way("L2", default_isa(), 1), "");
  EXPECT_GT(cached, 0.5);
  EXPECT_LT(cached, 5000);
}

TEST(ThisMachine, ContextSaysWhereItComesFrom) {
  std::map<std::string, std::string> context;
  for (const auto& [key, value] : context_entries(default_isa())) {
    EXPECT_FALSE(value.empty()) << key;
    EXPECT_TRUE(context.emplace(key, value).second) << key << " is there twice";
  }
  for (const char* key : {"cpu", "isa", "governor", "polyhead_version", "commit", "compiler", "threads_allowed", "highway"}) {
    EXPECT_EQ(context.count(key), 1u) << key;
  }
  EXPECT_EQ(context["isa"], name(default_isa()));
  const GoogleContext google = google_context();
  EXPECT_GE(google.num_cpus, 1);
  EXPECT_EQ(google.date.size(), std::string("2026-01-01T00:00:00+00:00").size());
}

}  // namespace
}  // namespace polyhead::bench
