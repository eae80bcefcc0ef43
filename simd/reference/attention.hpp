// Attention and merging in scalar arithmetic: for each row the scores of all allowed keys, then the weighted sum of their
// values. A key that is not allowed is never read. Key and value are elements of T, query and out of what the call says.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/contract/score_mod.hpp"

#include <math.h>

#include "simd/floating_point.hpp"
#include "simd/reference/element.hpp"
#include "simd/reference/reference.hpp"

namespace polyhead::simd::reference {
namespace {

// Scratch: a score for each key, then the sums of one row.
std::size_t scratch_bytes(std::int64_t, std::int64_t value_dim, std::int64_t key_count) {
  return static_cast<std::size_t>(key_count + value_dim) * sizeof(double);
}

// Where key s and its value lie.
template <class T>
const T* row_of_key(const AttentionF32Args& args, std::int64_t s) {
  if (args.pages == nullptr) return static_cast<const T*>(at(args.key, args.key_stride * s));
  const void* const page = args.pages[s / args.page_keys - args.first_page];
  return static_cast<const T*>(at(page, args.key_in_page + args.key_stride * (s % args.page_keys)));
}
template <class T>
const T* row_of_value(const AttentionF32Args& args, std::int64_t s) {
  if (args.pages == nullptr) return static_cast<const T*>(at(args.value, args.value_stride * s));
  const void* const page = args.pages[s / args.page_keys - args.first_page];
  return static_cast<const T*>(at(page, args.value_in_page + args.value_stride * (s % args.page_keys)));
}

// What turns elements of I8 into numbers; other elements are theirs.
struct Scaling {
  double scale = 1.0;
  const float* mean = nullptr;
  const float* channel = nullptr;

