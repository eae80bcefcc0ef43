// What a cache holds: sequences of tokens in pages. All three kinds are pages: a contiguous sequence is one page of `capacity`
// tokens, a ring is one page that is gone round in, and only paged sequences get more.
//
// Nothing here checks arguments but for room: that is the border's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/page_pool.hpp"
#include "cache/page_shape.hpp"
#include "cache/rotation.hpp"
#include "cache/scaled_rows.hpp"
#include "cache/storage_type.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead::cache {

// Rows of elements in the caller's memory: [batch, head, token, element], strides in elements.
struct RowSource {
  const ElementType* type = nullptr;
  const void* data = nullptr;
  std::ptrdiff_t batch = 0, head = 0, token = 0, element = 1;
  ElementRow row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return {type, static_cast<const char*>(data) + (b * batch + h * head + t * token) * type->bytes, element};
  }
};
struct RowTarget {
  const ElementType* type = nullptr;
  void* data = nullptr;
  std::ptrdiff_t batch = 0, head = 0, token = 0, element = 1;
  MutableRow row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return {type, static_cast<char*>(data) + (b * batch + h * head + t * token) * type->bytes, element};
  }
};

// One sequence's share of an append.
struct AppendItem {
  std::int64_t sequence = 0;
  std::int64_t batch = 0;     // its rows in the sources
  std::int64_t tokens = 0;    // the first ones of these
  std::int64_t position = 0;  // of the first one, for the rotation
};

// Where attention finds a sequence's tokens: token s at table[s / page_tokens - first_page].
struct SequenceView {
  const void* const* table = nullptr;
  std::int64_t first_page = 0;
  std::int64_t first_token = 0;
  std::int64_t length = 0;
  const float* channels = nullptr;  // where integers are stored: see Store::channels
};

struct Sequence {
  std::int64_t length = 0;
  std::int64_t first = 0;  // the oldest token that is there: 0 but in a ring
  std::vector<PageId> pages;
  std::vector<const void*> table;  // their addresses; in a ring one address as often as a view may need it
};

class Store {
 public:
  // spec is complete and checked. Errors: out_of_memory.
  explicit Store(const KvCacheSpec& spec);

  const KvCacheSpec& spec() const noexcept { return spec_; }
  const PageShape& shape() const noexcept { return shape_; }
  const Rotation& rotation() const noexcept { return rotation_; }
  const PagePool& pool() const noexcept { return pool_; }
  const Sequence& sequence(std::int64_t index) const { return sequences_[static_cast<std::size_t>(index)]; }

  // Errors: out_of_memory; the cache is as it was then, but for free pages. Sequences are different ones and have room.
  void append(const AppendItem* items, std::int64_t count, const RowSource& key, const RowSource& value);
  void trim(std::int64_t sequence, std::int64_t length) noexcept;
  void fork(std::int64_t from, std::int64_t to, std::int64_t length);
  void read(std::int64_t sequence, std::int64_t first, std::int64_t count, const RowTarget& key, const RowTarget& value) const;
  void make_free(std::int64_t pages) { pool_.make_free(pages); }
  SequenceView view(std::int64_t sequence) const noexcept;

  // Of what is stored as integers, a sequence's [kv_heads][key mean | key channel | value mean | value channel], which are
  // found when its first tokens come and hold as long as it has any; a fork takes them over. None where numbers are stored.
  std::vector<float>& channels() noexcept { return channels_; }
  const std::vector<float>& channels() const noexcept { return channels_; }
  bool scaled() const noexcept { return shape_.scale_bytes > 0; }

  // For loading: gives an empty sequence its pages, which are new ones or shared with sequences before it.
  PageId new_page();
  void restore(std::int64_t sequence, std::int64_t length, std::int64_t first, const PageId* pages, std::size_t count);
  void drop(PageId page) noexcept { pool_.release(page); }  // the hold that new_page gave

  // The scales of a page's head, of its keys and values.
  std::int64_t key_scale_at(std::int64_t head, std::int64_t slot) const {
    return head * shape_.head_stride() + shape_.key_scale_in_page() + slot * shape_.scale_bytes;
  }
  std::int64_t value_scale_at(std::int64_t head, std::int64_t slot) const {
    return head * shape_.head_stride() + shape_.value_scale_in_page() + slot * shape_.scale_bytes;
  }

  // Tokens of the `index`-th page of a sequence that are in use.
  std::int64_t tokens_in_page(const Sequence& sequence, std::size_t index) const;
  char* page_data(PageId page) const noexcept { return pool_.data(page); }

  // Rows of a page's head and token.
  std::int64_t key_at(std::int64_t head, std::int64_t slot) const {
    return head * shape_.head_stride() + slot * shape_.key_stride();
  }
  std::int64_t value_at(std::int64_t head, std::int64_t slot) const {
    return head * shape_.head_stride() + shape_.value_in_page() + slot * shape_.value_stride();
  }

 private:
  bool paged() const noexcept { return spec_.kind == CacheKind::paged; }
  void copy_tokens(PageId from, PageId to, std::int64_t count) noexcept;
  void write_tokens(const Sequence& sequence, const AppendItem& item, const RowSource& key, const RowSource& value) noexcept;
  void find_turns(std::int64_t position) noexcept;
  const float* load_row(const ElementRow& from, std::int64_t count, bool rotates) noexcept;
  void write_row(const ElementRow& from, std::int64_t count, bool rotates, char* to) noexcept;
  void find_channels(const AppendItem& item, const RowSource& key, const RowSource& value) noexcept;
  Channels key_channels(std::int64_t sequence, std::int64_t head) const noexcept {
    const float* const first = channels_of_head(sequence, head);
    return {first, first + shape_.head_dim};
  }
  Channels value_channels(std::int64_t sequence, std::int64_t head) const noexcept {
    const float* const first = channels_of_head(sequence, head) + 2 * shape_.head_dim;
    return {first, first + shape_.value_dim};
  }
  std::size_t channels_of_sequence() const noexcept {
    return static_cast<std::size_t>(2 * shape_.kv_heads * (shape_.head_dim + shape_.value_dim));
  }
  const float* channels_of_head(std::int64_t sequence, std::int64_t head) const noexcept {
    return channels_.data() + static_cast<std::size_t>(sequence) * channels_of_sequence() +
           2 * head * (shape_.head_dim + shape_.value_dim);
  }
  std::int64_t pages_wanted(const AppendItem* items, std::int64_t count);

  KvCacheSpec spec_;
  const ElementType* storage_;  // null where integers are stored
  PageShape shape_;
  Rotation rotation_;
  PagePool pool_;
  std::vector<Sequence> sequences_;
  std::vector<Rotation::Turns> turns_;  // of one token, for append
  std::vector<float> row_;              // one key or value
  std::vector<float> channels_;
  std::vector<ChannelFinder> finders_;  // of one head's keys and of its values, while channels are being found
};

}  // namespace polyhead::cache
