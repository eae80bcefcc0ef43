// polyhead-sweep: looks for sizes at which time jumps.
//
// All sizes of a family are timed in turn, in an order drawn anew for each round, and the least time of each counts: a pause of
// the machine then falls on single rounds and not on single sizes. What looks like a cliff is measured again, the two sizes in
// turn, on operands at other addresses: where these fall in the caches can cost more than the size does.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "support/result_document.hpp"
#include "sweep/cliffs.hpp"
#include "sweep/families.hpp"

namespace {

using namespace polyhead;
using namespace polyhead::bench;
using Clock = std::chrono::steady_clock;

double seconds_of(const BenchCase& bench_case, int runs) {
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < runs; ++run) bench_case.run();
  return std::chrono::duration<double>(Clock::now() - start).count() / runs;
}

// Calls that take long enough together for the clock.
int runs_a_sample(const BenchCase& bench_case) {
  constexpr double sample_seconds = 40e-6;
  return std::clamp(static_cast<int>(sample_seconds / seconds_of(bench_case, 1)), 1, 1000);
}

std::vector<SizedTime> time_family(const SweepFamily& family, const Runtime& runtime, int rounds, unsigned seed) {
  std::vector<std::unique_ptr<BenchCase>> cases;
  std::vector<int> runs;
  std::vector<SizedTime> times;
  std::vector<std::size_t> order;
  for (const std::int64_t size : family.sizes) {
    cases.push_back(family.make(size, runtime));
    const Check check = cases.back()->check();
    if (!check.passed()) throw std::runtime_error(family.name + " " + std::to_string(size) + ": wrong: " + check.describe());
    runs.push_back(runs_a_sample(*cases.back()));
    order.push_back(times.size());
    times.push_back({size, std::numeric_limits<double>::infinity()});
  }
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      seconds_of(*cases[i], 1);  // its operands and code back into the caches
      times[i].seconds = std::min(times[i].seconds, seconds_of(*cases[i], runs[i]));
    }
  }
  return times;
}

