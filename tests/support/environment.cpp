#include "support/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "dispatch/select_isa.hpp"

namespace polyhead::testing {
namespace {

DType dtype_of_cases = DType::f32;

char crash_note[1024];

// Leaves the rest to whoever was to be told before: a sanitizer, or the system.
template <int signal>
struct CrashNote {
  static inline struct sigaction before;
  static void write_note(int) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, crash_note, std::strlen(crash_note));
    sigaction(signal, &before, nullptr);
  }
  CrashNote() {
    struct sigaction action = {};
    action.sa_handler = write_note;
    sigaction(signal, &action, &before);
  }
};

}  // namespace

void set_crash_note(const std::string& note) {
  static const CrashNote<SIGSEGV> segmentation;
  static const CrashNote<SIGBUS> bus;
  static const CrashNote<SIGILL> illegal;
  static const CrashNote<SIGFPE> division;
  std::snprintf(crash_note, sizeof crash_note, "crashed: %s\n", note.c_str());
}

std::vector<DType> attention_dtypes() {
  return dispatch::attention_dtypes();
}

DType case_dtype() {
  return dtype_of_cases;
}

void set_case_dtype(DType dtype) {
  dtype_of_cases = dtype;
}

std::int64_t environment_integer(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*end != '\0') {
    std::fprintf(stderr, "%s=%s is not a decimal number\n", name, text);
    std::exit(2);
  }
  return value;
}

const Runtime& runtime_on(Isa isa, int threads) {
  static auto* const mutex = new std::mutex;
  static auto* const runtimes = new std::map<std::pair<Isa, int>, Runtime>;
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto key = std::make_pair(isa, threads);
  auto found = runtimes->find(key);
  if (found == runtimes->end()) {
    RuntimeOptions options;
    options.isa = isa;
    options.threads = threads;
    found = runtimes->emplace(key, Runtime(options)).first;
  }
  return found->second;
}

const dispatch::KernelTable& permitted_kernels(Isa isa) {
  return dispatch::kernel_table(dispatch::permitted_isa(isa, dispatch::built_isas(), true, dispatch::request_tile_permission));
}

std::vector<Isa> isas_with_own_kernels(DType dtype) {
  using dispatch::KernelTable;
  const auto same = [&](const KernelTable& a, const KernelTable& b) {
    const dispatch::AttentionKernels one = dispatch::attention_kernels(a, dtype), other = dispatch::attention_kernels(b, dtype);
    return one.transposed == other.transposed && one.fast == other.fast && one.decode == other.decode &&
           one.merge == other.merge && a.gemm_f32 == b.gemm_f32;
  };
  std::vector<Isa> isas;
  for (const Isa isa : available_isas()) {
    const KernelTable& table = dispatch::kernel_table(isa);
    const bool again =
        std::any_of(isas.begin(), isas.end(), [&](Isa plainer) { return same(dispatch::kernel_table(plainer), table); });
    if (!again) isas.push_back(isa);
  }
  return isas;
}

std::vector<std::tuple<Isa, DType>> isas_and_dtypes() {
  std::vector<std::tuple<Isa, DType>> all;
  for (const DType dtype : attention_dtypes())
    for (const Isa isa : isas_with_own_kernels(dtype)) all.emplace_back(isa, dtype);
  return all;
}

}  // namespace polyhead::testing
