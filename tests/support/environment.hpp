// What a test run is given: the machine's instruction sets, runtimes on them, numbers from the environment.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/runtime.hpp"

namespace polyhead::testing {

// A decimal number in the environment, or the default when it is unset; anything else in it ends the test program.
std::int64_t environment_integer(const char* name, std::int64_t otherwise);

// One runtime for each (isa, threads) of the process; never destroyed, so that no test depends on the order of destructors.
const Runtime& runtime_on(Isa isa, int threads = 1);

// A test that runs on each instruction set that this machine has:
//     using Sweep = EveryIsa;
//     TEST_P(Sweep, Name) { ... isa() ... runtime(2) ... }
//     POLYHEAD_INSTANTIATE_EVERY_ISA(Sweep);
class EveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  Isa isa() const { return GetParam(); }
  const Runtime& runtime(int threads = 1) const { return runtime_on(isa(), threads); }
  // The scalar kernels are many times slower: long sweeps take every n-th case there.
  bool slow() const { return isa() == Isa::reference; }
};

inline std::string isa_name(const ::testing::TestParamInfo<Isa>& info) {
  return name(info.param);
}

#define POLYHEAD_INSTANTIATE_EVERY_ISA(suite) \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::polyhead::available_isas()), ::polyhead::testing::isa_name)

}  // namespace polyhead::testing
