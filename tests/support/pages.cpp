#include "support/pages.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace polyhead::testing {

Pages::Pages(const AttentionCase& test, std::int64_t tokens, std::int64_t spare_columns, bool tokens_first, Random& random) {
  const std::int64_t batch = test.spec.batch, heads = test.spec.kv_heads;
  const std::int64_t row = (test.spec.key_length + tokens - 1) / tokens + spare_columns, count = batch * row + 2;
  // Pages of keys are as far apart as those of values, which may be shorter.
  const std::int64_t page = heads * tokens * std::max(test.spec.head_dim, test.spec.value_dim);
  const auto pages_of = [&](std::int64_t dim) {
    return Tensor(test.key.view().dtype, {count, heads, tokens, dim},
                  {page, tokens_first ? dim : tokens * dim, tokens_first ? heads * dim : dim, 1});
  };
  key = pages_of(test.spec.head_dim);
  value = pages_of(test.spec.value_dim);
  fill(key, std::numeric_limits<double>::quiet_NaN());
  fill(value, std::numeric_limits<double>::quiet_NaN());
  const bool packed = test.spec.mask.is_packed;
  table = Tensor(random.choice({DType::i32, DType::i64}), {batch, row});
  fill(table, -1000.0);  // what lies beyond a length is not looked at
  std::vector<std::int64_t> free;
  for (std::int64_t i = 0; i < count; ++i) free.push_back(i);
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto length = static_cast<std::int64_t>(test.key_lengths({b}));
    const std::int64_t item = packed ? 0 : b, begin = packed ? static_cast<std::int64_t>(test.cumulative_key_lengths({b})) : 0;
    for (std::int64_t first = 0; first < length; first += tokens) {
      const auto pick = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(free.size()) - 1));
      const std::int64_t number = free[pick], end = std::min(length, first + tokens);
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(pick));
      table.set({b, first / tokens}, static_cast<double>(number));
      const auto deal_out = [&](const Tensor& from, const Tensor& to) {
        copy(slice(select(from, item), 1, begin + first, begin + end), slice(select(to, number), 1, 0, end - first));
      };
      deal_out(test.key, key);
      deal_out(test.value, value);
    }
  }
}

AttentionInputs Pages::inputs(AttentionInputs plain) const {
  plain.key = key;
  plain.value = value;
  plain.block_table = table;
  plain.cumulative_key_lengths = {};
  return plain;
}

}  // namespace polyhead::testing
