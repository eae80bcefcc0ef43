// One batch item and kv head for the attention kernels' tests: operands in guarded memory, the answer in float64 straight from
// the formula, and the comparison with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/guarded.hpp"
#include "simd/contract/attention.hpp"
#include "simd/contract/score_mod.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"

namespace polyhead::test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct AttentionShape {
  std::int64_t queries = 1, group = 1, keys = 1, head_dim = 1, value_dim = 1;
  double scale = 0.125;
  std::int64_t visible_begin = simd::AttentionF32Args::unbounded_begin;
  std::int64_t visible_end = simd::AttentionF32Args::unbounded_end;
  std::int64_t kept_end = 0;
  std::int64_t gap = 0;        // elements between rows of every operand
  bool heads_outside = false;  // [group][queries][...] instead of [queries][group][...]

  std::int64_t rows() const { return queries * group; }
  std::string text() const {
    std::string s = "T " + std::to_string(queries) + " group " + std::to_string(group) + " S " + std::to_string(keys) + " D " +
                    std::to_string(head_dim) + " E " + std::to_string(value_dim) + " scale " + std::to_string(scale);
    if (visible_begin != simd::AttentionF32Args::unbounded_begin) s += " from t" + std::to_string(visible_begin);
    if (visible_end != simd::AttentionF32Args::unbounded_end) s += " to t" + std::to_string(visible_end);
    if (kept_end) s += " kept " + std::to_string(kept_end);
    return s + (gap ? " gap " + std::to_string(gap) : "") + (heads_outside ? " heads outside" : "");
  }
};

// [queries][group] rows of `columns` elements with the shape's layout; strides in elements.
struct RowLayout {
  RowLayout(const AttentionShape& shape, std::int64_t columns_) : columns(columns_) {
    const std::int64_t pitch = columns + shape.gap;
    stride = shape.heads_outside ? pitch : pitch * shape.group;
    head_stride = shape.heads_outside ? pitch * shape.queries : pitch;
    count = static_cast<std::size_t>((shape.rows() - 1) * (columns + shape.gap) + columns);
  }
  std::size_t at(std::int64_t t, std::int64_t g) const { return static_cast<std::size_t>(t * stride + g * head_stride); }
  std::int64_t columns;
  std::ptrdiff_t stride, head_stride;
  std::size_t count;
};

// An operand over [query, head of the group, key] with any dimension broadcast, and keys `key_step` elements apart.
template <class T>
struct Broadcast {
  Broadcast(const AttentionShape& shape, bool over_queries, bool over_heads, bool over_keys, std::int64_t key_step = 1) {
    const std::int64_t size = sizeof(T);
    const std::int64_t keys = over_keys ? (shape.keys - 1) * key_step + 1 : 1;
    key_stride = over_keys ? key_step * size : 0;
    head_stride = over_heads ? keys * size : 0;
    stride = over_queries ? keys * size * (over_heads ? shape.group : 1) : 0;
    values = std::make_unique<Guarded<T>>(
        static_cast<std::size_t>(keys * (over_heads ? shape.group : 1) * (over_queries ? shape.queries : 1)));
  }
  T& at(std::int64_t t, std::int64_t g, std::int64_t s) {
    return (*values)[static_cast<std::size_t>((t * stride + g * head_stride + s * key_stride) /
                                              static_cast<std::int64_t>(sizeof(T)))];
  }
  const T& at(std::int64_t t, std::int64_t g, std::int64_t s) const { return const_cast<Broadcast*>(this)->at(t, g, s); }
  std::unique_ptr<Guarded<T>> values;
  std::ptrdiff_t stride, head_stride, key_stride;
};

