// polyhead-bench: Google Benchmark's flags, and
//   --isa=NAME,NAME | all      instruction sets (default: the best one here)
//   --threads=N,N              numbers of threads for attention and layers (default: 1 and all)
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>

#include "dispatch/cpu_features.hpp"
#include "polyhead/version.hpp"
#include "suite.hpp"

namespace {

using namespace polyhead;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<Isa> parse_isas(const std::string& list) {
  if (list == "all") return available_isas();
  std::vector<Isa> isas;
  for (const std::string& wanted : split(list)) {
    bool found = false;
    for (const Isa isa : available_isas()) {
      if (wanted == name(isa)) {
        isas.push_back(isa);
        found = true;
      }
    }
    if (!found) throw std::invalid_argument("--isa: '" + wanted + "' is not available here (polyhead info)");
  }
  return isas;
}

std::vector<int> parse_threads(const std::string& list) {
  std::vector<int> threads;
  for (const std::string& part : split(list)) {
    std::size_t used = 0;
    const int count = std::stoi(part, &used);
    if (used != part.size() || count < 1) throw std::invalid_argument("--threads: '" + part + "' is not a number of threads");
    threads.push_back(count);
  }
  return threads;
}

// Takes our own flags out of argv.
bench::SuiteOptions read_options(int* argc, char** argv) {
  bench::SuiteOptions options;
  options.isas = {default_isa()};
  options.threads = {1};
  if (const int most = Runtime().threads(); most > 1) options.threads.push_back(most);
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      options.isas = parse_isas(argv[i] + 6);
    } else if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      options.threads = parse_threads(argv[i] + 10);
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
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::AddCustomContext("cpu", dispatch::cpu_features().brand);
    benchmark::AddCustomContext("isa", name(default_isa()));
    benchmark::AddCustomContext("polyhead_version", POLYHEAD_VERSION_STRING);
    bench::register_peaks(options);
    bench::register_gemm(options);
    bench::register_softmax(options);
    bench::register_attention(options);
    bench::register_layers(options);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "polyhead-bench: %s\n", error.what());
    return 2;
  }
}
