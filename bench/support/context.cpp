#include "support/context.hpp"

#include <hwy/highway.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <thread>

#include "dispatch/cpu_features.hpp"
#include "platform/cpu_limits.hpp"
#include "polyhead/version.hpp"

#if defined(POLYHEAD_TBB)
#include <oneapi/tbb/version.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace polyhead::bench {

extern const char* const build_commit;  // commit.cpp, written by every build

namespace {

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
  return std::string("gcc ") + __VERSION__;
#else
  return "unknown";
#endif
}

std::string host_name() {
#if defined(__unix__) || defined(__APPLE__)
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) return name;
#endif
  return "unknown";
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  const std::tm* const utc = std::gmtime(&now);
  char text[32] = {};
  if (utc == nullptr || std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", utc) == 0) return "unknown";
  return text;
}

// The fastest CPU's clock: the limit where there is frequency scaling, the current clock elsewhere.
double clock_in_mhz() {
  const auto limit = platform::read_file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  if (limit) {
    if (const double kilohertz = std::strtod(limit->c_str(), nullptr); kilohertz > 0) return kilohertz * 1e-3;
  }
  double fastest = 0;
  std::istringstream lines(platform::read_file("/proc/cpuinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind("cpu MHz", 0) != 0 || colon == std::string::npos) continue;
    fastest = std::max(fastest, std::strtod(line.c_str() + colon + 1, nullptr));
  }
  return fastest;
}

std::vector<double> load_average() {
#if defined(__unix__) || defined(__APPLE__)
  double load[3] = {};
  const int known = getloadavg(load, 3);
  if (known > 0) return {load, load + known};
#endif
  return {};
}

}  // namespace

ContextEntries context_entries(Isa isa) {
  const dispatch::CpuFeatures& cpu = dispatch::cpu_features();
  const auto number = [](int part) { return std::to_string(part); };
  ContextEntries entries = {
      {"cpu", cpu.brand.empty() ? cpu.vendor : cpu.brand},
      {"isa", name(isa)},
      {"governor", frequency_governor(platform::read_file, platform::allowed_cpus())},
      {"polyhead_version", POLYHEAD_VERSION_STRING},
      {"commit", build_commit},
      {"compiler", compiler()},
      {"threads_allowed", number(platform::default_thread_count())},
      {"highway", number(HWY_MAJOR) + "." + number(HWY_MINOR) + "." + number(HWY_PATCH)},
  };
#if defined(POLYHEAD_TBB)
  entries.emplace_back("onetbb", TBB_runtime_version());
#endif
  return entries;
}

GoogleContext google_context() {
  GoogleContext context;
  context.date = date_now();
  context.host_name = host_name();
  context.num_cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  context.mhz_per_cpu = clock_in_mhz();
  context.caches = machine_caches();
  context.load_avg = load_average();
#if defined(NDEBUG)
  context.library_build_type = "release";
#else
  context.library_build_type = "debug";
#endif
  return context;
}

}  // namespace polyhead::bench
