#include "platform/cpu_limits.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace polyhead::platform {
namespace {

// Group paths in nested containers are short; a forged file must not make the walk long.
constexpr int max_cgroup_depth = 64;

std::optional<long long> parse_integer(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return std::nullopt;
  const char* begin = text.c_str() + first;
  char* end = nullptr;
  const long long value = std::strtoll(begin, &end, 10);
  if (end == begin || std::string(end).find_first_not_of(" \t\r\n") != std::string::npos) return std::nullopt;
  return value;
}

std::optional<int> whole_cpus(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return std::nullopt;
  const long long cpus = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<long long>(std::max<long long>(cpus, 1), 1 << 20));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool has_item(const std::string& comma_separated, const std::string& item) {
  const std::vector<std::string> items = split(comma_separated, ',');
  return std::find(items.begin(), items.end(), item) != items.end();
}

void tighten(std::optional<int>& limit, std::optional<int> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

// A mounted control-group hierarchy: the folder `root` of the hierarchy appears at `mount_point`.
struct Mount {
  std::string root, mount_point;
};

// A line of mountinfo: id, parent, device, root, mount point, options, optional fields, "-", type, source, super options.
std::optional<Mount> find_mount(const std::string& mountinfo, bool version2) {
  for (const std::string& line : split(mountinfo, '\n')) {
    const std::vector<std::string> fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    const bool wanted = version2 ? type == "cgroup2" : type == "cgroup" && has_item(dash[3], "cpu");
    if (wanted) return Mount{fields[3], fields[4]};
  }
  return std::nullopt;
}

// A line of /proc/self/cgroup: hierarchy id, controllers, path. Version 2 has id 0 and no controllers.
std::optional<std::string> find_group(const std::string& cgroup, bool version2) {
  for (const std::string& line : split(cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool wanted = version2 ? controllers.empty() && line.compare(0, first, "0") == 0 : has_item(controllers, "cpu");
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The group's path below the mount point. A container often sees the host's path in /proc/self/cgroup, while only its own
// group is mounted.
std::string path_below(const Mount& mount, const std::string& group) {
  std::string path = group;
  if (mount.root != "/" && path.compare(0, mount.root.size(), mount.root) == 0) path.erase(0, mount.root.size());
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path;
}

template <typename Limit>
void walk_up(std::string path, const Limit& limit_of) {
  for (int depth = 0; depth < max_cgroup_depth; ++depth) {
    limit_of(path);
    if (path.empty()) return;
    path.erase(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

}  // namespace

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

std::vector<int> parse_cpu_list(const std::string& text) {
  constexpr long long max_cpu = 1 << 16;
  std::vector<int> cpus;
  for (const std::string& part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const std::optional<long long> first = parse_integer(part.substr(0, dash));
    const std::optional<long long> last = dash == std::string::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > max_cpu) return {};
    for (long long cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::optional<int> cpus_from_cpu_max(const std::string& text) {
  std::stringstream stream(text);
  std::string quota, period;
  stream >> quota >> period;
  const std::optional<long long> quota_us = parse_integer(quota);
  const std::optional<long long> period_us = parse_integer(period);
  if (!quota_us || !period_us) return std::nullopt;
  return whole_cpus(*quota_us, *period_us);
}

std::optional<int> cpus_from_cfs_quota(const std::string& quota_us, const std::string& period_us) {
  const std::optional<long long> quota = parse_integer(quota_us);
  const std::optional<long long> period = parse_integer(period_us);
  if (!quota || !period) return std::nullopt;
  return whole_cpus(*quota, *period);
}

std::optional<int> cgroup_cpu_quota(const FileReader& read) {
  const std::string cgroup = read("/proc/self/cgroup").value_or("");
  const std::string mountinfo = read("/proc/self/mountinfo").value_or("");
  std::optional<int> limit;
  for (bool version2 : {true, false}) {
    const std::optional<std::string> group = find_group(cgroup, version2);
    const std::optional<Mount> mount = find_mount(mountinfo, version2);
    if (!group || !mount) continue;
    walk_up(path_below(*mount, *group), [&](const std::string& path) {
      const std::string folder = mount->mount_point + path;
      if (version2) {
        if (const auto text = read(folder + "/cpu.max")) tighten(limit, cpus_from_cpu_max(*text));
      } else {
        const auto quota = read(folder + "/cpu.cfs_quota_us");
        const auto period = read(folder + "/cpu.cfs_period_us");
        if (quota && period) tighten(limit, cpus_from_cfs_quota(*quota, *period));
      }
    });
  }
  return limit;
}

int count_cores(const std::vector<int>& cpus, const FileReader& read) {
  // A core is known by its lowest hyper-thread, whether that one is allowed or not.
  std::set<int> cores;
  for (int cpu : cpus) {
    const auto siblings = read("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    const std::vector<int> list = siblings ? parse_cpu_list(*siblings) : std::vector<int>{};
    const bool plausible = std::find(list.begin(), list.end(), cpu) != list.end();
    cores.insert(plausible ? *std::min_element(list.begin(), list.end()) : cpu);
  }
  return static_cast<int>(cores.size());
}

int default_thread_count(const std::vector<int>& allowed, const FileReader& read) {
  const int cores = std::max(1, count_cores(allowed, read));
  const std::optional<int> quota = cgroup_cpu_quota(read);
  return quota ? std::min(cores, *quota) : cores;
}

}  // namespace polyhead::platform
