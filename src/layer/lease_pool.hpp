// Free lists of what runs need. A run takes a lease (memory, task-graph executions) and gives it back; any number of runs of
// one layer go on at once, and once there are as many leases as runs at a time nothing is allocated any more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "graph/task_graph.hpp"
#include "polyhead/error.hpp"

namespace polyhead::layer {

template <typename Lease>
class LeasePool {
 public:
  // Returns its lease to the pool at the end of its life, after an error too.
  class Handle {
   public:
    explicit Handle(LeasePool& pool) : pool_(pool), lease_(pool.take()) {}
    ~Handle() { pool_.give_back(std::move(lease_)); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    Lease* operator->() const noexcept { return lease_.get(); }
    Lease& operator*() const noexcept { return *lease_; }

   private:
    LeasePool& pool_;
    std::unique_ptr<Lease> lease_;
  };

 private:
  std::unique_ptr<Lease> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      free_.reserve(++leases_);  // so that giving back never allocates
      return std::make_unique<Lease>();
    }
    std::unique_ptr<Lease> lease = std::move(free_.back());
    free_.pop_back();
    return lease;
  }
  void give_back(std::unique_ptr<Lease> lease) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(lease));
  }

  std::mutex mutex_;
  std::size_t leases_ = 0;
  std::vector<std::unique_ptr<Lease>> free_;
};

using FamilyKey = std::array<std::int64_t, 4>;

// A few recently used values by shape family; the longest unused one makes room. Not for several threads at once.
template <typename Value>
class FamilyCache {
 public:
  static constexpr std::size_t capacity = 32;

  Value* find(const FamilyKey& key) {
    for (Entry& entry : entries_) {
      if (entry.key == key) {
        entry.last_use = ++clock_;
        return &entry.value;
      }
    }
    return nullptr;
  }
  Value& insert(const FamilyKey& key, Value value) {
    if (entries_.size() < capacity) {
      entries_.push_back({key, std::move(value), ++clock_});
      return entries_.back().value;
    }
    Entry* oldest = &entries_.front();
    for (Entry& entry : entries_) {
      if (entry.last_use < oldest->last_use) oldest = &entry;
    }
    *oldest = {key, std::move(value), ++clock_};
    return oldest->value;
  }

 private:
  struct Entry {
    FamilyKey key;
    Value value;
    std::uint64_t last_use;
  };
  std::vector<Entry> entries_;
  std::uint64_t clock_ = 0;
};

// All nodes in order on the calling thread, with whatever parallelism their bodies find inside.
inline void run_nodes_in_order(std::size_t count, graph::NodeBody body, void* context, const std::atomic<bool>* cancel) {
  for (std::size_t node = 0; node < count; ++node) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::cancelled, "cancelled: the caller's cancellation flag was set");
    }
    body(context, static_cast<graph::NodeId>(node), 0);
  }
}

}  // namespace polyhead::layer
