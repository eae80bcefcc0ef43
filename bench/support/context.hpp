// Where a result comes from: what every result file says about machine and build. polyhead-bench and `polyhead bench` both take
// it from here, so that files of both can be read by the same tools.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "polyhead/runtime.hpp"
#include "support/machine.hpp"

namespace polyhead::bench {

using ContextEntries = std::vector<std::pair<std::string, std::string>>;

// What we add to Google Benchmark's own context, in this order:
//   cpu                the CPU's brand, or its vendor
//   isa                the instruction set given here
//   governor           of the allowed CPUs' frequency; "unknown" where the system has none
//   polyhead_version
//   commit             git describe when it was built, with "-dirty" for uncommitted changes; "unknown" outside git
//   compiler           as in "gcc 12.2.0"
//   threads_allowed    that this process may use
//   highway, onetbb    versions; onetbb is absent in a build without it
ContextEntries context_entries(Isa isa);

// The fields that Google Benchmark's JSON reporter writes by itself, for programs that write its schema without it. Keys there
// are the same as here; a cache is {"type", "level", "size", "num_sharing"}.
struct GoogleContext {
  std::string date;  // ISO 8601 with the offset from UTC
  std::string host_name;
  int num_cpus = 0;
  double mhz_per_cpu = 0;
  std::vector<Cache> caches;
  std::vector<double> load_avg;    // of 1, 5 and 15 minutes; empty where unknown
  std::string library_build_type;  // "release" or "debug"
};
GoogleContext google_context();

}  // namespace polyhead::bench
