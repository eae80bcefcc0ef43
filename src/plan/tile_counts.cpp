#include "plan/tile_counts.hpp"

#include <algorithm>

#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

// Rows [begin, end) of a kv head that fill a kernel's registers together, and the keys that one of them sees.
struct Rows {
  const simd::AttentionKernel* kernel;
  std::int64_t begin, end;
  KeyRange keys;
};

// Of one kv head.
template <typename Function>
void for_each_row_block(const AttentionChoice& choice, const AttentionOperands& operands, const Function& function) {
  const std::int64_t rows = operands.shape.rows(), cut = choice.rest_kernel ? choice.rest_begin : rows;
  const auto of_kernel = [&](const simd::AttentionKernel* kernel, std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kernel->row_block) {
      const std::int64_t block_end = std::min(begin + kernel->row_block, end);
      function(Rows{kernel, begin, block_end, key_range(operands, 0, begin, block_end)});
    }
  };
  of_kernel(choice.kernel, 0, cut);
  if (cut < rows) of_kernel(choice.rest_kernel, cut, rows);
}

// Tiles' key blocks that one of the rows sees: [kept_begin, kept_end) and [begin, end).
struct KeyBlocks {
  std::int64_t key_block, kept_begin = 0, kept_end = 0, begin = 0, end = 0;

  KeyBlocks(const Rows& rows, const AttentionShape& shape) : key_block(tile_keys(*rows.kernel, shape)) {
    const KeyRange& keys = rows.keys;
    const std::int64_t group = shape.group();
    if (keys.begin >= keys.end) return;
    begin = keys.begin / key_block;
    end = divide_up(keys.end, key_block);
    if (keys.kept_end <= keys.begin) return;
    kept_begin = begin;
    kept_end = std::min(divide_up(keys.kept_end, key_block), end);
    const std::int64_t visible =
        simd::next_seen_block(rows.begin / group, kept_end * key_block, key_block, keys.visible_begin, 0);
    begin = std::min(visible / key_block, end);
  }

  std::int64_t count() const { return kept_end - kept_begin + end - begin; }
  template <typename Function>
  void for_each(const Function& function) const {
    for (std::int64_t block = kept_begin; block < kept_end; ++block) function(block);
    for (std::int64_t block = begin; block < end; ++block) function(block);
  }
};

}  // namespace

TileCounts count_tiles(const AttentionChoice& choice, const AttentionOperands& operands) {
  const std::int64_t keys = operands.shape.key_length, group = operands.shape.group();
  TileCounts counts;
  for_each_row_block(choice, operands, [&](const Rows& rows) {
    const KeyBlocks blocks(rows, operands.shape);
    const std::int64_t key_block = blocks.key_block;
    counts.skipped += divide_up(keys, key_block) - blocks.count();
    blocks.for_each([&](std::int64_t block) {
      const auto kind = simd::classify_tile(rows.begin / group, (rows.end - 1) / group, block * key_block,
                                            std::min((block + 1) * key_block, keys), rows.keys.visible_begin,
                                            rows.keys.visible_end, rows.keys.kept_end);
      ++(kind == simd::TileClass::full ? counts.full : counts.partial);
    });
  });
  const std::int64_t heads = operands.shape.batch * operands.shape.kv_heads;
  return {counts.skipped * heads, counts.full * heads, counts.partial * heads};
}

std::optional<TileCounts> ask_classifier(const AttentionChoice& choice, const AttentionOperands& operands,
                                         const simd::ScoreMod& mod, std::int64_t most) {
  const std::int64_t group = operands.shape.group(), heads = operands.shape.batch * operands.shape.kv_heads;
  // Counted row block by row block, without a look at each tile: there may be millions.
  std::int64_t tiles = 0;
  for_each_row_block(choice, operands, [&](const Rows& rows) { tiles += KeyBlocks(rows, operands.shape).count(); });
  if (heads > 0 && tiles > most / heads) return std::nullopt;
  TileCounts counts;
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t first_head = head % operands.shape.kv_heads * group;
    for_each_row_block(choice, operands, [&](const Rows& rows) {
      const std::int64_t first = rows.begin / group, last = (rows.end - 1) / group;
      const bool one_query = first == last;
      simd::ScoreModRange range;
      range.batch = head / operands.shape.kv_heads;
      range.head_begin = first_head + (one_query ? rows.begin % group : 0);
      range.head_end = one_query ? range.head_begin + (rows.end - rows.begin) : first_head + group;
      range.query_begin = first;
      range.query_end = last + 1;
      const KeyBlocks blocks(rows, operands.shape);
      const std::int64_t key_block = blocks.key_block;
      blocks.for_each([&](std::int64_t block) {
        const simd::SeenKeys seen = rows.keys.seen_by(first, last, block * key_block, (block + 1) * key_block);
        range.key_begin = seen.begin / 4 * 4;  // most kernels begin at multiples of four
        range.key_end = seen.end;
        switch (mod.classify(mod.context, range)) {
          case simd::TileClass::skip:
            ++counts.skipped;
            break;
          case simd::TileClass::full:
            ++counts.full;
            break;
          case simd::TileClass::partial:
            ++counts.partial;
            break;
        }
      });
    });
  }
  return counts;
}

}  // namespace polyhead::plan
