// polyhead-bench: Google Benchmark's flags and our own (see usage below). Exit status: 0 done, 1 a result was wrong or a case
// failed, 2 wrong command line or nothing to run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "dispatch/kernel_table.hpp"
#include "suite.hpp"
#include "support/context.hpp"
#include "support/lists.hpp"

namespace {

using namespace polyhead;

constexpr const char* usage =
    "polyhead-bench [OPTION...]\n"
    "          [--isa=NAME,NAME | all]     instruction sets (default: the best one here)\n"
    "          [--threads=N,N | all]       numbers of threads; all: 1, 2 ... as many as there are (default: 1 and as many)\n"
    "          [--dtypes=NAME,NAME | all]  data types of attention's operands (default: f32)\n"
    "          [--caches=warm,cold]        operands in the caches, or in none of them (default: both)\n"
    "          [--roofline]                measure around each case what bounds it, and report the share reached\n"
    "          [--real-operands=FOLDER]    also run on a model's queries, keys and values (bench/real_operands.py)\n"
    "          [--plugin=LIBRARY]          attention from a shared library, beside ours (docs/benchmarking.md); repeatable\n"
    "          [--slow-down=PERCENT]       for tests of comparisons: busy waiting after each call, by a share of its time\n"
    "          [--wrong-result=NAME]       for tests: cases with NAME in their name find a wrong result\n"
    "and Google Benchmark's:\n";

void print_help() {
  std::fputs(usage, stdout);
  benchmark::PrintDefaultHelp();
}

std::vector<Isa> parse_isas(const std::string& list) {
  if (list == "all") return available_isas();
  std::vector<Isa> isas;
  for (const std::string& wanted : bench::split_list(list)) {
    bool found = false;
    for (const Isa isa : available_isas()) {
      if (wanted == name(isa)) {
        bench::add_once(isas, isa);
        found = true;
      }
    }
    if (!found) throw std::invalid_argument("--isa: '" + wanted + "' is not available here (polyhead info)");
  }
  if (isas.empty()) throw std::invalid_argument("--isa: names nothing");
  return isas;
}

std::vector<int> parse_threads(const std::string& list) {
  std::vector<int> threads;
  if (list == "all") {
    for (int count = 1; count <= Runtime().threads(); ++count) threads.push_back(count);
    return threads;
  }
  for (const std::string& part : bench::split_list(list)) {
    if (part.empty() || part.size() > 4 || part.find_first_not_of("0123456789") != std::string::npos || std::stoi(part) < 1) {
      throw std::invalid_argument("--threads: '" + part + "' is not a number of threads");
    }
    bench::add_once(threads, std::stoi(part));
  }
  if (threads.empty()) throw std::invalid_argument("--threads: names nothing");
  return threads;
}

std::vector<DType> parse_dtypes(const std::string& list) {
  const std::vector<DType>& built = dispatch::attention_dtypes();
  if (list == "all") return built;
  std::vector<DType> dtypes;
  for (const std::string& wanted : bench::split_list(list)) {
    const auto found = std::find_if(built.begin(), built.end(), [&](DType dtype) { return wanted == name(dtype); });
    if (found == built.end()) {
      throw std::invalid_argument("--dtypes: this build has no attention kernels for '" + wanted + "' (polyhead info)");
    }
    bench::add_once(dtypes, *found);
  }
  if (dtypes.empty()) throw std::invalid_argument("--dtypes: names nothing");
  return dtypes;
}

void parse_caches(const std::string& list, bench::SuiteOptions& options) {
  options.warm = options.cold = false;
  for (const std::string& part : bench::split_list(list)) {
    if (part != "warm" && part != "cold") throw std::invalid_argument("--caches: '" + part + "' is neither warm nor cold");
    (part == "warm" ? options.warm : options.cold) = true;
  }
  if (!options.warm && !options.cold) throw std::invalid_argument("--caches: names nothing");
}

double parse_percent(const std::string& text) {
  std::size_t used = 0;
  double percent = -1;
  try {
    percent = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(percent >= 0 && percent <= 1000)) {
    throw std::invalid_argument("--slow-down: '" + text + "' is not a number of percent from 0 to 1000");
  }
  return percent;
}

// Takes our own flags out of argv.
bench::SuiteOptions read_options(int* argc, char** argv) {
  bench::SuiteOptions options;
  options.isas = {default_isa()};
  options.threads = {1};
  if (const int most = Runtime().threads(); most > 1) options.threads.push_back(most);
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals), value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (flag == "--isa") {
      options.isas = parse_isas(value);
    } else if (flag == "--threads") {
      options.threads = parse_threads(value);
    } else if (flag == "--dtypes") {
      options.dtypes = parse_dtypes(value);
    } else if (flag == "--caches") {
      parse_caches(value, options);
    } else if (argument == "--roofline") {
      options.roofline = true;
    } else if (flag == "--slow-down") {
      options.slow_down = parse_percent(value) / 100;
    } else if (flag == "--wrong-result") {
      options.wrong_result = value;
    } else if (flag == "--plugin") {
      if (value.empty()) throw std::invalid_argument("--plugin: names no library");
      options.plugins.push_back(value);
    } else if (flag == "--real-operands") {
      options.real_operands = value;
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bench::SuiteOptions options = read_options(&argc, argv);
    benchmark::Initialize(&argc, argv, print_help);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    const Isa isa = options.isas.size() == 1 ? options.isas.front() : default_isa();
    for (const auto& [key, value] : bench::context_entries(isa)) benchmark::AddCustomContext(key, value);
    if (options.slow_down > 0) {
      std::ostringstream percent;
      percent << options.slow_down * 100;
      benchmark::AddCustomContext("slow_down", percent.str());
    }
    bench::register_peaks(options);
    bench::register_gemm(options);
    bench::register_softmax(options);
    bench::register_attention(options);
    benchmark::AddCustomContext("real_operands", bench::register_real_attention(options));
    bench::register_decode(options);
    bench::register_caches(options);
    bench::register_masks(options);
    bench::register_score_changes(options);
    bench::register_layers(options);
    bench::register_task_graph(options);
    bench::register_plugins(options);
    const std::size_t run = benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    if (run == 0) return 2;
    return bench::any_failed() ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "polyhead-bench: %s\n", error.what());
    return 2;
  }
}
