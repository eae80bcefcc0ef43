// How the tokens of a page lie in memory: as the attention kernels read them, so that nothing is packed again.
//
//     page = [kv_head][ key [tokens][head_dim] | value [tokens][value_dim] ]
//
// A head's keys follow one another, then its values: what one piece of attention reads is two straight runs a page. Integers
// have a scale for each token behind them, which kernels read by the vector:
//
//     page = [kv_head][ key [tokens][head_dim] | key scale [tokens] | value [tokens][value_dim] | value scale [tokens] ]
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::cache {

struct PageShape {
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t tokens = 0;         // of a page
  std::int64_t element_bytes = 0;  // of the storage type
  std::int64_t scale_bytes = 0;    // of a token's and head's key, and of its value; 0: there are none

  // All in bytes.
  std::int64_t key_stride() const { return head_dim * element_bytes; }
  std::int64_t value_stride() const { return value_dim * element_bytes; }
  std::int64_t token_bytes() const { return kv_heads * (key_stride() + value_stride() + 2 * scale_bytes); }
  std::int64_t head_stride() const { return value_scale_in_page() + tokens * scale_bytes; }
  std::int64_t key_scale_in_page() const { return before_scales(tokens * key_stride()); }
  std::int64_t value_in_page() const { return key_scale_in_page() + tokens * scale_bytes; }
  std::int64_t value_scale_in_page() const { return value_in_page() + before_scales(tokens * value_stride()); }
  std::int64_t bytes() const { return kv_heads * head_stride(); }

 private:
  // Scales lie at multiples of their size.
  std::int64_t before_scales(std::int64_t size) const {
    return scale_bytes == 0 ? size : (size + scale_bytes - 1) / scale_bytes * scale_bytes;
  }
};

}  // namespace polyhead::cache
