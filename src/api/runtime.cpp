#include "polyhead/runtime.hpp"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "api/entry.hpp"
#include "api/runtime_state.hpp"
#include "dispatch/cpu_features.hpp"
#include "dispatch/select_isa.hpp"
#include "graph/shutdown.hpp"
#include "polyhead/error.hpp"
#include "polyhead/version.hpp"

namespace polyhead {
namespace {

constexpr const char* isa_variable = "POLYHEAD_ISA";

const char* forced_isa_name() {
  const char* value = std::getenv(isa_variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const RuntimeOptions& validated(const RuntimeOptions& options) {
  const auto fail = [](const std::string& message) { throw Error(ErrorCode::invalid_argument, message); };
  if (options.threads < 0) {
    fail("RuntimeOptions.threads: " + std::to_string(options.threads) +
         "; expected 0 (as many as the process may use) or more");
  }
  for (int cpu : options.cpu_set) {
    if (cpu < 0) fail("RuntimeOptions.cpu_set: CPU " + std::to_string(cpu) + "; expected numbers from 0 up");
  }
  if (options.use_calling_arena && !options.cpu_set.empty()) {
    fail(
        "RuntimeOptions.cpu_set: given together with use_calling_arena; the threads of the caller's arena are not ours to pin");
  }
  if (options.executor) {
    if (options.executor->parallel_for == nullptr) fail("RuntimeOptions.executor: parallel_for is null; expected a function");
    if (options.executor->concurrency < 1) {
      fail("RuntimeOptions.executor: concurrency is " + std::to_string(options.executor->concurrency) + "; expected 1 or more");
    }
    if (options.use_calling_arena || !options.cpu_set.empty()) {
      fail("RuntimeOptions.executor: given together with use_calling_arena or cpu_set; expected one way to run threads");
    }
  }
  return options;
}

Isa chosen_isa(const RuntimeOptions& options) {
  const bool forced = options.isa || forced_isa_name() != nullptr;
  const Isa isa =
      options.isa ? dispatch::require_isa(dispatch::cpu_features(), dispatch::built_isas(), *options.isa) : default_isa();
  return dispatch::permitted_isa(isa, dispatch::built_isas(), forced, dispatch::request_tile_permission);
}

std::string describe_threads(const RuntimeOptions& options) {
  if (options.executor) return "the host's executor, concurrency " + std::to_string(options.executor->concurrency);
  if (options.use_calling_arena) return "the calling thread's oneTBB arena";
  std::string text = graph::built_with_tbb() ? "own oneTBB arena" : "built without oneTBB";
  if (!options.cpu_set.empty()) {
    text += ", workers pinned to CPUs";
    for (int cpu : options.cpu_set) text += " " + std::to_string(cpu);
  }
  return text;
}

std::string describe_bytes(std::int64_t bytes) {
  if (bytes >= (1 << 20) && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  return std::to_string(bytes >> 10) + " KiB";
}

std::string describe_caches(const dispatch::CpuFeatures& features) {
  std::string text;
  for (const dispatch::CacheInfo& cache : features.caches) {
    if (!text.empty()) text += ", ";
    text += "L" + std::to_string(cache.level) +
            (cache.kind == 'd'   ? "d "
             : cache.kind == 'i' ? "i "
                                 : " ") +
            describe_bytes(cache.bytes);
  }
  return text.empty() ? "unknown" : text;
}

}  // namespace

const char* name(Isa isa) noexcept {
  return dispatch::isa_name(isa);
}

std::vector<Isa> available_isas() {
  return api::entry([] { return dispatch::runnable(dispatch::cpu_features(), dispatch::built_isas()); });
}

Isa default_isa() {
  return api::entry([] { return dispatch::select_isa(dispatch::cpu_features(), dispatch::built_isas(), forced_isa_name()); });
}

bool shutdown() noexcept {
  return graph::shutdown_workers();
}

Runtime::Runtime(const RuntimeOptions& options)
    : state_(api::entry([&] { return std::make_shared<detail::RuntimeState>(validated(options)); })) {}

int Runtime::threads() const noexcept {
  return state_->scheduler()->threads();
}
Isa Runtime::isa() const noexcept {
  return state_->isa();
}
std::string Runtime::describe() const {
  return api::entry([&] { return state_->describe(); });
}

namespace detail {

RuntimeState::RuntimeState(const RuntimeOptions& options)
    : kernels_(&dispatch::kernel_table(chosen_isa(options))),
      isa_was_forced_(options.isa.has_value() || forced_isa_name() != nullptr),
      threads_description_(describe_threads(options)),
      log_(options.log),
      scheduler_(graph::Scheduler::create(options)) {}

std::string RuntimeState::describe() const {
  const dispatch::CpuFeatures& features = dispatch::cpu_features();
  const int threads = scheduler_->threads();
  const std::string cpu = !features.brand.empty() ? features.brand : !features.vendor.empty() ? features.vendor : "unknown";
  std::string text;
  text += "polyhead " POLYHEAD_VERSION_STRING "\n";
  text +=
      "cpu:      " + cpu + " (family " + std::to_string(features.family) + ", model " + std::to_string(features.model) + ")\n";
  text += "features: " + features.feature_list() + "\n";
  text += "caches:   " + describe_caches(features) + "\n";
  text += "isa:      " + std::string(name(isa())) + (isa_was_forced_ ? " (forced)" : "") +
          "; available: " + dispatch::names_of(available_isas()) + "\n";
  text += "threads:  " + std::to_string(threads) + " (" + (threads == 1 ? "the caller's only" : threads_description_) + ")\n";
  return text;
}

}  // namespace detail
}  // namespace polyhead
