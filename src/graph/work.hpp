// One parallel piece of work, and what all schedulers share to run it: stop after the first exception or a cancel.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>

#include "polyhead/error.hpp"

namespace polyhead::graph {

// Called for an item; never throws, so that hosts and worker threads see no exception.
using ItemFunction = void (*)(void* argument, std::size_t index, int slot);

// How bodies end early. Exceptions are caught where they are thrown and rethrown on the calling thread, in every mode alike.
class Outcome {
 public:
  explicit Outcome(const std::atomic<bool>* cancel) : cancel_(cancel) {}

  // Asked before each body.
  bool stopped() noexcept {
    if (stop_.load(std::memory_order_relaxed)) return true;
    if (cancel_ == nullptr || !cancel_->load(std::memory_order_relaxed)) return false;
    cancelled_.store(true, std::memory_order_relaxed);
    stop_.store(true, std::memory_order_relaxed);
    return true;
  }

  // To be called inside a catch block.
  void keep_current_exception() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!exception_) exception_ = std::current_exception();
    stop_.store(true, std::memory_order_relaxed);
  }

  // After all bodies have returned.
  void rethrow() {
    if (exception_) std::rethrow_exception(exception_);
    if (cancelled_.load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::cancelled, "cancelled: the caller's cancellation flag was set");
    }
  }

 private:
  const std::atomic<bool>* cancel_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::exception_ptr exception_;
};

// Hands out items in ascending order to runners: each runner is one task, so the cost per item is one atomic add, and the heavy
// items in front are started first (a task per item would be stolen from both ends of a deque).
struct ItemQueue {
  std::atomic<std::size_t> next{0};
  std::size_t count = 0;
  ItemFunction function = nullptr;
  void* argument = nullptr;

  void run(int slot) noexcept {
    for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      function(argument, i, slot);
    }
  }
};

}  // namespace polyhead::graph
