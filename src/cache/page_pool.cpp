#include "cache/page_pool.hpp"

#include <algorithm>
#include <string>

#include "platform/rounding.hpp"
#include "polyhead/error.hpp"

namespace polyhead::cache {

void PagePool::make_free(std::int64_t count) {
  const std::int64_t missing = count - free_count_;
  if (missing <= 0) return;
  if (missing > limit_ - total()) {
    throw Error(ErrorCode::out_of_memory, "the cache needs " + std::to_string(missing) + " more pages and has " +
                                              std::to_string(total()) + " of max_pages (" + std::to_string(limit_) + ")");
  }
  // Small pages share memory of a huge page's size, so that reading them is not bound by address translation.
  const auto page_bytes = static_cast<std::int64_t>(page_bytes_);
  const std::int64_t slab = divide_up(static_cast<std::int64_t>(platform::huge_page_bytes), page_bytes);
  const std::int64_t added = std::min(std::max(missing, slab), limit_ - total());
  std::int64_t bytes;
  if (__builtin_mul_overflow(added, page_bytes, &bytes)) {
    throw Error(ErrorCode::out_of_memory, "the cache cannot allocate " + std::to_string(added) + " pages");
  }
  const std::size_t wanted = pages_.size() + static_cast<std::size_t>(added);
  if (pages_.capacity() < wanted) pages_.reserve(std::max(wanted, 2 * pages_.capacity()));
  if (slabs_.capacity() == slabs_.size()) slabs_.reserve(std::max<std::size_t>(4, 2 * slabs_.size()));
  platform::AlignedBuffer memory(static_cast<std::size_t>(bytes));
  // From here on nothing fails. Pages are handed out in ascending order of their addresses.
  auto* const first = memory.as<char>();
  slabs_.push_back(std::move(memory));
  const auto old_total = static_cast<PageId>(pages_.size());
  for (std::int64_t i = 0; i < added; ++i) {
    const bool last = i + 1 == added;
    pages_.push_back({first + i * page_bytes, 0, 0, last ? first_free_ : old_total + static_cast<PageId>(i) + 1});
  }
  first_free_ = old_total;
  free_count_ += added;
}

PageId PagePool::acquire() noexcept {
  const PageId page = first_free_;
  first_free_ = pages_[page].next_free;
  --free_count_;
  pages_[page].holders = 1;
  return page;
}

void PagePool::release(PageId page) noexcept {
  if (--pages_[page].holders > 0) return;
  pages_[page].next_free = first_free_;
  first_free_ = page;
  ++free_count_;
}

}  // namespace polyhead::cache
