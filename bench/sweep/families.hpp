// The families of sizes that are swept: one size grows, all others stay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/runtime.hpp"
#include "support/bench_case.hpp"

namespace polyhead::bench {

struct SweepFamily {
  std::string name;         // "query_length"
  std::string description;  // what is held: "h=8 s=512 d=64, one thread"
  std::string unit;         // what the size counts: "queries"
  std::vector<std::int64_t> sizes;
  std::function<std::unique_ptr<BenchCase>(std::int64_t size, const Runtime& runtime)> make;
};

std::vector<SweepFamily> sweep_families();

}  // namespace polyhead::bench
