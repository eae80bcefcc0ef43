// Runtime: which threads, which instruction set. Cheap to copy (a shared handle); one per application is the usual number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/export.hpp"

namespace polyhead {

// Instruction-set targets that kernels exist for. avx2 includes FMA; avx512 is F, CD, BW, DQ, VL; avx512_bf16 is avx512 with
// products of bf16 pairs, and is taken unasked only on CPUs that are known to be fast at them; neon_bf16 is neon with such
// products, and amx is avx512 with tiles that multiply bf16: these two are taken only when they are asked for.
enum class Isa : std::uint8_t {
  reference = 0,
  sse4 = 1,
  avx2 = 2,
  avx512 = 3,
  neon = 4,
  sve = 5,
  amx = 6,
  avx512_bf16 = 7,
  neon_bf16 = 8,
};

POLYHEAD_EXPORT const char* name(Isa isa) noexcept;
// Targets that this build contains and this machine (CPU and operating system) can run, plainest first.
POLYHEAD_EXPORT std::vector<Isa> available_isas();
// The target a new Runtime takes: the best available one, or the one that the environment variable POLYHEAD_ISA names.
// Errors: invalid_argument for a name that does not exist, unsupported for one this build or machine lacks.
POLYHEAD_EXPORT Isa default_isa();

// A host's own thread pool. parallel_for must call function(argument, i) once for every i < count, on any threads, and
// return when all calls have returned; it may run them one after another. Calls never throw.
struct Executor {
  void* context = nullptr;
  void (*parallel_for)(void* context, std::size_t count, void (*function)(void* argument, std::size_t index),
                       void* argument) = nullptr;
  int concurrency = 1;  // the largest number of calls that run at the same time
};

enum class LogLevel : std::uint8_t { debug = 0, info = 1, warning = 2 };

struct RuntimeOptions {
  // 0: as many as this process may use (affinity mask and cgroup quota). 1 starts no thread at all.
  int threads = 0;
  // CPUs that worker threads are pinned to, empty for no pinning. A CPU that cannot be had is a warning, not an error.
  std::vector<int> cpu_set;
  // Run in the oneTBB arena that the calling thread is in, instead of in an arena of our own.
  bool use_calling_arena = false;
  // Run on the host's threads; excludes the two options above.
  std::optional<Executor> executor;
  // Force an instruction set; unset: default_isa().
  std::optional<Isa> isa;
  // Called with each message; silent when empty. May be called from any thread.
  std::function<void(LogLevel, const char*)> log;
};

namespace detail {
class RuntimeState;
}

class POLYHEAD_EXPORT Runtime {
 public:
  // No thread is started before the first call that needs one. Errors: invalid_argument (threads < 0, an executor without
  // a function), unsupported (an instruction set that is not available).
  explicit Runtime(const RuntimeOptions& options = {});

  int threads() const noexcept;  // the largest number of threads that work at once, the caller's included
  Isa isa() const noexcept;
  std::string describe() const;  // several lines for people: version, CPU, ISA, caches, threads

  const std::shared_ptr<detail::RuntimeState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<detail::RuntimeState> state_;
};

// Ends oneTBB's worker threads and waits for them, for hosts that unload the library. Call with no Polyhead call running.
// Runtimes stay usable: their next parallel call starts workers again. True when all workers have ended.
POLYHEAD_EXPORT bool shutdown() noexcept;

}  // namespace polyhead
