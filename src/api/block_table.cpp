#include "api/block_table.hpp"

#include <algorithm>
#include <new>
#include <string>

#include "api/checks.hpp"
#include "platform/rounding.hpp"

namespace polyhead::api {
namespace {

std::int64_t number_at(const TensorView& table, std::int64_t b, std::int64_t i) {
  const std::int64_t at = (table.shape[0] == 1 ? 0 : b * table.strides[0]) + (table.shape[1] == 1 ? 0 : i * table.strides[1]);
  return table.dtype == DType::i32 ? static_cast<const std::int32_t*>(table.data)[at]
                                   : static_cast<const std::int64_t*>(table.data)[at];
}

void check_pages(const char* name, const TensorView& view) {
  if (view.shape[3] > 1 && view.strides[3] != 1) {
    fail(name, view.describe(), "a last dimension with a stride of 1, since pages are read where they lie");
  }
}

}  // namespace

std::int64_t check_block_table(const AttentionSpec& spec, const AttentionInputs& inputs, std::int64_t batch) {
  const TensorView& table = inputs.block_table;
  if (!spec.mask.has_key_lengths) {
    fail("AttentionSpec.mask.has_key_lengths", "false", "true with a block table, whose pages hold more than an item's keys");
  }
  const bool fits = table.rank == 2 && table.shape[0] == batch && (table.dtype == DType::i32 || table.dtype == DType::i64);
  if (!fits) fail("block_table", table.describe(), "i32 or i64 [" + std::to_string(batch) + ", pages of an item]");
  check_memory("block_table", table);
  check_tensor("key", inputs.key, spec.key_dtype.value_or(spec.dtype), {-1, spec.kv_heads, -1, spec.head_dim});
  check_pages("key", inputs.key);
  std::int64_t room = 0;
  if (__builtin_mul_overflow(table.shape[1], inputs.key.shape[2], &room)) {
    fail("block_table", table.describe(), "keys that 64 bits can count");
  }
  return room;
}

void check_pages_of_values(const AttentionSpec& spec, const AttentionInputs& inputs) {
  check_tensor("value", inputs.value, inputs.key.dtype,
               {inputs.key.shape[0], spec.kv_heads, inputs.key.shape[2], spec.value_dim});
  check_pages("value", inputs.value);
  if (inputs.key.shape[0] > 1 && inputs.key.strides[0] != inputs.value.strides[0]) {
    fail("value", "of pages " + std::to_string(inputs.value.strides[0]) + " elements apart",
         "pages as far apart as key's, " + std::to_string(inputs.key.strides[0]) + " elements");
  }
}

std::size_t block_table_bytes(const AttentionInputs& inputs) {
  if (inputs.block_table.empty()) return 0;
  const auto batch = static_cast<std::size_t>(inputs.block_table.shape[0]),
             pages = static_cast<std::size_t>(inputs.block_table.shape[1]);
  return whole_lines(batch * sizeof(plan::KeyPages)) + whole_lines(batch * pages * sizeof(const void*));
}

void read_block_table(const AttentionInputs& inputs, void* memory, plan::AttentionOperands* operands) {
  const TensorView &table = inputs.block_table, &key = inputs.key;
  const std::int64_t batch = table.shape[0], pages = table.shape[1], page_keys = key.shape[2];
  const std::int64_t item_bytes = size_in_bytes(key.dtype);
  auto* const items = static_cast<plan::KeyPages*>(memory);
  auto** const addresses = reinterpret_cast<const void**>(
      static_cast<char*>(memory) + whole_lines(static_cast<std::size_t>(batch) * sizeof(plan::KeyPages)));
  for (std::int64_t b = 0; b < batch; ++b) {
    const void** const own = addresses + b * pages;
    const std::int64_t read = page_keys == 0 ? 0 : divide_up(operands->key_lengths[b], page_keys);
    for (std::int64_t i = 0; i < read; ++i) {
      const std::int64_t page = number_at(table, b, i);
      if (page < 0 || page >= key.shape[0]) {
        fail(("block_table[" + std::to_string(b) + ", " + std::to_string(i) + "]").c_str(), std::to_string(page),
             "0 to " + std::to_string(key.shape[0] - 1) + ", a page of key");
      }
      own[i] = static_cast<const char*>(key.data) + (key.shape[0] == 1 ? 0 : page * key.strides[0] * item_bytes);
    }
    new (items + b) plan::KeyPages{own, 0, 0};
  }
  operands->pages = items;
  operands->page_keys = std::max<std::int64_t>(page_keys, 1);
  operands->value_in_page = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(inputs.value.data) -
                                                        reinterpret_cast<std::uintptr_t>(key.data));
}

}  // namespace polyhead::api
