#include "api/checks.hpp"

#include <algorithm>
#include <tuple>

namespace polyhead::api {
namespace {

std::string shape_text(const TensorView& view) {
  std::string text = std::string(name(view.dtype)) + "[";
  for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
  return text + "]";
}

std::string shape_text(DType dtype, std::initializer_list<std::int64_t> shape) {
  std::string text = std::string(name(dtype)) + "[";
  bool first = true;
  for (const std::int64_t size : shape) {
    if (!first) text += ", ";
    first = false;
    text += size < 0 ? "any" : std::to_string(size);
  }
  return text + "]";
}

// The bytes that a view's elements lie in, relative to its data: [first, last). False when that overflows.
bool extent(const TensorView& view, std::int64_t* first, std::int64_t* last) {
  const std::int64_t item = size_in_bytes(view.dtype);
  std::int64_t low = 0, high = item;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] <= 1) continue;
    std::int64_t reach;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach) || __builtin_mul_overflow(reach, item, &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) {
      return false;
    }
  }
  *first = low;
  *last = high;
  return true;
}

// A view as runs of contiguous bytes at outer positions: dimensions of size 1 and broadcast ones dropped, contiguous inner ones
// merged, negative strides turned round.
struct Runs {
  std::uintptr_t start = 0;
  std::int64_t run = 0;
  int outer = 0;
  std::int64_t size[TensorView::max_rank], stride[TensorView::max_rank];
};

Runs runs_of(const TensorView& view) {
  Runs runs;
  const std::int64_t item = size_in_bytes(view.dtype);
  runs.start = reinterpret_cast<std::uintptr_t>(view.data);
  runs.run = item;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 1 || view.strides[i] == 0) continue;
    std::int64_t stride = view.strides[i] * item;
    if (stride < 0) {
      runs.start -= static_cast<std::uintptr_t>(-stride * (view.shape[i] - 1));
      stride = -stride;
    }
    int at = runs.outer++;
    for (; at > 0 && runs.stride[at - 1] > stride; --at) {
      runs.size[at] = runs.size[at - 1];
      runs.stride[at] = runs.stride[at - 1];
    }
    runs.size[at] = view.shape[i];
    runs.stride[at] = stride;
  }
  int merged = 0;
  while (merged < runs.outer && runs.stride[merged] == runs.run) runs.run *= runs.size[merged++];
  runs.outer -= merged;
  std::copy(runs.size + merged, runs.size + merged + runs.outer, runs.size);
  std::copy(runs.stride + merged, runs.stride + merged + runs.outer, runs.stride);
  return runs;
}

std::int64_t greatest_common_divisor(std::int64_t a, std::int64_t b) {
  while (b) {
    const std::int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

bool may_overlap(const TensorView& a, const TensorView& b) {
  if (a.empty() || b.empty() || a.element_count() == 0 || b.element_count() == 0) return false;
  std::int64_t a_first, a_last, b_first, b_last;
  if (!extent(a, &a_first, &a_last) || !extent(b, &b_first, &b_last)) return true;
  const auto a_base = reinterpret_cast<std::uintptr_t>(a.data), b_base = reinterpret_cast<std::uintptr_t>(b.data);
  if (a_base + a_last <= b_base + b_first || b_base + b_last <= a_base + a_first) return false;
  // Both touch the same stretch of memory. If every outer stride of both is a multiple of m, all their runs keep one place
  // modulo m, and disjoint places there mean disjoint views.
  const Runs ra = runs_of(a), rb = runs_of(b);
  std::int64_t m = 0;
  for (int i = 0; i < ra.outer; ++i) m = greatest_common_divisor(m, ra.stride[i]);
  for (int i = 0; i < rb.outer; ++i) m = greatest_common_divisor(m, rb.stride[i]);
  if (m == 0 || ra.run > m || rb.run > m) return true;
  const auto modulus = static_cast<std::uintptr_t>(m);
  const std::uintptr_t ahead =
      rb.start >= ra.start ? (rb.start - ra.start) % modulus : modulus - 1 - (ra.start - rb.start - 1) % modulus;
  const auto distance = static_cast<std::int64_t>(ahead);
  return !(distance >= ra.run && distance + rb.run <= m);
}

}  // namespace

void fail(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

void fail(const char* name, const std::string& was, const std::string& expected) {
  fail(std::string(name) + " is " + was + ", expected " + expected);
}

void check_memory(const char* name, const TensorView& view) {
  const std::int64_t item = size_in_bytes(view.dtype);
  if (item == 0) fail(name, "of an unknown dtype (" + std::to_string(static_cast<int>(view.dtype)) + ")", "a DType");
  if (view.rank < 0 || view.rank > TensorView::max_rank) {
    fail(name, "of rank " + std::to_string(view.rank), "a rank of 0 to " + std::to_string(TensorView::max_rank));
  }
  bool none = false;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] < 0) fail(name, shape_text(view), "no negative size");
    none |= view.shape[i] == 0;
  }
  if (none) return;
  if (view.data == nullptr) fail(name, "a null pointer for " + shape_text(view), "memory");
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(item) != 0) {
    fail(name, "at an address that is not aligned to its element", std::to_string(item) + "-byte alignment");
  }
  std::int64_t first, last;
  if (!extent(view, &first, &last)) fail(name, view.describe(), "an extent that 64 bits can address");
}

void check_tensor(const char* name, const TensorView& view, DType dtype, std::initializer_list<std::int64_t> shape) {
  bool fits = view.rank == static_cast<int>(shape.size()) && view.dtype == dtype;
  for (int i = 0; fits && i < view.rank; ++i) fits = shape.begin()[i] == -1 || view.shape[i] == shape.begin()[i];
  if (!fits) fail(name, view.empty() ? "not given" : shape_text(view), shape_text(dtype, shape));
  check_memory(name, view);
}

