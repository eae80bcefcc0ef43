// How many CPUs this process may use: affinity mask, container quota, cores behind hyper-threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace polyhead::platform {

// The whole text of a file, nothing when it cannot be read. Everything below that takes one is a pure function of it.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_file(const std::string& path);

// "0-3,8,10-11" -> 0 1 2 3 8 10 11; empty for text that is not such a list.
std::vector<int> parse_cpu_list(const std::string& text);

// CPUs that a quota is worth, rounded up, at least 1; nothing when there is no limit or the text is not as documented.
std::optional<int> cpus_from_cpu_max(const std::string& text);  // v2: "150000 100000", "max 100000"
std::optional<int> cpus_from_cfs_quota(const std::string& quota_us,
                                       const std::string& period_us);  // v1; a quota of -1 is no limit

// The tightest quota of the control groups (v1 or v2) that this process is in, from the group itself up to the root that is
// visible here; nothing when there is none.
std::optional<int> cgroup_cpu_quota(const FileReader& read);

// The number of different cores among these CPUs: hyper-threads of one core count once, since two threads share its
// multiply-add units and gain nothing here. CPUs of unknown topology count one each.
int count_cores(const std::vector<int>& cpus, const FileReader& read);

// CPUs in this thread's affinity mask, ascending; empty where the system cannot tell.
std::vector<int> allowed_cpus();

// min(cores among the allowed CPUs, quota), at least 1.
int default_thread_count(const std::vector<int>& allowed, const FileReader& read);
int default_thread_count();  // of this process

// Pins the calling thread; false where the CPU cannot be had.
bool pin_current_thread(int cpu) noexcept;
// The other direction: what to give back to a thread that was pinned.
bool set_current_thread_cpus(const std::vector<int>& cpus) noexcept;

// Identifies the process: a value taken before fork() differs from one taken in the child.
long process_id() noexcept;

}  // namespace polyhead::platform
