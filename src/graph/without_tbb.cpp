// What a build without oneTBB says: one thread, or the host's executor.
#if !defined(POLYHEAD_TBB)

#include "graph/scheduler.hpp"
#include "graph/shutdown.hpp"

namespace polyhead::graph {

int max_arena_threads() {
  return 1;
}
std::shared_ptr<Scheduler> make_arena_scheduler(int, const RuntimeOptions&) {
  return make_serial_scheduler();
}
std::shared_ptr<Scheduler> make_calling_arena_scheduler(const RuntimeOptions&) {
  return make_serial_scheduler();
}

bool built_with_tbb() noexcept {
  return false;
}
bool shutdown_workers() noexcept {
  return true;
}

}  // namespace polyhead::graph

#endif
