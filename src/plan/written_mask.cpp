#include "plan/written_mask.hpp"

#include <algorithm>
#include <cstring>

#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

constexpr std::int64_t keys_per_mark = simd::AttentionF32Args::keys_per_mark;
// As much as a second-level cache holds, but whole blocks of every target's rows: a rest would leave lanes empty.
constexpr std::int64_t room_bytes = 1024 * 1024;
constexpr std::int64_t block_rows = 48, most_blocks = 4;

const std::uint8_t* at(const std::uint8_t* base, std::ptrdiff_t bytes) {
  return base + bytes;
}

// Calls function(begin, end, visible) for the stretches of keys that the blocks of query t give, in order.
template <typename Function>
void for_each_stretch(const HiddenKeys& hidden, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
                      const Function& function) {
  const std::uint8_t* row = at(hidden.blocks, (hidden.first_query + query) / hidden.block_queries * hidden.block_strides[0]);
  std::int64_t block = (hidden.first_key + key_begin) / hidden.block_keys;
  for (std::int64_t key = key_begin; key < key_end; ++block) {
    const std::int64_t end = std::min(key_end, (block + 1) * hidden.block_keys - hidden.first_key);
    function(key, end, *at(row, block * hidden.block_strides[1]) != 0);
    key = end;
  }
}

void write_segments(const HiddenKeys& hidden, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
                    std::uint8_t* to) {
  const std::int32_t own = hidden.query_segments[query];
  for (std::int64_t key = key_begin; key < key_end; ++key) to[key] = hidden.key_segments[key] == own ? 1 : 0;
}

void keep_allowed(const std::uint8_t* allowed, std::ptrdiff_t key_stride, std::int64_t key_begin, std::int64_t key_end,
                  std::uint8_t* to) {
  if (key_stride == 1) {
    for (std::int64_t key = key_begin; key < key_end; ++key) to[key] = static_cast<std::uint8_t>(to[key] & (allowed[key] != 0));
    return;
  }
  for (std::int64_t key = key_begin; key < key_end; ++key) {
    to[key] = static_cast<std::uint8_t>(to[key] & (*at(allowed, key * key_stride) != 0));
  }
}

// One row: to[key] for key in [key_begin, key_end).
void write_row(const HiddenKeys& hidden, std::int64_t query, std::int64_t head, std::int64_t key_begin, std::int64_t key_end,
               std::uint8_t* to) {
  if (hidden.query_segments) write_segments(hidden, query, key_begin, key_end, to);
  if (hidden.blocks) {
    const bool first = hidden.query_segments == nullptr;
    for_each_stretch(hidden, query, key_begin, key_end, [&](std::int64_t begin, std::int64_t end, bool visible) {
      if (first || !visible) std::memset(to + begin, visible ? 1 : 0, static_cast<std::size_t>(end - begin));
    });
  }
  if (hidden.boolean_mask) {
    keep_allowed(at(hidden.boolean_mask, query * hidden.boolean_strides[0] + head * hidden.boolean_strides[1]),
                 hidden.boolean_strides[2], key_begin, key_end, to);
  }
}

// Raises the marks of the keys that a row sees. Its bytes up to a whole mark are there to be read.
void mark_row(const std::uint8_t* row, std::int64_t key_begin, std::int64_t key_end, std::uint8_t* marks) {
  for (std::int64_t mark = key_begin / keys_per_mark; mark * keys_per_mark < key_end; ++mark) {
    std::uint64_t words[keys_per_mark / 8];
    std::memcpy(words, row + mark * keys_per_mark, sizeof words);
    std::uint64_t any = 0;
    for (const std::uint64_t word : words) any |= word;
    if (any != 0) marks[mark] = simd::keys_seen;
  }
}

}  // namespace

MaskRoom mask_room(std::int64_t key_length, std::int64_t group, const Mask& mask) {
  MaskRoom room;
  if (!mask.has_segments && mask.block_queries == 0) return room;
  room.row_bytes = round_up(std::max<std::int64_t>(key_length, 1), keys_per_mark);
  room.rows = std::max(group, std::clamp<std::int64_t>(room_bytes / room.row_bytes / block_rows, 1, most_blocks) * block_rows);
  room.marks_bytes = round_up(room.row_bytes / keys_per_mark, static_cast<std::int64_t>(platform::cache_line_bytes));
  return room;
}

