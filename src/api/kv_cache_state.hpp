// What a KvCache handle holds.
#pragma once

#include <memory>
#include <vector>

#include "cache/store.hpp"
#include "polyhead/kv_cache.hpp"

namespace polyhead::detail {

class KvCacheState {
 public:
  explicit KvCacheState(std::unique_ptr<cache::Store> store);

  const cache::Store& store() const noexcept { return *store_; }
  cache::Store& store() noexcept { return *store_; }

  // Room for one append's arguments, so that it allocates nothing.
  std::vector<cache::AppendItem> items;  // [sequences]
  std::vector<std::uint8_t> named;       // [sequences], 0 between calls

 private:
  std::unique_ptr<cache::Store> store_;
};

}  // namespace polyhead::detail