// An operand as a kernel reads or writes it: its numbers themselves, or a copy of them in elements of 16 bits. Numbers are
// rounded to the element in place then, so that a formula in their terms is one of the operands that the kernel gets.
class StoredElements {
 public:
  StoredElements(simd::Element element, std::size_t count) : element_(element) {
    if (element == simd::Element::f32) {
      floats_ = std::make_unique<Guarded<float>>(count);
    } else {
      bits_ = std::make_unique<Guarded<std::uint16_t>>(count);
      const auto size = static_cast<std::int64_t>(count);
      view_ = TensorView(bits_->data(), element == simd::Element::bf16 ? DType::bf16 : DType::f16, 1, &size);
    }
  }
  void* data() { return floats_ ? static_cast<void*>(floats_->data()) : bits_->data(); }
  float get(std::size_t i) const {
    return floats_ ? (*floats_)[i] : static_cast<float>(testing::load(view_, static_cast<std::int64_t>(i)));
  }
  // Copies and rounds the numbers to 16 bits; nothing is done for those that were copied last.
  void take(Guarded<float>& numbers) {
    const std::size_t bytes = numbers.size() * sizeof(float);
    if (taken_.size() == numbers.size() && std::memcmp(taken_.data(), numbers.data(), bytes) == 0) return;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      testing::store(view_, static_cast<std::int64_t>(i), static_cast<double>(numbers[i]));
      numbers[i] = get(i);
    }
    taken_.assign(numbers.data(), numbers.data() + numbers.size());
  }
  simd::Element element() const { return element_; }

 private:
  simd::Element element_;
  std::unique_ptr<Guarded<float>> floats_;
  std::unique_ptr<Guarded<std::uint16_t>> bits_;
  TensorView view_;
  std::vector<float> taken_;
};

// What a bias may be stored as, whatever the other operands are.
constexpr simd::Element bias_elements[] = {simd::Element::f32, simd::Element::bf16, simd::Element::f16};

inline std::int64_t bytes_of(simd::Element element) {
  return element == simd::Element::f32 ? 4 : 2;
}

class AttentionProblem {
 public:
  AttentionProblem(const AttentionShape& shape_, std::uint32_t seed, double query_size = 1.0)
      : shape(shape_),
        query_layout(shape, shape.head_dim),
        out_layout(shape, shape.value_dim),
        query(query_layout.count),
        key(static_cast<std::size_t>((shape.keys - 1) * (shape.head_dim + shape.gap) + shape.head_dim)),
        value(static_cast<std::size_t>((shape.keys - 1) * (shape.value_dim + shape.gap) + shape.value_dim)) {
    query.fill_random(seed, -1.7 * query_size, 1.7 * query_size);
    key.fill_random(seed + 1, -1.7, 1.7);
    value.fill_random(seed + 2, -1.7, 1.7);
  }

  float& key_at(std::int64_t s, std::int64_t d) { return key[static_cast<std::size_t>(s * (shape.head_dim + shape.gap) + d)]; }
  float& value_at(std::int64_t s, std::int64_t e) {
    return value[static_cast<std::size_t>(s * (shape.value_dim + shape.gap) + e)];
  }
  float& query_at(std::int64_t t, std::int64_t g, std::int64_t d) {
    return query[query_layout.at(t, g) + static_cast<std::size_t>(d)];
  }

  bool allowed(std::int64_t t, std::int64_t g, std::int64_t s) const {
    if ((s < t + shape.visible_begin && s >= shape.kept_end) || s >= t + shape.visible_end) return false;
    if (mask && mask->at(t, g, s) == 0) return false;
    return !(bias && bias->at(t, g, s) == -kInfinity);
  }

  struct Row {
    std::vector<double> out;
    double lse = -std::numeric_limits<double>::infinity();
    double largest_value = 0, largest_score = 0;  // what the error bound is made of
    bool empty = true;

    double tolerance(Precision precision) const {  // of a result before it is rounded to the element
      return testing::attention_bound(DType::f32, largest_value, largest_score, 0, precision);
    }
    // Of an element of out: kernels compute in f32 and round once, which is far less than the bound that bf16 and f16 are
    // promised.
    static double rounding(simd::Element element, double result) {
      if (element == simd::Element::bf16) return 0x1p-8 * std::fabs(result);
      if (element == simd::Element::f16) return 0x1p-11 * std::fabs(result) + 0x1p-25;
      return 0;
    }
  };