void check_mask(const char* name, const Mask& mask) {
  const std::string prefix(name);
  if (static_cast<int>(mask.causality) > static_cast<int>(Causal::offset)) {
    fail((prefix + ".causality").c_str(), std::to_string(static_cast<int>(mask.causality)), "a Causal alignment");
  }
  if (mask.window_left < Mask::unbounded) {
    fail((prefix + ".window_left").c_str(), std::to_string(mask.window_left), "0 or more keys, or -1 for no limit");
  }
  if (mask.window_right < Mask::unbounded) {
    fail((prefix + ".window_right").c_str(), std::to_string(mask.window_right), "0 or more keys, or -1 for no limit");
  }
  if (mask.window_kept < 0) {
    fail((prefix + ".window_kept").c_str(), std::to_string(mask.window_kept), "0 or more keys");
  }
  if (mask.causality == Causal::offset && !mask.has_offsets) {
    fail((prefix + ".has_offsets").c_str(), "false", "true, since the causal alignment is Causal::offset");
  }
  if (mask.has_prefix && mask.causality == Causal::none) {
    fail((prefix + ".has_prefix").c_str(), "true", "false without a causal alignment, which alone hides what a prefix shows");
  }
  if (mask.has_segments && mask.is_packed) {
    fail((prefix + ".has_segments").c_str(), "true", "false for packed sequences: give each document as one of them");
  }
  for (const auto& [field, size, other] : {std::tuple(".block_queries", mask.block_queries, mask.block_keys),
                                           std::tuple(".block_keys", mask.block_keys, mask.block_queries)}) {
    constexpr std::int64_t most = std::int64_t{1} << 40;  // beyond any length
    if (size < 0 || size > most || (size == 0) != (other == 0)) {
      fail((prefix + field).c_str(), std::to_string(size), "0 (no block mask: both sizes) or the size of a block");
    }
  }
  if (mask.has_offsets && (mask.causality == Causal::top_left || mask.causality == Causal::bottom_right)) {
    fail((prefix + ".has_offsets").c_str(), "true", "false, since the causal alignment fixes the offset");
  }
}

void check_precision(const char* name, Precision precision) {
  if (precision == Precision::strict || precision == Precision::fast) return;
  fail(name, std::to_string(static_cast<int>(precision)), "Precision::strict or Precision::fast");
}

void check_given(const char* name, const TensorView& view, bool wanted, const char* part, const char* owner) {
  if (wanted && view.empty()) fail(name, "not given", std::string("a tensor, since the ") + owner + " has " + part);
  if (!wanted && !view.empty()) {
    fail(name, shape_text(view), std::string("no tensor, since the ") + owner + " has no " + part);
  }
}

void broadcast_strides(const char* name, const TensorView& view, const std::int64_t shape[4], std::ptrdiff_t strides[4],
                       bool longer) {
  bool fits = view.rank <= 4;
  const std::int64_t item = size_in_bytes(view.dtype);
  for (int i = 0; i < 4; ++i) strides[i] = 0;
  for (int i = 0; fits && i < view.rank; ++i) {
    const int to = 4 - view.rank + i;
    if (view.shape[i] == 1) continue;
    fits = view.shape[i] == shape[to] || (longer && to >= 2 && view.shape[i] > shape[to]);
    strides[to] = view.strides[i] * item;
  }
  if (!fits) {
    fail(name, shape_text(view),
         "a shape that broadcasts to " + shape_text(view.dtype, {shape[0], shape[1], shape[2], shape[3]}) +
             (longer ? ", or to more in the last two dimensions" : ""));
  }
  check_memory(name, view);
}

void read_integers(const char* name, const TensorView& view, std::int64_t batch, std::int64_t low, std::int64_t high,
                   std::int64_t* out) {
  const bool fits = (view.rank == 1 || (view.rank == 2 && view.shape[1] == 1)) && view.shape[0] == batch &&
                    (view.dtype == DType::i32 || view.dtype == DType::i64);
  if (!fits) fail(name, shape_text(view), "i32 or i64 [" + std::to_string(batch) + "]");
  check_memory(name, view);
  const std::int64_t stride = batch > 1 ? view.strides[0] : 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t value = view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[b * stride]
                                                        : static_cast<const std::int64_t*>(view.data)[b * stride];
    if (value < low || value > high) {
      fail((std::string(name) + "[" + std::to_string(b) + "]").c_str(), std::to_string(value),
           std::to_string(low) + " to " + std::to_string(high));
    }
    out[b] = value;
  }
}

void check_output(const char* name, const TensorView& view) {
  if (view.element_count() == 0) return;
  const Runs runs = runs_of(view);
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1 && view.strides[i] == 0)
      fail(name, view.describe(), "strides that give each element a place of its own");
  }
  // Sorted by stride, each dimension must step past all that the smaller ones reach; views that interleave their own
  // dimensions without meeting are refused with the ones that do, since no producer of tensors makes them.
  std::int64_t reach = runs.run;
  for (int i = 0; i < runs.outer; ++i) {
    if (runs.stride[i] < reach) fail(name, view.describe(), "strides that give each element a place of its own");
    reach = runs.stride[i] * (runs.size[i] - 1) + reach;
  }
}

void check_no_overlap(const char* output_name, const TensorView& output, const char* other_name, const TensorView& other) {
  if (may_overlap(output, other)) {
    fail((std::string(output_name) + " overlaps " + other_name + " in memory; it must have memory of its own"));
  }
}

}  // namespace polyhead::api
