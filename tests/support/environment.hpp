// What a test run is given: the machine's instruction sets, runtimes on them, numbers from the environment.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead::dispatch {
struct KernelTable;
}

namespace polyhead::testing {

// A decimal number in the environment, or the default when it is unset; anything else in it ends the test program.
std::int64_t environment_integer(const char* name, std::int64_t otherwise);

// What the test program is at, to be written to stderr if a crash ends it: long runs of random calls name the one to repeat.
void set_crash_note(const std::string& note);

// One runtime for each (isa, threads) of the process; never destroyed, so that no test depends on the order of destructors.
const Runtime& runtime_on(Isa isa, int threads = 1);

// The kernels that a runtime made for `isa` would have: tiles only where the system lets this process use them.
const dispatch::KernelTable& permitted_kernels(Isa isa);

#if defined(POLYHEAD_TEST_EMULATED)
constexpr bool emulated = true;  // an emulator runs the tests, as it does those of cross-compiled builds
#else
constexpr bool emulated = false;
#endif

// A test that runs on each instruction set that this machine has:
//     using Sweep = EveryIsa;
//     TEST_P(Sweep, Name) { ... isa() ... runtime(2) ... }
//     POLYHEAD_INSTANTIATE_EVERY_ISA(Sweep);
class EveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  Isa isa() const { return GetParam(); }
  const Runtime& runtime(int threads = 1) const { return runtime_on(isa(), threads); }
  // The scalar kernels are many times slower, and so is an emulator: long sweeps take every n-th case there.
  bool slow() const { return emulated || isa() == Isa::reference; }
};

// The data types that this build has attention kernels for, f32 first.
std::vector<DType> attention_dtypes();

// What attention_spec() gives to specs: f32 but in tests that run with each data type.
DType case_dtype();
void set_case_dtype(DType dtype);

// A test that runs on each instruction set with each data type that attention is built for. Its cases are of dtype().
//     POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(Sweep);
class EveryIsaAndDType : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  void SetUp() override { set_case_dtype(dtype()); }
  void TearDown() override { set_case_dtype(DType::f32); }
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  const Runtime& runtime(int threads = 1) const { return runtime_on(isa(), threads); }
  bool slow() const { return emulated || isa() == Isa::reference; }
};

// The instruction sets of this machine whose kernels for a data type are their own: others would give a plainer one's bits
// again.
std::vector<Isa> isas_with_own_kernels(DType dtype);
// The same with each data type.
std::vector<std::tuple<Isa, DType>> isas_and_dtypes();

inline std::string isa_and_dtype_name(const ::testing::TestParamInfo<std::tuple<Isa, DType>>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

#define POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::polyhead::testing::isas_and_dtypes()), \
                           ::polyhead::testing::isa_and_dtype_name)

inline std::string isa_name(const ::testing::TestParamInfo<Isa>& info) {
  return name(info.param);
}

#define POLYHEAD_INSTANTIATE_EVERY_ISA(suite) \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::polyhead::available_isas()), ::polyhead::testing::isa_name)

// Of suites whose cases are f32 alone.
#define POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Isa, suite,                                                                              \
                           ::testing::ValuesIn(::polyhead::testing::isas_with_own_kernels(::polyhead::DType::f32)), \
                           ::polyhead::testing::isa_name)

}  // namespace polyhead::testing
