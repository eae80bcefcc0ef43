#include "plan/attention_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "platform/aligned_memory.hpp"
#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

// Keys a call, and the size of the identity that they are multiplied with: attention over values that are unit vectors is the
// weights themselves, with every mask and score change that the kernels know, and what is hidden weighs exactly 0.
constexpr std::int64_t keys_per_call = 256;
constexpr std::int64_t most_rows = 48;
constexpr std::int64_t weights_bytes = 1024 * 1024;  // of a thread

template <typename T>
T* at(T* base, std::ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
}

// As which the kernel reads keys: integers are brought back to numbers first.
DType dtype_of_keys(const AttentionOperands& operands) {
  const DType dtype = operands.shape.of_keys();
  return dtype == DType::i8 ? DType::f32 : dtype;
}

// Unit vectors, exact in every type.
platform::AlignedBuffer make_identity(DType dtype) {
  platform::AlignedBuffer buffer(static_cast<std::size_t>(keys_per_call * keys_per_call * size_in_bytes(dtype)));
  const auto fill = [](auto* elements, auto one) {
    std::fill(elements, elements + keys_per_call * keys_per_call, decltype(one){});
    for (std::int64_t i = 0; i < keys_per_call; ++i) elements[i * keys_per_call + i] = one;
  };
  switch (dtype) {
    case DType::bf16:
      fill(buffer.as<std::uint16_t>(), std::uint16_t{0x3f80});
      break;
    case DType::f16:
      fill(buffer.as<std::uint16_t>(), std::uint16_t{0x3c00});
      break;
    default:
      fill(buffer.as<float>(), 1.0f);
      break;
  }
  return buffer;
}

// One head's operands, as if there were no other: kv head 0, a group of 1. Keys in pages are copied out of them for each call.
AttentionOperands of_head(const AttentionOperands& operands, std::int64_t head) {
  AttentionOperands one = operands;
  const std::int64_t kv_head = head / operands.shape.group();
  const DType dtype = dtype_of_keys(operands);
  const auto item_bytes = static_cast<std::ptrdiff_t>(size_in_bytes(dtype));
  one.shape.heads = one.shape.kv_heads = 1;
  one.shape.value_dim = keys_per_call;
  one.shape.key_dtype = dtype;
  one.shape.out_dtype = DType::f32;
  one.query = at(one.query, head * one.query_strides[1]);
  if (operands.pages) {
    one.pages = nullptr;
    one.key = nullptr;  // until a call's keys are gathered
    one.key_strides[0] = one.key_strides[1] = 0;
    one.key_strides[2] = operands.shape.head_dim * item_bytes;
  } else {
    one.key = at(one.key, kv_head * one.key_strides[1]);
  }
  ScoreOperands& scores = one.scores;
  if (scores.boolean_mask) scores.boolean_mask = at(scores.boolean_mask, head * scores.mask_strides[1]);
  if (scores.bias) scores.bias = at(scores.bias, head * scores.bias_strides[1]);
  if (scores.relative.rows) scores.relative.rows = at(scores.relative.rows, head * scores.relative.head_stride);
  if (scores.block_mask.blocks) scores.block_mask.blocks = at(scores.block_mask.blocks, head * scores.block_mask.strides[1]);
  if (scores.alibi_slopes) scores.alibi_slopes = at(scores.alibi_slopes, head * scores.alibi_stride);
  if (scores.sink) scores.sink = at(scores.sink, head * scores.sink_stride);
  scores.first_head += head;
  one.value_strides[0] = one.value_strides[1] = 0;
  one.value_strides[2] = keys_per_call * item_bytes;
  return one;
}

