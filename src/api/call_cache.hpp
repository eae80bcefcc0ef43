// A small cache that makes one-shot calls as cheap as calls on a plan: what was made for a call's shape is found again by it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace polyhead::detail {

// The words that tell one kind of call from another (operation, sizes, options); comparing is exact, there are no collisions.
class CallKey {
 public:
  static constexpr std::size_t max_words = 32;  // attention with a relative bias and a score_mod has 27

  CallKey& add(std::uint64_t word) {
    if (size_ == max_words) throw std::length_error("polyhead: a call key has too many words");
    words_[size_++] = word;
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
    return *this;
  }
  CallKey& add(std::int64_t word) { return add(static_cast<std::uint64_t>(word)); }
  CallKey& add(double value) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return add(bits);
  }

  std::uint64_t hash() const noexcept { return hash_; }
  friend bool operator==(const CallKey& a, const CallKey& b) noexcept {
    return a.hash_ == b.hash_ && a.size_ == b.size_ &&
           std::equal(a.words_.begin(), a.words_.begin() + a.size_, b.words_.begin());
  }

 private:
  std::array<std::uint64_t, max_words> words_{};
  std::size_t size_ = 0;
  std::uint64_t hash_ = 0x2545f4914f6cdd1du;
};

// Least recently used entries leave first. A hit allocates nothing; any number of threads may use it. Values are shared and of
// any type: the first word of a key names the kind of call, and with it the type.
class CallCache {
 public:
  static constexpr std::size_t capacity = 64;

  // Null when there is none.
  std::shared_ptr<const void> find(const CallKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry* entry = locate(key);
    if (entry == nullptr) return nullptr;
    entry->last_use = ++clock_;
    return entry->value;
  }

  // Returns the entry that is in the cache afterwards: another thread may have been first.
  std::shared_ptr<const void> insert(const CallKey& key, std::shared_ptr<const void> value) {
    std::shared_ptr<const void> evicted;  // dies after the lock: a value's destructor may be slow
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry* entry = locate(key);
    if (entry != nullptr) return entry->value;
    entry = size_ < capacity ? &entries_[size_++] : oldest();
    hashes_[static_cast<std::size_t>(entry - entries_.data())] = key.hash();
    evicted = std::exchange(entry->value, std::move(value));
    entry->key = key;
    entry->last_use = ++clock_;
    return entry->value;
  }

  // make() returns std::shared_ptr<const Value> and runs without the lock.
  template <typename Value, typename Make>
  std::shared_ptr<const Value> find_or_make(const CallKey& key, const Make& make) {
    std::shared_ptr<const void> value = find(key);
    if (value == nullptr) value = insert(key, std::shared_ptr<const Value>(make()));
    return std::static_pointer_cast<const Value>(std::move(value));
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Entry& entry : entries_) entry.value = nullptr;
    size_ = 0;
  }

 private:
  struct Entry {
    CallKey key;
    std::shared_ptr<const void> value;
    std::uint64_t last_use = 0;
  };

  // Hashes lie together, so that a miss or a far hit reads half a kilobyte and not all keys.
  Entry* locate(const CallKey& key) {
    for (std::size_t i = 0; i < size_; ++i) {
      if (hashes_[i] == key.hash() && entries_[i].key == key) return &entries_[i];
    }
    return nullptr;
  }
  Entry* oldest() {
    return std::min_element(entries_.begin(), entries_.end(),
                            [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  }

  std::mutex mutex_;
  std::size_t size_ = 0;
  std::uint64_t clock_ = 0;
  std::array<std::uint64_t, capacity> hashes_{};
  std::array<Entry, capacity> entries_;
};

}  // namespace polyhead::detail