// How much longer `size` takes than `other`: the median over a few placements of their operands.
double confirmed_ratio(const SweepFamily& family, const Cliff& cliff, const Runtime& runtime, int rounds) {
  constexpr std::size_t placements = 5;
  std::vector<double> ratios;
  std::vector<std::unique_ptr<BenchCase>> kept;  // so that the next ones come to lie elsewhere
  while (ratios.size() < placements) {
    kept.push_back(family.make(cliff.size, runtime));
    const BenchCase& size = *kept.back();
    kept.push_back(family.make(cliff.other, runtime));
    const BenchCase& other = *kept.back();
    size.run();
    other.run();
    const int runs = runs_a_sample(size);
    double size_seconds = std::numeric_limits<double>::infinity(), other_seconds = size_seconds;
    for (int round = 0; round < rounds; ++round) {
      seconds_of(size, 1);
      size_seconds = std::min(size_seconds, seconds_of(size, runs));
      seconds_of(other, 1);
      other_seconds = std::min(other_seconds, seconds_of(other, runs));
    }
    ratios.push_back(size_seconds / other_seconds);
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[placements / 2];
}

nlohmann::ordered_json entry(const SweepFamily& family, const SizedTime& time, const std::vector<Cliff>& cliffs,
                             const Runtime& runtime) {
  nlohmann::ordered_json entry;
  entry["name"] = "sweep/" + family.name + "/" + std::to_string(time.size) + "/" + name(runtime.isa()) +
                  "/threads:" + std::to_string(runtime.threads()) + "/real_time";
  entry["run_name"] = entry["name"];
  entry["run_type"] = "iteration";
  entry["iterations"] = 1;
  entry["threads"] = 1;
  entry["real_time"] = time.seconds * 1e6;
  entry["cpu_time"] = time.seconds * 1e6;
  entry["time_unit"] = "us";
  entry["label"] = family.unit + " with " + family.description;  // of which the report makes a chart's words
  entry["size"] = time.size;
  for (const Cliff& cliff : cliffs) {
    if (cliff.size == time.size) entry["cliff"] = std::max(cliff.ratio, entry.value("cliff", 0.0));
  }
  return entry;
}

// After every family, so that what was measured stays when the rest is not waited for.
void write(const std::string& path, const nlohmann::ordered_json& document) {
  std::ofstream file(path);
  file << document.dump(1) << '\n';
  file.close();
  if (!file) throw std::runtime_error("--json " + path + ": cannot be written");
}

std::vector<SweepFamily> chosen_families(const std::string& part_of_name) {
  std::vector<SweepFamily> all = sweep_families(), chosen;
  std::string names;
  for (SweepFamily& family : all) {
    names += (names.empty() ? "" : ", ") + family.name;
    if (family.name.find(part_of_name) != std::string::npos) chosen.push_back(std::move(family));
  }
  if (chosen.empty())
    throw std::invalid_argument("--only: no family has '" + part_of_name + "' in its name; there are " + names);
  return chosen;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Looks for sizes at which time jumps: sizes that take longer than larger ones, and steps from one to the next.");
  std::string only, isa, json_path;
  int threads = 1, rounds = 25;
  unsigned seed = 1;
  app.add_option("--only", only, "Families whose names contain this");
  app.add_option("--isa", isa, "Instruction set (polyhead info)");
  app.add_option("--threads", threads, "Threads (1)")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", rounds, "Rounds over all sizes of a family (25)")->check(CLI::Range(1, 10000));
  app.add_option("--seed", seed, "Of the order within a round (1)");
  app.add_option("--json", json_path, "Write all times here, in Google Benchmark's schema");
  app.footer("Exit status: 0 none found, 1 some found, 2 bad usage or a wrong result.");
  try {
    app.parse(argc, argv);
    RuntimeOptions options;
    options.threads = threads;
    if (!isa.empty()) {
      const std::vector<Isa> all = available_isas();
      const auto found = std::find_if(all.begin(), all.end(), [&](Isa each) { return isa == name(each); });
      if (found == all.end()) throw std::invalid_argument("--isa: '" + isa + "' is not available here (polyhead info)");
      options.isa = *found;
    }
    const Runtime runtime(options);
    nlohmann::ordered_json document;
    document["context"] = result_context("polyhead-sweep", runtime.isa());
    document["benchmarks"] = nlohmann::ordered_json::array();
    if (!json_path.empty()) write(json_path, document);  // now, not after minutes, it shows whether that can be done
    std::size_t found = 0;
    for (const SweepFamily& family : chosen_families(only)) {
      const std::vector<SizedTime> times = time_family(family, runtime, rounds, seed);
      std::vector<Cliff> cliffs = find_cliffs(times);
      for (Cliff& cliff : cliffs) cliff.ratio = confirmed_ratio(family, cliff, runtime, rounds);
      cliffs.erase(std::remove_if(cliffs.begin(), cliffs.end(), [](const Cliff& cliff) { return cliff.ratio <= cliff.limit; }),
                   cliffs.end());
      std::printf("%-18s %-26s %3zu sizes, %d to %d: %zu cliff%s\n", family.name.c_str(), family.description.c_str(),
                  times.size(), static_cast<int>(times.front().size), static_cast<int>(times.back().size), cliffs.size(),
                  cliffs.size() == 1 ? "" : "s");
      for (const Cliff& cliff : cliffs) {
        std::printf("  %lld takes %.2f times as long as %lld (limit %.2f): %s\n", static_cast<long long>(cliff.size),
                    cliff.ratio, static_cast<long long>(cliff.other), cliff.limit, cliff.rule.c_str());
      }
      std::fflush(stdout);
      found += cliffs.size();
      for (const SizedTime& time : times) document["benchmarks"].push_back(entry(family, time, cliffs, runtime));
      if (!json_path.empty()) write(json_path, document);
    }
    return found == 0 ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "polyhead-sweep: %s\n", error.what());
    return 2;
  }
}
