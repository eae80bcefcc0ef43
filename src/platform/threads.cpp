// The system calls behind cpu_limits.hpp. Linux is tested; on other systems affinity is unknown and pinning is refused.
#include <thread>

#include "platform/cpu_limits.hpp"

#if defined(__linux__)
#include <sched.h>

#include <cstddef>
#endif
#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

namespace polyhead::platform {

#if defined(__linux__)

namespace {

// Room for more CPUs than CPU_SETSIZE: the kernel refuses a mask that is too small for the machine. 8 KB on the stack, since
// pinning happens whenever a worker joins an arena and must not allocate.
constexpr std::size_t max_cpus = std::size_t{1} << 16;

struct CpuMask {
  static constexpr std::size_t sets = max_cpus / CPU_SETSIZE;
  static constexpr std::size_t bytes = sets * sizeof(cpu_set_t);
  cpu_set_t set[sets];

  CpuMask() { CPU_ZERO_S(bytes, set); }
  bool add(int cpu) noexcept {
    if (cpu < 0 || static_cast<std::size_t>(cpu) >= max_cpus) return false;
    CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
    return true;
  }
};

}  // namespace

std::vector<int> allowed_cpus() {
  CpuMask mask;
  if (sched_getaffinity(0, CpuMask::bytes, mask.set) != 0) return {};
  std::vector<int> cpus;
  for (std::size_t cpu = 0; cpu < max_cpus; ++cpu) {
    if (CPU_ISSET_S(cpu, CpuMask::bytes, mask.set)) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

bool set_current_thread_cpus(const std::vector<int>& cpus) noexcept {
  CpuMask mask;
  for (int cpu : cpus) {
    if (!mask.add(cpu)) return false;
  }
  return !cpus.empty() && sched_setaffinity(0, CpuMask::bytes, mask.set) == 0;
}

bool pin_current_thread(int cpu) noexcept {
  CpuMask mask;
  return mask.add(cpu) && sched_setaffinity(0, CpuMask::bytes, mask.set) == 0;
}

#else

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  for (unsigned cpu = 0; cpu < std::thread::hardware_concurrency(); ++cpu) cpus.push_back(static_cast<int>(cpu));
  return cpus;
}

bool set_current_thread_cpus(const std::vector<int>&) noexcept {
  return false;
}
bool pin_current_thread(int) noexcept {
  return false;
}

#endif

int default_thread_count() {
  std::vector<int> allowed = allowed_cpus();
  if (allowed.empty()) {
    for (unsigned cpu = 0; cpu < std::thread::hardware_concurrency(); ++cpu) allowed.push_back(static_cast<int>(cpu));
  }
  return default_thread_count(allowed, read_file);
}

long process_id() noexcept {
#if defined(_WIN32)
  return _getpid();
#else
  return static_cast<long>(getpid());
#endif
}

}  // namespace polyhead::platform
