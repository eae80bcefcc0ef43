// Tells ThreadSanitizer what it can't see: oneTBB's library is not compiled with it, so the order that oneTBB guarantees
// between starting work, the work, and the end of waiting for it is invisible. Each edge is told by itself, on an address of
// its own, so that real races between bodies are still found. Nothing in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define POLYHEAD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define POLYHEAD_THREAD_SANITIZER 1
#endif
#endif

#if defined(POLYHEAD_THREAD_SANITIZER)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace polyhead::graph {

#if defined(POLYHEAD_THREAD_SANITIZER)
constexpr bool thread_sanitizer = true;
inline void happened_before(const void* edge) {
  __tsan_release(const_cast<void*>(edge));
}
inline void happens_after(const void* edge) {
  __tsan_acquire(const_cast<void*>(edge));
}
#else
constexpr bool thread_sanitizer = false;
inline void happened_before(const void*) {}
inline void happens_after(const void*) {}
#endif

// From the caller to the bodies, and back from the bodies to the caller.
struct CallEdges {
  char start = 0, end = 0;
  void before_work() const { happened_before(&start); }
  void enter_body() const { happens_after(&start); }
  void leave_body() const { happened_before(&end); }
  void after_work() const { happens_after(&end); }
};

}  // namespace polyhead::graph
