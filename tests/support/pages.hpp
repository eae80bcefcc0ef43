// A case's keys and values in pages of the caller's own arrays, as a block table names them.
#pragma once

#include <cstdint>

#include "support/attention_case.hpp"

namespace polyhead::testing {

// The keys and values of each batch item or packed sequence, up to its key length, dealt out to pages that lie in any order.
// What belongs to no key is NaN: the rest of an item's last page, pages that nothing names. The table has -1000 for pages
// beyond an item's length.
struct Pages {
  Tensor key, value, table;

  // `tokens` keys a page; the table has `spare_columns` more than the longest item needs. `tokens_first`: memory
  // [page, token, head, dim], as caches of other libraries have it.
  Pages(const AttentionCase& test, std::int64_t tokens, std::int64_t spare_columns, bool tokens_first, Random& random);

  // A run's, instead of those with key and value in one tensor each. Of packed sequences queries alone stay packed.
  AttentionInputs inputs(AttentionInputs plain) const;
};

}  // namespace polyhead::testing