  // The formula, in float64, over the keys that the row may see and whose score is not -inf.
  Row expected(std::int64_t t, std::int64_t g) {
    Row row;
    row.out.assign(static_cast<std::size_t>(shape.value_dim), 0.0);
    std::vector<double> score(static_cast<std::size_t>(shape.keys), -std::numeric_limits<double>::infinity());
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    if (sinks) row.lse = (*sinks)[static_cast<std::size_t>(g)];
    for (std::int64_t s = 0; s < shape.keys; ++s) {
      if (!allowed(t, g, s)) continue;
      double dot = 0, magnitude = 0;
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        const double product = static_cast<double>(query_at(t, g, d)) * key_at(s, d);
        dot += product;
        magnitude += std::fabs(product);
      }
      double x = shape.scale * dot;
      if (softcap > 0) x = softcap * std::tanh(x / softcap);
      if (score_function) x = score_function(x, t, g, s);
      if (alibi_slopes) {
        x -= (*alibi_slopes)[static_cast<std::size_t>(g)] * std::fabs(static_cast<double>(t + alibi_offset - s));
      }
      if (bias) x += bias->at(t, g, s);
      if (x == -kInfinity) continue;
      score[static_cast<std::size_t>(s)] = x;
      if (std::isnan(x)) max = x;
      if (!(x <= max) && !std::isnan(max)) max = x;
      row.largest_score = std::max({row.largest_score, std::fabs(shape.scale) * magnitude, std::fabs(x)});
      row.empty = false;
    }
    if (row.empty) return row;
    if (row.lse > max) max = row.lse;
    sum = std::exp(row.lse - max);
    for (std::int64_t s = 0; s < shape.keys; ++s) {
      if (score[static_cast<std::size_t>(s)] == -kInfinity) continue;
      const double weight = std::exp(score[static_cast<std::size_t>(s)] - max);
      sum += weight;
      for (std::int64_t e = 0; e < shape.value_dim; ++e) {
        row.out[static_cast<std::size_t>(e)] += weight * value_at(s, e);
        row.largest_value = std::max(row.largest_value, static_cast<double>(std::fabs(value_at(s, e))));
      }
    }
    for (double& x : row.out) x /= sum;
    row.lse = max + std::log(sum);
    return row;
  }

  struct Result {
    std::vector<float> out;                      // [row][value_dim]
    std::vector<float> lse;                      // [row]
    simd::Element element = simd::Element::f32;  // of the kernel's out
  };

  // For a kernel of `element`.
  simd::AttentionF32Args arguments(simd::Element element, std::int64_t row_begin, std::int64_t row_end) {
    const std::int64_t item = bytes_of(element);
    simd::AttentionF32Args args;
    args.query = stored(stored_query, query, element);
    args.query_stride = query_layout.stride * item;
    args.query_head_stride = query_layout.head_stride * item;
    args.key = stored(stored_key, key, element);
    args.key_stride = (shape.head_dim + shape.gap) * item;
    args.value = stored(stored_value, value, element);
    args.value_stride = (shape.value_dim + shape.gap) * item;
    args.group = shape.group;
    args.row_begin = row_begin;
    args.row_end = row_end;
    args.key_end = shape.keys;
    args.head_dim = shape.head_dim;
    args.value_dim = shape.value_dim;
    args.scale = shape.scale;
    args.visible_begin = shape.visible_begin;
    args.visible_end = shape.visible_end;
    args.kept_end = shape.kept_end;
    if (mask) {
      args.boolean_mask = mask->values->data();
      args.mask_stride = mask->stride;
      args.mask_head_stride = mask->head_stride;
      args.mask_key_stride = mask->key_stride;
    }
    if (!marks.empty()) {
      args.key_marks = marks.data();
      args.mark_stride = mark_stride;
    }
    if (bias) {
      const std::int64_t parts = bytes_of(simd::Element::f32) / bytes_of(bias_element);
      args.bias_element = bias_element;
      args.bias = stored(stored_bias, *bias->values, bias_element);
      args.bias_stride = bias->stride / parts;
      args.bias_head_stride = bias->head_stride / parts;
      args.bias_key_stride = bias->key_stride / parts;
    }
    args.fetch_ahead = fetch_ahead;
    args.softcap = softcap;
    args.alibi_slopes = alibi_slopes ? alibi_slopes->data() : nullptr;
    args.alibi_stride = 4;
    args.alibi_offset = alibi_offset;
    args.sink = sinks ? sinks->data() : nullptr;
    args.sink_stride = 4;
    args.score_mod = score_mod;
    args.mod_batch = 3;
    args.mod_head = 20;
    args.mod_query = 100;
    args.mod_key = 7000;
    if (pages) pages->give(element, args);
    return args;
  }

  // The keys and values again, in pages: what a call reads from then on. As a ring, all pages are one, so that only the last
  // `page_keys` keys are left.
  void put_in_pages(std::int64_t page_keys, bool ring = false) {
    const std::int64_t key_pitch = shape.head_dim + 3, value_pitch = shape.value_dim + 5, front = 7;
    Pages& made = pages.emplace(Pages{});
    made.page_keys = page_keys;
    made.key_in_page = front;
    made.value_in_page = front + page_keys * key_pitch;
    made.key_stride = key_pitch;
    made.value_stride = value_pitch;
    const std::int64_t count = (shape.keys + page_keys - 1) / page_keys;
    // Pages are made last first, so that they do not follow one another in memory. What is behind the last key is NaN.
    for (std::int64_t page = ring ? 0 : count - 1; page >= 0; --page) {
      const std::int64_t last_key = page_keys * value_pitch - 5;
      made.memory.push_back(
          std::make_unique<Guarded<float>>(static_cast<std::size_t>(front + page_keys * key_pitch + last_key)));
      Guarded<float>& memory = *made.memory.back();
      for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = kNaN;
    }
    for (std::int64_t page = 0; page < count; ++page) {
      made.places.push_back(static_cast<std::size_t>(ring ? 0 : count - 1 - page));
      Guarded<float>& memory = *made.memory[made.places.back()];
      for (std::int64_t s = page * page_keys; s < std::min(shape.keys, (page + 1) * page_keys); ++s) {
        const std::int64_t place = s - page * page_keys;
        for (std::int64_t d = 0; d < shape.head_dim; ++d) {
          memory[static_cast<std::size_t>(front + place * key_pitch + d)] = key_at(s, d);
        }
        for (std::int64_t e = 0; e < shape.value_dim; ++e) {
          memory[static_cast<std::size_t>(front + page_keys * key_pitch + place * value_pitch + e)] = value_at(s, e);
        }
      }
    }
  }

  // What the mask comes to, of all pairs that the limits leave, a mark for each queries_per_mark queries or for all of them.
  void mark_mask(bool one_row) {
    constexpr std::int64_t per_row = simd::AttentionArgs::queries_per_mark, per_mark = simd::AttentionArgs::keys_per_mark;
    const std::int64_t columns = (shape.keys + per_mark - 1) / per_mark, rows = (shape.queries + per_row - 1) / per_row;
    mark_stride = one_row ? 0 : columns;
    marks.assign(static_cast<std::size_t>(one_row ? columns : rows * columns), simd::keys_all);
    for (std::int64_t t = 0; t < shape.queries; ++t) {
      for (std::int64_t s = 0; s < shape.keys; ++s) {
        if ((s < t + shape.visible_begin && s >= shape.kept_end) || s >= t + shape.visible_end) continue;
        std::uint8_t& mark = marks[static_cast<std::size_t>(t / per_row * mark_stride + s / per_mark)];
        for (std::int64_t g = 0; g < shape.group; ++g) {
          mark = static_cast<std::uint8_t>(mask->at(t, g, s) != 0 ? mark | simd::keys_seen : mark & ~simd::keys_all);
        }
      }
    }
  }

  void give_alibi(std::uint32_t seed, float low, float high, std::int64_t offset) {
    alibi_slopes.emplace(static_cast<std::size_t>(shape.group));
    alibi_slopes->fill_random(seed, low, high);
    alibi_offset = offset;
  }
  void give_sinks(std::uint32_t seed, float low, float high) {
    sinks.emplace(static_cast<std::size_t>(shape.group));
    sinks->fill_random(seed, low, high);
  }

  // Runs rows [row_begin, row_end) and returns just these; the first key is rounded down to the kernel's blocks.
  Result run(const simd::AttentionKernel& kernel, std::int64_t row_begin, std::int64_t row_end, bool with_lse = true,
             std::int64_t first_key = 0) {
    StoredElements out(kernel.element, out_layout.count);
    Guarded<float> lse(static_cast<std::size_t>(shape.rows()));
    Guarded<unsigned char> scratch(kernel.scratch_bytes(shape.head_dim, shape.value_dim, shape.keys), 64);
    simd::AttentionF32Args args = arguments(kernel.element, row_begin, row_end);
    args.key_begin = first_key / kernel.key_block * kernel.key_block;
    args.out = out.data();
    args.out_stride = out_layout.stride * bytes_of(kernel.element);
    args.out_head_stride = out_layout.head_stride * bytes_of(kernel.element);
    args.lse = with_lse ? lse.data() : nullptr;
    args.lse_stride = shape.group * 4;
    args.lse_head_stride = 4;
    args.scratch = scratch.data();
    kernel.run(args);
    return collect(out, lse, row_begin, row_end);
  }
  Result run(const simd::AttentionKernel& kernel) { return run(kernel, 0, shape.rows()); }

  // The same through partial results: keys split at multiples of `split`, merged.
  Result run_split(const simd::AttentionKernel& kernel, const simd::MergeKernel& merge, std::int64_t split) {
    EXPECT_EQ(kernel.element, merge.element);
    StoredElements out(merge.element, out_layout.count);
    Guarded<float> lse(static_cast<std::size_t>(shape.rows()));
    std::vector<std::unique_ptr<Guarded<float>>> parts;
    std::vector<const float*> pointers;
    for (std::int64_t begin = 0; begin < shape.keys; begin += split) {
      const std::int64_t end = std::min(shape.keys, begin + split);
      Guarded<unsigned char> scratch(kernel.scratch_bytes(shape.head_dim, shape.value_dim, end - begin), 64);
      parts.push_back(std::make_unique<Guarded<float>>(static_cast<std::size_t>(shape.rows() * (shape.value_dim + 2))));
      simd::AttentionF32Args args = arguments(kernel.element, 0, shape.rows());
      args.key_begin = begin;
      args.key_end = end;
      args.partial = parts.back()->data();
      args.scratch = scratch.data();
      kernel.run(args);
      pointers.push_back(parts.back()->data());
    }
    simd::MergeF32Args args;
    args.partials = pointers.data();
    args.splits = static_cast<std::int64_t>(pointers.size());
    args.row_end = shape.rows();
    args.group = shape.group;
    args.value_dim = shape.value_dim;
    args.out = out.data();
    args.out_stride = out_layout.stride * bytes_of(merge.element);
    args.out_head_stride = out_layout.head_stride * bytes_of(merge.element);
    args.lse = lse.data();
    args.lse_stride = shape.group * 4;
    args.lse_head_stride = 4;
    args.sink = sinks ? sinks->data() : nullptr;
    args.sink_stride = 4;
    merge.run(args);
    return collect(out, lse, 0, shape.rows());
  }

  // Compares with the formula: rows without a key are exactly 0, NaN is where the formula has it, the rest is within the
  // tolerance. Reports the worst element of the first row that is wrong. weight_rounding: what the kernel rounds weights by,
  // relatively, before it multiplies values with them.
  void expect_right(const Result& result, const std::string& what, Precision precision = Precision::strict,
                    double weight_rounding = 0) {
    for (std::int64_t row = 0; row < shape.rows(); ++row) {
      const std::int64_t t = row / shape.group, g = row % shape.group;
      const Row want = expected(t, g);
      const double tolerance = want.tolerance(precision), of_result = tolerance + weight_rounding * want.largest_value;
      double allowed_error = of_result;
      const float* out = result.out.data() + row * shape.value_dim;
      const float lse = result.lse[static_cast<std::size_t>(row)];
      double worst = 0;
      for (std::int64_t e = 0; e < shape.value_dim; ++e) {
        const double right = want.out[static_cast<std::size_t>(e)];
        if (std::isnan(right) && std::isnan(out[e])) continue;
        if (std::isinf(right) && static_cast<double>(out[e]) == right) continue;
        if (want.empty && bits_of(out[e]) != 0) worst = kInfinity;
        const double error = std::fabs(out[e] - right), rounding = Row::rounding(result.element, right);
        if (!(error - rounding <= worst)) {
          worst = std::isnan(error) ? kInfinity : error - rounding;
          allowed_error = of_result + rounding;
        }
      }
      bool lse_right = want.empty ? static_cast<double>(lse) == want.lse : std::isnan(want.lse) ? std::isnan(lse) : true;
      // Beyond 2e38 a score in log2 units is at the end of the float range, and so is the lse.
      if (std::isfinite(want.lse) && std::fabs(want.lse) > 2e38) lse_right = std::isfinite(lse) && std::fabs(lse) > 2e38;
      if (std::fabs(want.lse) <= 2e38) {
        const double of_scores = precision == Precision::fast ? 0x1p-15 * want.largest_score : 0.0;
        lse_right = std::fabs(lse - want.lse) <= 4e-6 + 0x1p-21 * std::fabs(want.lse) + tolerance + of_scores;
      }
      if (worst > of_result || !lse_right) {
        ADD_FAILURE() << what << ": " << shape.text() << ", row t " << t << " g " << g << (want.empty ? " (empty)" : "")
                      << ": worst error " << worst + allowed_error - of_result << ", allowed " << allowed_error << "; lse "
                      << lse << ", right " << want.lse;
        return;
      }
    }
  }

  struct Pages {
    std::int64_t page_keys;
    std::ptrdiff_t key_in_page, value_in_page, key_stride, value_stride;  // in elements
    std::vector<std::unique_ptr<Guarded<float>>> memory;
    std::vector<std::size_t> places;                      // of the pages in memory, in the order of their keys
    std::vector<std::unique_ptr<StoredElements>> copies;  // of memory, for the element that ran last
    std::vector<const void*> table;
    std::int64_t first_page = 0;  // of the table that calls are given

    void give(simd::Element element, simd::AttentionF32Args& args) {
      const std::int64_t item = bytes_of(element);
      copies.resize(memory.size());
      table.clear();
      for (const std::size_t place : places) table.push_back(stored(copies[place], *memory[place], element));
      args.key = args.value = nullptr;
      args.pages = table.data() + first_page;
      args.first_page = first_page;
      args.page_keys = page_keys;
      args.key_in_page = key_in_page * item;
      args.value_in_page = value_in_page * item;
      args.key_stride = key_stride * item;
      args.value_stride = value_stride * item;
    }
  };

  AttentionShape shape;
  RowLayout query_layout, out_layout;
  Guarded<float> query, key, value;
  std::optional<Pages> pages;
  std::optional<Broadcast<std::uint8_t>> mask;
  std::vector<std::uint8_t> marks;  // of the mask; empty: not given
  std::int64_t mark_stride = 0;
  std::optional<Broadcast<float>> bias;
  simd::Element bias_element = simd::Element::f32;  // numbers are rounded to it by a run
  double softcap = 0;
  std::int64_t fetch_ahead = 0;
  std::optional<Guarded<float>> alibi_slopes, sinks;  // [group]
  std::int64_t alibi_offset = 0;
  // A kernel's, which is told batch item 3, heads from 20, queries from 100 and keys from 7,000 on, and what it does.
  const simd::ScoreMod* score_mod = nullptr;
  std::function<double(double score, std::int64_t t, std::int64_t g, std::int64_t s)> score_function;
  std::unique_ptr<StoredElements> stored_query, stored_key, stored_value, stored_bias;  // for the element that ran last

 private:
  static const void* stored(std::unique_ptr<StoredElements>& copy, Guarded<float>& numbers, simd::Element element) {
    if (element == simd::Element::f32) return numbers.data();
    if (!copy || copy->element() != element) copy = std::make_unique<StoredElements>(element, numbers.size());
    copy->take(numbers);
    return copy->data();
  }

  Result collect(const StoredElements& out, const Guarded<float>& lse, std::int64_t row_begin, std::int64_t row_end) const {
    Result result;
    result.element = out.element();
    for (std::int64_t row = row_begin; row < row_end; ++row) {
      const std::size_t from = out_layout.at(row / shape.group, row % shape.group);
      for (std::size_t e = 0; e < static_cast<std::size_t>(shape.value_dim); ++e) result.out.push_back(out.get(from + e));
      result.lse.push_back(lse[static_cast<std::size_t>(row)]);
    }
    return result;
  }
};

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(bits_of(a[i]), bits_of(b[i])) << what << ", element " << i << ": " << a[i] << " and " << b[i];
  }
}

}  // namespace polyhead::test
