#include "plan/merge_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "platform/half.hpp"
#include "platform/rounding.hpp"

namespace polyhead::plan {
namespace {

constexpr double log2_e = 1.4426950408889634;
// Rows are brought into the form of merge_f32's partial results in pieces of this size, on the stack and in the first-level
// cache: reading and writing the operands is what a merge takes its time for.
constexpr std::int64_t stage_floats = 2048;
constexpr std::int64_t most_columns = 512;
constexpr std::int64_t most_rows = 64;

template <typename T>
T* at(T* base, std::ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + bytes);
}

constexpr std::ptrdiff_t float_bytes = static_cast<std::ptrdiff_t>(sizeof(float));

template <class Element>
void copy_columns(const Element* from, std::ptrdiff_t from_stride, Element* to, std::ptrdiff_t to_stride,
                  std::int64_t columns) {
  constexpr auto element_bytes = static_cast<std::ptrdiff_t>(sizeof(Element));
  if (from_stride == element_bytes && to_stride == element_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(columns) * sizeof(Element));
    return;
  }
  for (std::int64_t e = 0; e < columns; ++e) *at(to, e * to_stride) = *at(from, e * from_stride);
}

template <class Widen>
void widen_columns(const void* from, std::ptrdiff_t stride, float* to, std::int64_t columns, const Widen& widen) {
  const auto* const elements = static_cast<const std::uint16_t*>(from);
  if (stride == static_cast<std::ptrdiff_t>(sizeof(std::uint16_t))) {
    for (std::int64_t e = 0; e < columns; ++e) to[e] = widen(elements[e]);
    return;
  }
  for (std::int64_t e = 0; e < columns; ++e) to[e] = widen(*at(elements, e * stride));
}

// A part's elements as f32, exactly.
void read_columns(DType dtype, const void* from, std::ptrdiff_t stride, float* to, std::int64_t columns) {
  switch (dtype) {
    case DType::bf16:
      return widen_columns(from, stride, to, columns, [](std::uint16_t bits) { return platform::widen_bf16(bits); });
    case DType::f16:
      return widen_columns(from, stride, to, columns, [](std::uint16_t bits) { return platform::widen_f16(bits); });
    default:
      return copy_columns(static_cast<const float*>(from), stride, to, float_bytes, columns);
  }
}

void write_columns(DType dtype, const void* from, void* to, std::ptrdiff_t stride, std::int64_t columns) {
  if (dtype == DType::f32)
    return copy_columns(static_cast<const float*>(from), float_bytes, static_cast<float*>(to), stride, columns);
  copy_columns(static_cast<const std::uint16_t*>(from), static_cast<std::ptrdiff_t>(sizeof(std::uint16_t)),
               static_cast<std::uint16_t*>(to), stride, columns);
}

// How one row's parts stand to each other: in units of exp(reference), so that neither the size of lse nor its rounding counts.
struct RowShifts {
  double reference;
  float shift[2], denominator[2];
  float sink;
};

RowShifts shifts_of(const float lse[2], const float* sink) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  RowShifts row{};
  const bool first = std::isnan(lse[0]) || lse[0] > lse[1];
  row.reference = static_cast<double>(lse[first ? 0 : 1]);
  if (row.reference == static_cast<double>(-infinity)) row.reference = 0.0;  // no part counts
  for (int part = 0; part < 2; ++part) {
    const bool counts = lse[part] != -infinity;
    row.shift[part] = counts ? static_cast<float>((static_cast<double>(lse[part]) - row.reference) * log2_e)
                             : std::numeric_limits<float>::lowest();
    row.denominator[part] = counts ? 1.0f : 0.0f;
  }
  row.sink = sink ? static_cast<float>(static_cast<double>(*sink) - row.reference) : -infinity;
  return row;
}

