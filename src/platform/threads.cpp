// The system calls behind cpu_limits.hpp. Linux is tested; on other systems affinity is unknown and pinning is refused.
#include <thread>

#include "platform/cpu_limits.hpp"

#if defined(__linux__)
#include <sched.h>
#include <cerrno>
#endif
#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

namespace polyhead::platform {

#if defined(__linux__)

namespace {

// A mask for machines with more than CPU_SETSIZE CPUs; the kernel refuses one that is too small for it.
constexpr int max_cpus = 1 << 16;

struct CpuMask {
  explicit CpuMask(int cpus)
      : bytes(CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus))), set(CPU_ALLOC(static_cast<std::size_t>(cpus))) {
    if (set != nullptr) CPU_ZERO_S(bytes, set);
  }
  ~CpuMask() { CPU_FREE(set); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;

  std::size_t bytes;
  cpu_set_t* set;
};

}  // namespace

std::vector<int> allowed_cpus() {
  for (int capacity = CPU_SETSIZE; capacity <= max_cpus; capacity *= 2) {
    const CpuMask mask(capacity);
    if (mask.set == nullptr) break;
    if (sched_getaffinity(0, mask.bytes, mask.set) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), mask.bytes, mask.set)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

bool set_current_thread_cpus(const std::vector<int>& cpus) noexcept {
  const CpuMask mask(max_cpus);
  if (mask.set == nullptr || cpus.empty()) return false;
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= max_cpus) return false;
    CPU_SET_S(static_cast<std::size_t>(cpu), mask.bytes, mask.set);
  }
  return sched_setaffinity(0, mask.bytes, mask.set) == 0;
}

bool pin_current_thread(int cpu) noexcept {
  const CpuMask mask(max_cpus);
  if (mask.set == nullptr || cpu < 0 || cpu >= max_cpus) return false;
  CPU_SET_S(static_cast<std::size_t>(cpu), mask.bytes, mask.set);
  return sched_setaffinity(0, mask.bytes, mask.set) == 0;
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
