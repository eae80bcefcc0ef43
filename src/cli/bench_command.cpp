// polyhead bench
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "dispatch/cpu_features.hpp"
#include "polyhead/version.hpp"
#include "support/attention_case.hpp"
#include "support/workload.hpp"

namespace polyhead::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  RuntimeChoice runtime;
  std::vector<std::string> names;
  std::vector<std::string> shapes;
  std::string causal, window, json_path;
  bool padded = false, list = false;
  double min_time = 0.5;
};

struct Timing {
  double median = 0, minimum = 0, cpu = 0;  // seconds a run: wall, wall, and processor time of all threads
  std::int64_t runs = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Wall time, since work is done on several threads. A sample is as many runs as take 20 us, so that reading the clock does not
// count in short ones.
Timing measure(const bench::AttentionCase& attention, double min_time) {
  attention.run();
  const Clock::time_point first = Clock::now();
  attention.run();
  const int runs_a_sample = std::clamp(static_cast<int>(20e-6 / std::max(seconds_since(first), 1e-9)), 1, 1000);
  std::vector<double> samples;
  const std::clock_t cpu_start = std::clock();
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point sample_start = Clock::now();
    for (int run = 0; run < runs_a_sample; ++run) attention.run();
    samples.push_back(seconds_since(sample_start) / runs_a_sample);
  } while (seconds_since(start) < min_time || samples.size() < 3);
  Timing timing;
  timing.runs = static_cast<std::int64_t>(samples.size()) * runs_a_sample;
  timing.cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC / static_cast<double>(timing.runs);
  std::sort(samples.begin(), samples.end());
  timing.minimum = samples.front();
  timing.median = samples[samples.size() / 2];
  return timing;
}

std::vector<bench::AttentionWorkload> chosen_workloads(const Options& options) {
  std::vector<bench::AttentionWorkload> chosen;
  for (const std::string& wanted : options.names) {
    if (wanted == "all") {
      chosen.insert(chosen.end(), bench::attention_workloads().begin(), bench::attention_workloads().end());
    } else if (const bench::AttentionWorkload* workload = bench::find_attention_workload(wanted)) {
      chosen.push_back(*workload);
    } else {
      throw UsageError(fmt::format("no workload is called '{}'; polyhead bench --list names them", wanted));
    }
  }
  for (const std::string& shape : options.shapes) {
    bench::AttentionWorkload workload;
    try {
      workload = bench::parse_shape(shape);
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
    workload.causal = parse_causal(options.causal);
    const Mask window = parse_window(options.window);
    workload.window_left = window.window_left;
    workload.window_right = window.window_right;
    workload.padded = options.padded;
    chosen.push_back(workload);
  }
  if (options.shapes.empty() && (!options.causal.empty() || !options.window.empty() || options.padded)) {
    throw UsageError("--causal, --window and --key-lengths belong to --shape; a named workload has its own mask");
  }
  if (chosen.empty()) throw UsageError("name a workload (or all), or give --shape; polyhead bench --list shows the names");
  return chosen;
}

void list_workloads() {
  for (const bench::AttentionWorkload& workload : bench::attention_workloads())
    fmt::print("{:<15} {}\n", workload.name, workload.describe());
}

nlohmann::ordered_json json_context(const Runtime& runtime) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  nlohmann::ordered_json context;
  context["date"] = date;
  context["executable"] = "polyhead bench";
  context["num_cpus"] = runtime.threads();
  context["cpu"] = dispatch::cpu_features().brand;
  context["isa"] = name(runtime.isa());
  context["polyhead_version"] = POLYHEAD_VERSION_STRING;
#ifdef NDEBUG
  context["library_build_type"] = "release";
#else
  context["library_build_type"] = "debug";
#endif
  return context;
}

