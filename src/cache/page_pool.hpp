// Pages of one size, counted by who holds them. Pages that nobody holds are kept for the next one who asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "platform/aligned_memory.hpp"

namespace polyhead::cache {

using PageId = std::uint32_t;

class PagePool {
 public:
  static constexpr std::int64_t most_pages = std::int64_t{1} << 31;

  // limit: the most pages that there will ever be, 1 .. most_pages.
  PagePool(std::size_t page_bytes, std::int64_t limit) : page_bytes_(page_bytes), limit_(limit) {}

  // Sees to it that `count` pages are free. The only call that allocates. Errors: out_of_memory, which leaves the pool as it
  // was.
  void make_free(std::int64_t count);

  // A free page, held once. make_free has promised it.
  PageId acquire() noexcept;
  void share(PageId page) noexcept { ++pages_[page].holders; }
  void release(PageId page) noexcept;
  std::uint32_t holders(PageId page) const noexcept { return pages_[page].holders; }
  // For counting before anything is done: leave says whether one more holder that goes (1) would not be the last one (0), stay
  // takes a leave back.
  std::int64_t leave(PageId page) noexcept { return ++pages_[page].leaving < pages_[page].holders ? 1 : 0; }
  void stay(PageId page) noexcept { --pages_[page].leaving; }
  char* data(PageId page) const noexcept { return pages_[page].data; }

  std::int64_t limit() const noexcept { return limit_; }
  std::int64_t total() const noexcept { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t free() const noexcept { return free_count_; }
  std::int64_t used() const noexcept { return total() - free_count_; }
  std::size_t page_bytes() const noexcept { return page_bytes_; }

 private:
  static constexpr PageId none = ~PageId{0};
  struct Page {
    char* data;
    std::uint32_t holders;
    std::uint32_t leaving;  // only while an append is being counted
    PageId next_free;
  };

  std::size_t page_bytes_;
  std::int64_t limit_;
  std::vector<Page> pages_;
  std::vector<platform::AlignedBuffer> slabs_;
  PageId first_free_ = none;
  std::int64_t free_count_ = 0;
};

}  // namespace polyhead::cache
