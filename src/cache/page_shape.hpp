// How the tokens of a page lie in memory: as the attention kernels read them, so that nothing is packed again.
//
//     page = [kv_head][ key [tokens][head_dim] | value [tokens][value_dim] ]
//
// A head's keys follow one another, then its values: what one piece of attention reads is two straight runs a page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::cache {

struct PageShape {
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t tokens = 0;         // of a page
  std::int64_t element_bytes = 0;  // of the storage type

  // All in bytes.
  std::int64_t key_stride() const { return head_dim * element_bytes; }
  std::int64_t value_stride() const { return value_dim * element_bytes; }
  std::int64_t token_bytes() const { return kv_heads * (key_stride() + value_stride()); }
  std::int64_t head_stride() const { return tokens * (key_stride() + value_stride()); }
  std::int64_t value_in_page() const { return tokens * key_stride(); }
  std::int64_t bytes() const { return kv_heads * head_stride(); }
};

}  // namespace polyhead::cache
