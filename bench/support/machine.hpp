// What the operating system says about the machine, as far as a measurement depends on it. The functions that take a FileReader
// are pure functions of the files' texts: machines that nobody here has are tested with forged ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/cpu_limits.hpp"

namespace polyhead::bench {

struct Cache {
  std::string type;  // "Data", "Instruction" or "Unified"
  int level = 0;
  std::int64_t bytes = 0;
  int shared_by = 1;  // logical CPUs
};

// A size as sysfs writes it ("32K", "1536K", "32M", "49152"), in bytes; 0 for anything else.
std::int64_t parse_cache_size(const std::string& text);

// The caches of one CPU that sysfs describes, in its order. An entry without a usable level, type or size is left out; one
// without a usable list of CPUs counts as private.
std::vector<Cache> caches_from_sysfs(const platform::FileReader& read, int cpu = 0);

// What sysfs says, and where it says nothing what the CPU says.
const std::vector<Cache>& machine_caches();

// The frequency governor of these CPUs: its name when they agree, all names with commas between when they don't, "unknown"
// when none can be read (virtual machines have none).
std::string frequency_governor(const platform::FileReader& read, const std::vector<int>& cpus);

// Bytes of memory that can be used without swapping, 0 where unknown.
std::int64_t available_memory(const platform::FileReader& read);

}  // namespace polyhead::bench