// Copies keys [begin, end) of a batch item and kv head out of their pages, one behind another.
void copy_keys(const AttentionOperands& o, std::int64_t batch, std::int64_t kv_head, std::int64_t begin, std::int64_t end,
               char* to) {
  const KeyPages& pages = o.pages[batch];
  const bool integers = o.shape.of_keys() == DType::i8;
  const std::int64_t head_dim = o.shape.head_dim;
  const std::int64_t row_bytes = head_dim * size_in_bytes(dtype_of_keys(o));
  const float* const mean = integers ? pages.channels + kv_head * 2 * (head_dim + o.shape.value_dim) : nullptr;
  const float* const channel = integers ? mean + head_dim : nullptr;
  for (std::int64_t s = begin; s < end; ++s, to += row_bytes) {
    const std::int64_t page = s / o.page_keys, place = s - page * o.page_keys;
    const char* const base = static_cast<const char*>(pages.table[page - pages.first_page]) + kv_head * o.key_strides[1];
    const char* const key = base + place * o.key_strides[2];
    if (!integers) {
      std::memcpy(to, key, static_cast<std::size_t>(row_bytes));
      continue;
    }
    const float scale = reinterpret_cast<const float*>(base + o.key_scale_in_page)[place];
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const float integer = static_cast<float>(reinterpret_cast<const std::int8_t*>(key)[d]);
      reinterpret_cast<float*>(to)[d] = mean[d] + channel[d] * (integer * scale);
    }
  }
}

// What a thread works with.
struct Slot {
  platform::AlignedBuffer scratch, partial, weights, keys;
  std::vector<double> received;
  std::vector<float> shifts, denominators;  // [row][call]
};

class WeightsRun {
 public:
  WeightsRun(const AttentionOperands& operands, const WeightsOperands& wanted, const dispatch::KernelTable& kernels, int slots)
      : operands_(operands), wanted_(wanted), slots_(static_cast<std::size_t>(slots)) {
    // Weights are wanted as f32: kernels that take 16 bits as they are round them before they multiply values, and leave their
    // place to those that widen.
    const DType dtype = dtype_of_keys(operands);
    choice_.kernel = dispatch::attention_kernels(dispatch::mixing_table(kernels, dtype), dtype).transposed;
    choice_.merge = kernels.merge_f32;
    choice_.key_split = round_up(keys_per_call, choice_.kernel->key_block);
    const std::int64_t keys = std::max<std::int64_t>(operands.shape.key_length, 1);
    rows_ = std::clamp<std::int64_t>(weights_bytes / (keys * static_cast<std::int64_t>(sizeof(float))), 1,
                                     std::clamp<std::int64_t>(wanted.row_count, 1, most_rows));
    calls_ = divide_up(keys, keys_per_call);
    identity_ = make_identity(dtype);
    for (Slot& slot : slots_) {
      slot.scratch.reserve(operands.mask_room.bytes() +
                           choice_.kernel->scratch_bytes(operands.shape.head_dim, keys_per_call, choice_.key_split));
      slot.partial.reserve(static_cast<std::size_t>(rows_ * (keys_per_call + 2)) * sizeof(float));
      slot.weights.reserve(static_cast<std::size_t>(rows_ * calls_ * keys_per_call) * sizeof(float));
      if (operands.pages) {
        slot.keys.reserve(static_cast<std::size_t>(choice_.key_split * operands.shape.head_dim * size_in_bytes(dtype)));
      }
      slot.shifts.resize(static_cast<std::size_t>(rows_ * calls_));
      slot.denominators.resize(static_cast<std::size_t>(rows_ * calls_));
      if (wanted.received) slot.received.resize(static_cast<std::size_t>(wanted.key_count));
    }
    // Of the received attention all rows are added up in order, by one thread.
    row_pieces_ = wanted.received ? 1 : divide_up(wanted.row_count, rows_);
  }

  std::int64_t items() const { return wanted_.batch * wanted_.head_count * row_pieces_; }