void run_bench(const Options& options) {
  if (options.list) return list_workloads();
  const std::vector<bench::AttentionWorkload> chosen = chosen_workloads(options);
  const Runtime runtime = options.runtime.make();
  nlohmann::ordered_json document;
  document["context"] = json_context(runtime);
  document["benchmarks"] = nlohmann::ordered_json::array();
  fmt::print("{}, {} thread{}\n", name(runtime.isa()), runtime.threads(), runtime.threads() == 1 ? "" : "s");
  fmt::print("{:<15} {:>11} {:>11} {:>9} {:>7} {:>9}  {}\n", "workload", "median ms", "minimum ms", "GFLOP/s", "GB/s", "error",
             "shape");
  std::vector<std::string> wrong;
  for (const bench::AttentionWorkload& workload : chosen) {
    bench::AttentionCase attention(workload, runtime);
    const bench::Check check = attention.check();
    const bool by_shape = bench::find_attention_workload(workload.name) == nullptr;
    const std::string label = by_shape ? "shape" : workload.name;
    nlohmann::ordered_json entry;
    entry["name"] = fmt::format("attention/{}/{}/threads:{}", workload.name, name(runtime.isa()), runtime.threads());
    entry["run_name"] = entry["name"];
    entry["run_type"] = "iteration";
    if (!check.passed()) {
      wrong.push_back(label);
      fmt::print("{:<15} wrong, so not timed: {}  {}\n", label, check.describe(), workload.describe());
      entry["error_occurred"] = true;
      entry["error_message"] = check.describe();
      document["benchmarks"].push_back(entry);
      continue;
    }
    const Timing timing = measure(attention, options.min_time);
    const double gflops = attention.flops() / timing.median * 1e-9, gigabytes = attention.bytes() / timing.median * 1e-9;
    fmt::print("{:<15} {:>11.4f} {:>11.4f} {:>9.1f} {:>7.1f} {:>9.1e}  {}\n", label, timing.median * 1e3, timing.minimum * 1e3,
               gflops, gigabytes, check.error, workload.describe());
    entry["iterations"] = timing.runs;
    entry["threads"] = 1;  // Google Benchmark's own threads; ours are in the name
    entry["real_time"] = timing.median * 1e3;
    entry["cpu_time"] = timing.cpu * 1e3;
    entry["time_unit"] = "ms";
    entry["min_ms"] = timing.minimum * 1e3;
    entry["GFLOP/s"] = gflops;
    entry["GB/s"] = gigabytes;
    entry["error"] = check.error;
    document["benchmarks"].push_back(entry);
  }
  if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    file << document.dump(1) << '\n';
    file.close();
    if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", options.json_path));
  }
  if (!wrong.empty()) throw std::runtime_error(fmt::format("wrong results: {}", fmt::join(wrong, ", ")));
}

}  // namespace

Command add_bench(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* const app = parent.add_subcommand("bench", "Time attention on named workloads or on any shape");
  app->add_option("workload", options->names, "Names of workloads, or all")->type_name("NAME");
  app->add_option("--shape", options->shapes,
                  "Sizes b,h,g,t,s,d,e: batch (1), query heads (1), key/value heads (h), query length, key length (t), head "
                  "size, value size (d)")
      ->type_name("SIZES")
      ->take_all();
  app->add_option("--causal", options->causal, "For --shape: top-left or bottom-right")->type_name("WHERE");
  app->add_option("--window", options->window, "For --shape: LEFT,RIGHT keys around the diagonal; -1 for no limit")
      ->type_name("L,R");
  app->add_flag("--key-lengths", options->padded, "For --shape: key lengths differ over the batch, s - (7 i mod s/2)");
  app->add_flag("--list", options->list, "List the named workloads");
  app->add_option("--min-time", options->min_time, "Seconds to measure each workload for (0.5)")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("S");
  app->add_option("--json", options->json_path, "Also write the results here, in Google Benchmark's schema")->type_name("FILE");
  options->runtime.add_options(*app);
  app->footer(
      "\nEach result is compared with float64 on sampled rows before it is timed; a wrong one is not timed and makes the\n"
      "exit status 1. Times are wall time. GFLOP/s count 2 (d + e) for each pair of query and key that the mask allows, GB/s\n"
      "reading query, key and value and writing the output once.\n"
      "\nExamples:\n"
      "  polyhead bench --list\n"
      "  polyhead bench bert-128 llama-prefill --threads 1 --isa avx2\n"
      "  polyhead bench all --json results.json\n"
      "  polyhead bench --shape b=1,h=32,g=8,t=1,s=8192,d=128\n"
      "  polyhead bench --shape b=4,h=8,t=1024,d=64 --causal bottom-right --window 255,0 --key-lengths");
  return {app, [options] { run_bench(*options); }};
}

}  // namespace polyhead::cli