  double number(double element, std::int64_t column) const {
    return mean == nullptr ? element
                           : static_cast<double>(mean[column]) + static_cast<double>(channel[column]) * scale * element;
  }
};
inline double scale_at(const AttentionF32Args& args, const float* whole, std::ptrdiff_t in_page, std::int64_t s) {
  if (args.pages == nullptr) return static_cast<double>(whole[s]);
  const void* const scales = at(args.pages[s / args.page_keys - args.first_page], in_page);
  return static_cast<double>(static_cast<const float*>(scales)[s % args.page_keys]);
}
template <class T>
Scaling scaling_of_key(const AttentionF32Args& args, std::int64_t s) {
  if (ElementOf<T>::value != Element::i8) return {};
  return {scale_at(args, args.key_scale, args.key_scale_in_page, s), args.key_mean, args.key_channel};
}
template <class T>
Scaling scaling_of_value(const AttentionF32Args& args, std::int64_t s) {
  if (ElementOf<T>::value != Element::i8) return {};
  return {scale_at(args, args.value_scale, args.value_scale_in_page, s), args.value_mean, args.value_channel};
}

double bias_of(const AttentionF32Args& args, std::int64_t t, std::int64_t g, std::int64_t s) {
  return load(at(args.bias, args.bias_stride * t + args.bias_head_stride * g + args.bias_key_stride * s), args.bias_element, 0);
}

// Whether query t of head g of the group may see key s, whatever its score.
bool is_allowed(const AttentionF32Args& args, std::int64_t t, std::int64_t g, std::int64_t s) {
  if (args.visible_begin != AttentionF32Args::unbounded_begin && s < t + args.visible_begin && s >= args.kept_end) {
    return false;
  }
  if (args.visible_end != AttentionF32Args::unbounded_end && s >= t + args.visible_end) return false;
  if (args.boolean_mask) {
    const std::uint8_t* allowed =
        at(args.boolean_mask, args.mask_stride * t + args.mask_head_stride * g + args.mask_key_stride * s);
    if (*allowed == 0) return false;
  }
  return args.bias == nullptr || bias_of(args, t, g, s) != -kInfinity;
}

// The scaled and capped score, in natural-log units.
template <class T>
double capped_score_of(const AttentionF32Args& args, std::int64_t t, std::int64_t g, std::int64_t s) {
  const void* query = at(args.query, args.query_stride * t + args.query_head_stride * g);
  const Element query_element = element_beside<T>(args.query_element);
  const T* key = row_of_key<T>(args, s);
  const Scaling scaling = scaling_of_key<T>(args, s);
  double dot = 0.0;
  for (std::int64_t d = 0; d < args.head_dim; ++d) {
    dot += load(query, query_element, d) * scaling.number(to_double(key[d]), d);
  }
  const double score = args.scale * dot;
  return args.softcap > 0.0 ? args.softcap * tanh(score / args.softcap) : score;
}

// What is added to a score after all that.
double added_to_score(const AttentionF32Args& args, std::int64_t t, std::int64_t g, std::int64_t s) {
  double added = args.bias ? bias_of(args, t, g, s) : 0.0;
  if (args.alibi_slopes) {
    const double distance = fabs(static_cast<double>(t + args.alibi_offset - s));
    added -= static_cast<double>(*at(args.alibi_slopes, args.alibi_stride * g)) * distance;
  }
  return added;
}

// A row's scores by the caller's function, 64 keys at a time, all lanes keys. -inf where a key is not allowed; keys of those
// are not read.
constexpr std::int64_t kKeysOfTile = 64;

template <class T>
void change_by_caller(const AttentionF32Args& args, std::int64_t t, std::int64_t g, double* scores) {
  static constexpr std::int32_t none[kKeysOfTile] = {};
  const ScoreMod& mod = *args.score_mod;
  alignas(64) float values[kKeysOfTile];
  std::int32_t keys[kKeysOfTile];
  for (std::int64_t first = args.key_begin; first < args.key_end; first += kKeysOfTile) {
    double* const to = scores + (first - args.key_begin);
    const std::int64_t count = args.key_end - first < kKeysOfTile ? args.key_end - first : kKeysOfTile;
    ScoreModTile tile;
    if (mod.classify) {
      ScoreModRange range;
      range.batch = args.mod_batch;
      range.head_begin = args.mod_head + g;
      range.head_end = range.head_begin + 1;
      range.query_begin = args.mod_query + t;
      range.query_end = range.query_begin + 1;
      range.key_begin = args.mod_key + first;
      range.key_end = range.key_begin + count;
      const TileClass kind = mod.classify(mod.context, range);
      if (kind == TileClass::skip) {
        for (std::int64_t i = 0; i < count; ++i) to[i] = -kInfinity;
        continue;
      }
      tile.is_full = kind == TileClass::full;
    }
    for (std::int64_t i = 0; i < kKeysOfTile; ++i) {
      keys[i] = static_cast<std::int32_t>(i < count ? i : count - 1);
      const bool allowed = i < count && is_allowed(args, t, g, first + i);
      values[i] = allowed ? static_cast<float>(capped_score_of<T>(args, t, g, first + i)) : 0.0f;
    }
    tile.scores = values;
    tile.lanes_are_keys = true;
    tile.lines = 1;
    tile.lanes = tile.line_stride = kKeysOfTile;
    tile.batch = args.mod_batch;
    tile.head = {args.mod_head + g, none, none};
    tile.query = {args.mod_query + t, none, none};
    tile.key = {args.mod_key + first, none, keys};
    mod.change(mod.context, tile);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool allowed = is_allowed(args, t, g, first + i);
      to[i] = allowed ? static_cast<double>(values[i]) + added_to_score(args, t, g, first + i) : -kInfinity;
    }
  }
}

// The score of query t of head g of the group and key s without a function of the caller's, in natural-log units; -inf where
// the key is not allowed.
template <class T>
double score_of(const AttentionF32Args& args, std::int64_t t, std::int64_t g, std::int64_t s) {
  if (!is_allowed(args, t, g, s)) return -kInfinity;
  return capped_score_of<T>(args, t, g, s) + added_to_score(args, t, g, s);
}

// How a row ends: out = scale * sums / denominator.
struct RowEnd {
  double scale, denominator, lse;
};

// Of sums and denominator relative to exp(shift), once the sink of head g has joined them.
template <class Args>
RowEnd end_of_row(const Args& args, std::int64_t g, bool seen, double shift, double denominator) {
  const double sink = args.sink ? static_cast<double>(*at(args.sink, args.sink_stride * g)) : -kInfinity;
  if (!seen) return {0.0, 1.0, sink};
  if (sink == -kInfinity) return {1.0, denominator, shift + log(denominator)};
  const double raised = sink > shift ? sink : shift;
  const double scale = exp(shift - raised);
  const double total = scale * denominator + exp(sink - raised);
  return {scale, total, raised + log(total)};
}

template <class T>
POLYHEAD_NOINLINE void attend_rows(const AttentionF32Args& args) {
  double* const scores = static_cast<double*>(args.scratch);
  double* const sums = scores + (args.key_end > args.key_begin ? args.key_end - args.key_begin : 0);
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) {
    const std::int64_t t = row / args.group;
    const std::int64_t g = row % args.group;

    // Whether a key was seen decides on emptiness, not the largest score: NaN is no score below all others.
    bool seen = false;
    double largest = -kInfinity;
    if (args.score_mod) change_by_caller<T>(args, t, g, scores);
    for (std::int64_t s = args.key_begin; s < args.key_end; ++s) {
      if (args.score_mod == nullptr) scores[s - args.key_begin] = score_of<T>(args, t, g, s);
      const double score = scores[s - args.key_begin];
      if (score == -kInfinity) continue;
      seen = true;
      if (score > largest) largest = score;
    }
    if (largest == -kInfinity) largest = 0.0;  // only NaN, or nothing at all

    // A partial result's shift is a float in log2 units; its weights are taken relative to just that.
    double shift = largest;
    float shift_log2 = kNoKey;
    if (args.partial && seen) {
      const double limit = -static_cast<double>(kNoKey);
      const double in_log2 = largest * kLog2E;
      shift_log2 = static_cast<float>(in_log2 > limit ? limit : in_log2 < -limit ? -limit : in_log2);
      shift = static_cast<double>(shift_log2) * kLn2;
    }

    for (std::int64_t e = 0; e < args.value_dim; ++e) sums[e] = 0.0;
    double denominator = 0.0;
    for (std::int64_t s = args.key_begin; s < args.key_end; ++s) {
      const double score = scores[s - args.key_begin];
      if (score == -kInfinity) continue;
      const double weight = exp(score - shift);
      denominator += weight;
      const T* value = row_of_value<T>(args, s);
      const Scaling scaling = scaling_of_value<T>(args, s);
      for (std::int64_t e = 0; e < args.value_dim; ++e) sums[e] += weight * scaling.number(to_double(value[e]), e);
    }

    if (args.partial) {
      float* partial = args.partial + (row - args.row_begin) * (args.value_dim + 2);
      for (std::int64_t e = 0; e < args.value_dim; ++e) partial[e] = static_cast<float>(sums[e]);
      partial[args.value_dim] = shift_log2;
      partial[args.value_dim + 1] = static_cast<float>(denominator);
      continue;
    }
    void* const out = at(args.out, args.out_stride * t + args.out_head_stride * g);
    const Element out_element = element_beside<T>(args.out_element);
    const RowEnd row_end = end_of_row(args, g, seen, shift, denominator);
    for (std::int64_t e = 0; e < args.value_dim; ++e) {
      store(static_cast<float>(row_end.scale * sums[e] / row_end.denominator), out, out_element, e);
    }
    if (args.lse) {
      float* lse = at(args.lse, args.lse_stride * t + args.lse_head_stride * g);
      *lse = static_cast<float>(row_end.lse);
    }
  }
}

