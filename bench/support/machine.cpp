#include "support/machine.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "dispatch/cpu_features.hpp"

namespace polyhead::bench {
namespace {

// Machines have up to five; a forged folder must not make the search long.
constexpr int most_caches = 16;

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// A whole number of at least 0 that fills `text`, or -1.
std::int64_t whole_number(const std::string& text) {
  std::int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last && value >= 0 ? value : -1;
}

std::vector<Cache> caches_from_cpu() {
  std::vector<Cache> caches;
  for (const dispatch::CacheInfo& cache : dispatch::cpu_features().caches) {
    const char* const type = cache.kind == 'd' ? "Data" : cache.kind == 'i' ? "Instruction" : "Unified";
    caches.push_back({type, cache.level, cache.bytes, std::max(1, cache.shared_by)});
  }
  return caches;
}

}  // namespace

std::int64_t parse_cache_size(const std::string& text) {
  std::string digits = trimmed(text);
  int shift = 0;
  if (!digits.empty()) {
    const char unit = digits.back();
    shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    if (shift != 0) digits.pop_back();
  }
  const std::int64_t count = whole_number(digits);
  constexpr std::int64_t largest = std::int64_t{1} << 40;  // a terabyte: beyond any cache, and far from overflow
  return count < 0 || count > (largest >> shift) ? 0 : count << shift;
}

std::vector<Cache> caches_from_sysfs(const platform::FileReader& read, int cpu) {
  std::vector<Cache> caches;
  for (int index = 0; index < most_caches; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
    const std::optional<std::string> type = read(folder + "type");
    if (!type) break;
    Cache cache;
    cache.type = trimmed(*type);
    cache.level = static_cast<int>(std::min<std::int64_t>(whole_number(trimmed(read(folder + "level").value_or(""))), 16));
    cache.bytes = parse_cache_size(read(folder + "size").value_or(""));
    const auto sharing = platform::parse_cpu_list(trimmed(read(folder + "shared_cpu_list").value_or("")));
    cache.shared_by = std::max(1, static_cast<int>(sharing.size()));
    const bool known = cache.type == "Data" || cache.type == "Instruction" || cache.type == "Unified";
    if (known && cache.level >= 1 && cache.bytes > 0) caches.push_back(cache);
  }
  return caches;
}

const std::vector<Cache>& machine_caches() {
  static const std::vector<Cache> caches = [] {
    std::vector<Cache> found = caches_from_sysfs(platform::read_file);
    return found.empty() ? caches_from_cpu() : found;
  }();
  return caches;
}

std::string frequency_governor(const platform::FileReader& read, const std::vector<int>& cpus) {
  std::vector<std::string> names;
  for (const int cpu : cpus) {
    const auto text = read("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor");
    const std::string name = trimmed(text.value_or(""));
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "unknown";
  std::sort(names.begin(), names.end());
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ",") + name;
  return joined;
}

std::int64_t available_memory(const platform::FileReader& read) {
  std::istringstream lines(read("/proc/meminfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    constexpr const char* field = "MemAvailable:";
    if (line.rfind(field, 0) != 0) continue;
    std::istringstream rest(line.substr(std::string(field).size()));
    std::string amount, unit;
    rest >> amount >> unit;
    const std::int64_t kilobytes = whole_number(amount);
    return unit == "kB" && kilobytes > 0 && kilobytes < (std::int64_t{1} << 50) ? kilobytes << 10 : 0;
  }
  return 0;
}

}  // namespace polyhead::bench