void write_mask(const HiddenKeys& hidden, const MaskRoom& room, void* memory, std::int64_t query_begin, std::int64_t query_end,
                std::int64_t heads, bool one_row, std::int64_t key_block, KeyGap gap, simd::AttentionF32Args& args) {
  auto* const rows = static_cast<std::uint8_t*>(memory);
  std::uint8_t* const marks = rows + room.rows * room.row_bytes;
  const std::int64_t begin = args.key_begin, end = args.key_end;
  const std::int64_t first_mark = begin / keys_per_mark, end_mark = divide_up(end, keys_per_mark);
  std::memset(marks + first_mark, 0, static_cast<std::size_t>(end_mark - first_mark));
  // In the gap marks alone tell that nothing is seen.
  const std::int64_t gap_begin = std::clamp(round_up(gap.begin, keys_per_mark), begin, end);
  const std::int64_t gap_end = std::clamp(gap.end / keys_per_mark * keys_per_mark, gap_begin, end);
  const auto for_each_part = [&](const auto& function) {
    if (begin < gap_begin && gap_begin < gap_end) function(begin, gap_begin);
    function(gap_begin < gap_end ? gap_end : begin, end);
  };
  std::int64_t written = 0;
  const std::int64_t last = one_row ? query_begin + 1 : query_end;
  // Queries of one row of blocks see alike when nothing else hides keys: written once, then copied.
  const bool copies = !hidden.query_segments && !hidden.boolean_mask;
  for (std::int64_t query = query_begin; query < last; ++query) {
    for (std::int64_t head = 0; head < heads; ++head, ++written) {
      std::uint8_t* const row = rows + written * room.row_bytes;
      if (copies && written > 0 && (head > 0 || (hidden.first_query + query) % hidden.block_queries != 0)) {
        for_each_part([&](std::int64_t from, std::int64_t to) {
          std::memcpy(row + from, row + from - room.row_bytes, static_cast<std::size_t>(round_up(to, keys_per_mark) - from));
        });
        continue;
      }
      for_each_part([&](std::int64_t from, std::int64_t to) {
        write_row(hidden, query, head, from, to, row);
        std::memset(row + to, 0, static_cast<std::size_t>(round_up(to, keys_per_mark) - to));
        mark_row(row, from, to, marks);
      });
    }
  }
  std::int64_t seen = first_mark, seen_end = end_mark;
  while (seen < seen_end && marks[seen] == 0) ++seen;
  while (seen_end > seen && marks[seen_end - 1] == 0) --seen_end;
  args.key_begin = seen * keys_per_mark / key_block * key_block;
  args.key_end = seen == seen_end ? args.key_begin : std::min(end, seen_end * keys_per_mark);
  // The kernel finds query t's row at + t * stride: the first row is query_begin's. An address, since no row lies before it.
  const std::int64_t stride = one_row ? 0 : heads * room.row_bytes;
  args.boolean_mask = reinterpret_cast<const std::uint8_t*>(reinterpret_cast<std::uintptr_t>(rows) -
                                                            static_cast<std::uintptr_t>(query_begin * stride));
  args.mask_stride = stride;
  args.mask_head_stride = heads > 1 ? room.row_bytes : 0;
  args.mask_key_stride = 1;
  args.key_marks = marks;
  args.mark_stride = 0;
}

double visible_share(const HiddenKeys& hidden, std::int64_t query, std::int64_t key_begin, std::int64_t key_end) {
  if (!hidden.blocks || key_begin >= key_end) return 1.0;
  std::int64_t visible = 0;
  for_each_stretch(hidden, query, key_begin, key_end, [&](std::int64_t begin, std::int64_t end, bool is_visible) {
    if (is_visible) visible += end - begin;
  });
  return static_cast<double>(visible) / static_cast<double>(key_end - key_begin);
}

}  // namespace polyhead::plan
