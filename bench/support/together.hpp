// Runs a loop on several threads at once, for measuring what they reach together.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace polyhead::bench {

// prepare(i), then, when all have done so, body(i), each on thread i of `threads`; the calling thread is thread 0. Returns the
// seconds from the first start of a body to the last end. Neither may throw.
template <typename Prepare, typename Body>
double seconds_together(int threads, const Prepare& prepare, const Body& body) {
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Span {
    Clock::time_point begin, end;
  };
  std::vector<Span> spans(static_cast<std::size_t>(threads));
  std::atomic<int> missing{threads};
  const auto work = [&](int thread) {
    prepare(thread);
    missing.fetch_sub(1);
    // Spinning: a thread that has to be woken would start when the others are done. Yielding, in case there are more threads
    // than CPUs.
    while (missing.load() > 0) std::this_thread::yield();
    Span& span = spans[static_cast<std::size_t>(thread)];
    span.begin = Clock::now();
    body(thread);
    span.end = Clock::now();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  const auto earlier = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  const auto ends_earlier = [](const Span& a, const Span& b) { return a.end < b.end; };
  const Clock::time_point begin = std::min_element(spans.begin(), spans.end(), earlier)->begin;
  const Clock::time_point end = std::max_element(spans.begin(), spans.end(), ends_earlier)->end;
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace polyhead::bench