// Rows [begin, begin + rows) of a head.
void merge_head_rows(const MergeOperands& o, const simd::MergeKernel& kernel, std::int64_t batch, std::int64_t head,
                     std::int64_t begin, std::int64_t rows) {
  RowShifts shifts[most_rows];
  float sinks[most_rows], lse_of_rows[most_rows];
  const float* sink = o.sink ? at(o.sink, head * o.sink_stride) : nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    float lse[2];
    for (int part = 0; part < 2; ++part) {
      const PartOperands& from = o.parts[part];
      lse[part] = *at(from.lse, batch * from.lse_strides[0] + head * from.lse_strides[1] + (begin + r) * from.lse_strides[2]);
    }
    shifts[r] = shifts_of(lse, sink);
    sinks[r] = shifts[r].sink;
  }
  alignas(platform::cache_line_bytes) float stages[2][stage_floats];
  alignas(platform::cache_line_bytes) float result[stage_floats];  // of out's type
  const auto element_bytes = static_cast<std::ptrdiff_t>(size_in_bytes(o.dtype));
  const float* const partials[2] = {stages[0], stages[1]};
  simd::MergeF32Args args;
  args.partials = partials;
  args.splits = 2;
  args.row_end = rows;
  args.group = rows;  // a "head" of the kernel's group is a row here, which gives each a sink of its own
  args.lse = lse_of_rows;
  args.lse_head_stride = float_bytes;
  args.sink = sink ? sinks : nullptr;
  args.sink_stride = float_bytes;
  void* const out = at(o.out, batch * o.out_strides[0] + head * o.out_strides[1] + begin * o.out_strides[2]);
  for (std::int64_t column = 0; column < o.value_dim; column += most_columns) {
    const std::int64_t columns = std::min(most_columns, o.value_dim - column);
    for (int part = 0; part < 2; ++part) {
      const PartOperands& from = o.parts[part];
      const void* row = at(from.out, batch * from.out_strides[0] + head * from.out_strides[1] + begin * from.out_strides[2] +
                                         column * from.out_strides[3]);
      float* to = stages[part];
      for (std::int64_t r = 0; r < rows; ++r, row = at(row, from.out_strides[2]), to += columns + 2) {
        read_columns(o.dtype, row, from.out_strides[3], to, columns);
        to[columns] = shifts[r].shift[part];
        to[columns + 1] = shifts[r].denominator[part];
      }
    }
    args.value_dim = columns;
    const bool direct = o.out_strides[3] == element_bytes || columns == 1;
    void* const to = at(out, column * o.out_strides[3]);
    args.out = direct ? to : result;
    args.out_head_stride = direct ? o.out_strides[2] : columns * element_bytes;
    kernel.run(args);
    if (direct) continue;
    for (std::int64_t r = 0; r < rows; ++r) {
      write_columns(o.dtype, at(static_cast<void*>(result), r * columns * element_bytes), at(to, r * o.out_strides[2]),
                    o.out_strides[3], columns);
    }
  }
  if (!o.lse) return;
  float* const lse = at(o.lse, batch * o.lse_strides[0] + head * o.lse_strides[1] + begin * o.lse_strides[2]);
  for (std::int64_t r = 0; r < rows; ++r) {
    *at(lse, r * o.lse_strides[2]) = static_cast<float>(shifts[r].reference + static_cast<double>(lse_of_rows[r]));
  }
}

}  // namespace

void merge_parts(const MergeOperands& operands, const dispatch::KernelTable& kernels, graph::Scheduler& scheduler) {
  struct Pieces {
    const MergeOperands* operands;
    const simd::MergeKernel* kernel;
    std::int64_t rows;      // that are brought into form together
    std::int64_t per_head;  // pieces
    std::int64_t rows_per_piece;

    void run(std::int64_t piece) const {
      const std::int64_t head = piece / per_head, begin = piece % per_head * rows_per_piece;
      const std::int64_t end = std::min(begin + rows_per_piece, operands->length);
      for (std::int64_t row = begin; row < end; row += rows) {
        merge_head_rows(*operands, *kernel, head / operands->heads, head % operands->heads, row, std::min(rows, end - row));
      }
    }
  } pieces{&operands, dispatch::attention_kernels(kernels, operands.dtype).merge, 0, 0, 0};
  const std::int64_t columns = std::min(most_columns, operands.value_dim);
  pieces.rows = std::clamp<std::int64_t>(stage_floats / (columns + 2), 1, most_rows);
  // Two tensors are read and one is written, at about 10 GB/s; a row costs a few exponentials besides.
  const double row_ns = 60.0 + 3.0 * static_cast<double>(operands.value_dim * size_in_bytes(operands.dtype)) / 10.0;
  constexpr double piece_ns = 50e3, inline_below_ns = 80e3;
  pieces.rows_per_piece = round_up(std::max<std::int64_t>(1, static_cast<std::int64_t>(piece_ns / row_ns)), pieces.rows);
  pieces.per_head = divide_up(operands.length, pieces.rows_per_piece);
  const std::int64_t count = operands.batch * operands.heads * pieces.per_head;
  const double total_ns = row_ns * static_cast<double>(operands.batch * operands.heads * operands.length);
  if (scheduler.threads() == 1 || count <= 1 || total_ns < inline_below_ns) {
    for (std::int64_t piece = 0; piece < count; ++piece) pieces.run(piece);
    return;
  }
  scheduler.parallel_for(
      static_cast<std::size_t>(count),
      [](void* context, std::size_t piece, int) { static_cast<const Pieces*>(context)->run(static_cast<std::int64_t>(piece)); },
      &pieces);
}

}  // namespace polyhead::plan
