// Result files in Google Benchmark's schema, for programs that write them without Google Benchmark.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "polyhead/runtime.hpp"

namespace polyhead::bench {

// The context: what Google Benchmark's own reporter says, and what we add to it (context.hpp).
nlohmann::ordered_json result_context(const std::string& executable, Isa isa);

}  // namespace polyhead::bench