  void run_item(std::int64_t item, int slot_index) {
    Slot& slot = slots_[static_cast<std::size_t>(slot_index)];
    const std::int64_t piece = item % row_pieces_, head_index = item / row_pieces_ % wanted_.head_count;
    const std::int64_t batch = item / row_pieces_ / wanted_.head_count;
    const AttentionOperands one = of_head(operands_, wanted_.heads[head_index]);
    const std::int64_t begin = wanted_.received ? 0 : piece * rows_;
    const std::int64_t end = wanted_.received ? wanted_.row_count : std::min(begin + rows_, wanted_.row_count);
    std::fill(slot.received.begin(), slot.received.end(), 0.0);
    for (std::int64_t row = begin; row < end;) {
      // Chosen rows that follow each other are computed together.
      std::int64_t last = row + 1;
      while (last < end && last - row < rows_ && wanted_.rows[last] == wanted_.rows[last - 1] + 1) ++last;
      rows_of_item(one, batch, head_index, row, last, slot);
      row = last;
    }
    if (!wanted_.received) return;
    float* const received =
        at(wanted_.received, batch * wanted_.received_strides[0] + head_index * wanted_.received_strides[1]);
    for (std::int64_t s = 0; s < wanted_.key_count; ++s) {
      *at(received, s * wanted_.received_strides[2]) = static_cast<float>(slot.received[static_cast<std::size_t>(s)]);
    }
  }

 private:
  float* weights_of(std::int64_t batch, std::int64_t head_index, std::int64_t row_index) const {
    return at(wanted_.weights, batch * wanted_.weights_strides[0] + head_index * wanted_.weights_strides[1] +
                                   row_index * wanted_.weights_strides[2]);
  }