template <class T>
void attend(const AttentionF32Args& args) {
  const KeepDenormals environment;
  attend_rows<T>(args);
}

template <class T>
POLYHEAD_NOINLINE void merge_rows(const MergeF32Args& args) {
  const std::int64_t width = args.value_dim + 2;
  for (std::int64_t row = args.row_begin; row < args.row_end; ++row) {
    const std::int64_t t = row / args.group;
    const std::int64_t g = row % args.group;
    const std::int64_t first = (row - args.row_begin) * width;

    bool seen = false;
    double largest = static_cast<double>(kNoKey);
    for (std::int64_t split = 0; split < args.splits; ++split) {
      const float shift = args.partials[split][first + args.value_dim];
      if (shift == kNoKey) continue;
      seen = true;
      if (static_cast<double>(shift) > largest) largest = static_cast<double>(shift);
    }
    double denominator = 0.0;
    for (std::int64_t split = 0; split < args.splits; ++split) {
      const float* partial = args.partials[split] + first;
      if (partial[args.value_dim] == kNoKey) continue;
      denominator +=
          exp2(static_cast<double>(partial[args.value_dim]) - largest) * static_cast<double>(partial[args.value_dim + 1]);
    }
    const RowEnd row_end = end_of_row(args, g, seen, largest * kLn2, denominator);
    T* out = at(static_cast<T*>(args.out), args.out_stride * t + args.out_head_stride * g);
    for (std::int64_t e = 0; e < args.value_dim; ++e) {
      double sum = 0.0;
      for (std::int64_t split = 0; split < args.splits; ++split) {
        const float* partial = args.partials[split] + first;
        if (partial[args.value_dim] == kNoKey) continue;
        sum += exp2(static_cast<double>(partial[args.value_dim]) - largest) * static_cast<double>(partial[e]);
      }
      out[e] = rounded<T>(static_cast<float>(row_end.scale * sum / row_end.denominator));
    }
    if (args.lse) {
      float* lse = at(args.lse, args.lse_stride * t + args.lse_head_stride * g);
      *lse = static_cast<float>(row_end.lse);
    }
  }
}

template <class T>
void merge(const MergeF32Args& args) {
  const KeepDenormals environment;
  merge_rows<T>(args);
}

template <class T>
constexpr AttentionKernel attention_kernel(const char* name) {
  return {name, 1, 64, scratch_bytes, attend<T>, ElementOf<T>::value};
}

template <class T>
constexpr MergeKernel merge_kernel(const char* name) {
  return {name, merge<T>, ElementOf<T>::value};
}

}  // namespace
}  // namespace polyhead::simd::reference