  // The chosen rows [begin, end), which follow each other.
  void rows_of_item(const AttentionOperands& one, std::int64_t batch, std::int64_t head_index, std::int64_t begin,
                    std::int64_t end, Slot& slot) {
    if (wanted_.weights) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* const weights = weights_of(batch, head_index, row);
        for (std::int64_t s = 0; s < wanted_.key_count; ++s) *at(weights, s * wanted_.weights_strides[3]) = 0.0f;
      }
    }
    const std::int64_t first = wanted_.rows[begin], last = first + (end - begin);
    if (!one.sequences) return rows_of_sequence(one, batch, 0, 0, first, last, batch, head_index, begin, slot);
    for (std::int64_t i = 0; i < one.sequence_count; ++i) {
      const Sequence& sequence = one.sequences[i];
      if (sequence.batch != batch || sequence.key_length == 0) continue;
      const std::int64_t from = std::max(first, sequence.query_begin),
                         to = std::min(last, sequence.query_begin + sequence.query_length);
      if (from >= to) continue;
      rows_of_sequence(one, i, sequence.query_begin, sequence.key_begin, from, to, batch, head_index, begin + from - first,
                       slot);
    }
  }

  // The keys that any of a sequence's rows sees. Where the first rows see a prefix, the last may see keys behind it.
  static KeyRange keys_of_rows(const AttentionOperands& one, std::int64_t item, std::int64_t begin, std::int64_t end) {
    KeyRange range = key_range(one, item, begin, end);
    range.end = std::max(range.end, key_range(one, item, end - 1, end).end);
    return range;
  }

  // Brings the keys of a call together where they lie in pages; those that no row of `seen` sees are not asked for.
  void gather_keys(AttentionOperands& one, const KeyRange& seen, std::int64_t batch, std::int64_t kv_head, std::int64_t first,
                   std::int64_t end, Slot& slot) const {
    if (first >= seen.end || end <= seen.begin) return;
    const std::int64_t begin = std::clamp(operands_.pages[batch].first_key, first, end);
    char* const keys = slot.keys.as<char>();
    const std::ptrdiff_t row_bytes = one.key_strides[2];
    // What is gone no row sees, but a block that begins with it is read whole.
    std::memset(keys, 0, static_cast<std::size_t>((begin - first) * row_bytes));
    copy_keys(operands_, batch, kv_head, begin, end, keys + (begin - first) * row_bytes);
    one.key =
        reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(keys) - static_cast<std::uintptr_t>(first * row_bytes));
  }

  // Queries [from, to) of the batch item, which are an item's (a sequence's) queries from `query_begin` on.
  void rows_of_sequence(AttentionOperands one, std::int64_t item, std::int64_t query_begin, std::int64_t key_begin,
                        std::int64_t from, std::int64_t to, std::int64_t batch, std::int64_t head_index, std::int64_t row_index,
                        Slot& slot) {
    const std::int64_t keys = own_shape(one, item).key_length, calls = divide_up(keys, choice_.key_split);
    const std::int64_t rows = to - from, width = keys_per_call + 2;
    float* const weights = slot.weights.as<float>();
    float* const partial = slot.partial.as<float>();
    const KeyRange seen = operands_.pages ? keys_of_rows(one, item, from - query_begin, to - query_begin) : KeyRange{};
    const std::int64_t kv_head = wanted_.heads[head_index] / operands_.shape.group();
    for (std::int64_t call = 0; call < calls; ++call) {
      if (operands_.pages) {
        const std::int64_t first_key = call * choice_.key_split;
        gather_keys(one, seen, batch, kv_head, first_key, std::min(first_key + choice_.key_split, keys), slot);
      }
      // The kernel finds key s's value at + s * stride: the call's first key meets the first unit vector.
      one.value = reinterpret_cast<const void*>(
          reinterpret_cast<std::uintptr_t>(identity_.data()) -
          static_cast<std::uintptr_t>((key_begin + call * choice_.key_split) * one.value_strides[2]));
      run_rows_of_split(choice_, one, item, 0, from - query_begin, to - query_begin, call, partial, slot.scratch.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(weights + (r * calls_ + call) * keys_per_call, partial + r * width, keys_per_call * sizeof(float));
        slot.shifts[static_cast<std::size_t>(r * calls_ + call)] = partial[r * width + keys_per_call];
        slot.denominators[static_cast<std::size_t>(r * calls_ + call)] = partial[r * width + keys_per_call + 1];
      }
    }
    constexpr double log2_e = 1.4426950408889634;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const shifts = slot.shifts.data() + r * calls_;
      const float* const denominators = slot.denominators.data() + r * calls_;
      double shift = one.scores.sink ? static_cast<double>(*one.scores.sink) * log2_e : -HUGE_VAL;
      for (std::int64_t call = 0; call < calls; ++call) {
        if (denominators[call] != 0.0f && !(static_cast<double>(shifts[call]) <= shift))
          shift = static_cast<double>(shifts[call]);
      }
      double sum = one.scores.sink ? std::exp2(static_cast<double>(*one.scores.sink) * log2_e - shift) : 0.0;
      for (std::int64_t call = 0; call < calls; ++call) {
        if (denominators[call] == 0.0f) continue;
        sum += static_cast<double>(denominators[call]) * std::exp2(static_cast<double>(shifts[call]) - shift);
      }
      float* const out = wanted_.weights ? weights_of(batch, head_index, row_index + r) : nullptr;
      for (std::int64_t call = 0; call < calls; ++call) {
        if (denominators[call] == 0.0f) continue;
        const double factor = std::exp2(static_cast<double>(shifts[call]) - shift) / sum;
        const float* const from_call = weights + (r * calls_ + call) * keys_per_call;
        const std::int64_t first_key = call * choice_.key_split, count = std::min(choice_.key_split, keys - first_key);
        for (std::int64_t i = 0; i < count; ++i) {
          const float weight = static_cast<float>(factor * static_cast<double>(from_call[i]));
          const std::int64_t key = key_begin + first_key + i;
          if (out) *at(out, key * wanted_.weights_strides[3]) = weight;
          if (wanted_.received) slot.received[static_cast<std::size_t>(key)] += static_cast<double>(weight);
        }
      }
    }
  }

  const AttentionOperands& operands_;
  const WeightsOperands& wanted_;
  AttentionChoice choice_;
  platform::AlignedBuffer identity_;
  std::int64_t rows_ = 1, calls_ = 1, row_pieces_ = 1;
  std::vector<Slot> slots_;
};

}  // namespace

void run_weights(const AttentionOperands& operands, const WeightsOperands& wanted, const dispatch::KernelTable& kernels,
                 graph::Scheduler& scheduler) {
  WeightsRun run(operands, wanted, kernels, scheduler.slots());
  scheduler.parallel_for(
      static_cast<std::size_t>(run.items()),
      [](void* context, std::size_t item, int slot) {
        static_cast<WeightsRun*>(context)->run_item(static_cast<std::int64_t>(item), slot);
      },
      &run);
}

}  // namespace polyhead::plan
