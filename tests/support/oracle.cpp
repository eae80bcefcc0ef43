#include "support/oracle.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "support/tensor.hpp"

namespace polyhead::oracle {
namespace {

using std::int64_t;

constexpr double infinity = std::numeric_limits<double>::infinity();

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

// Element [b, h, t, s] of a view of rank 0..4 that is broadcast to four dimensions, aligned at the right.
double broadcast_element(const TensorView& view, int64_t b, int64_t h, int64_t t, int64_t s) {
  const int64_t full[4] = {b, h, t, s};
  int64_t offset = 0;
  for (int i = 0; i < view.rank; ++i) {
    const auto dimension = static_cast<std::size_t>(i);
    if (view.shape[dimension] != 1) offset += view.strides[dimension] * full[4 - view.rank + i];
  }
  return testing::load(view, offset);
}

// Element b of an integer tensor [B] or [B, 1].
int64_t batch_integer(const TensorView& view, int64_t b) {
  const int64_t offset = view.shape[0] == 1 ? 0 : view.strides[0] * b;
  return view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[offset]
                                  : static_cast<const std::int64_t*>(view.data)[offset];
}

// Element [b, i] of an integer tensor [B, n] or [1, n].
int64_t position_integer(const TensorView& view, int64_t b, int64_t i) {
  const int64_t offset = (view.shape[0] == 1 ? 0 : view.strides[0] * b) + (view.shape[1] == 1 ? 0 : view.strides[1] * i);
  return view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[offset]
                                  : static_cast<const std::int64_t*>(view.data)[offset];
}

// The row of the table that says the bias of a query and a key.
class RelativeRows {
 public:
  // T5: where distances share buckets, step k begins at the distance own * (max_distance / own)^(k / steps).
  explicit RelativeRows(const RelativeBias& bias) : bias_(bias) {
    if (bias.kind != RelativeBias::Kind::t5) return;
    count_ = bias.bidirectional ? bias.buckets / 2 : bias.buckets;
    own_ = count_ / 2;
    for (int64_t step = 1; own_ + step < count_; ++step)
      begins_.push_back(static_cast<long double>(own_) *
                        std::pow(static_cast<long double>(bias.max_distance) / static_cast<long double>(own_),
                                 static_cast<long double>(step) / static_cast<long double>(count_ - own_)));
  }

  // Of query t and key s, which is `distance` behind the query.
  int64_t operator()(int64_t t, int64_t s, long double distance) const {
    if (bias_.kind == RelativeBias::Kind::t5) return bucket(distance);
    const int64_t down = t / bias_.width - s / bias_.width, right = t % bias_.width - s % bias_.width;
    return (down + bias_.height - 1) * (2 * bias_.width - 1) + right + bias_.width - 1;
  }

 private:
  int64_t bucket(long double distance) const {
    const int64_t first = bias_.bidirectional && distance > 0 ? count_ : 0;
    if (!bias_.bidirectional) distance = std::min(distance, 0.0L);
    const long double far = std::fabs(distance);
    if (far < static_cast<long double>(own_)) return first + static_cast<int64_t>(far);
    int64_t step = 0;  // found by trying them
    for (const long double begins : begins_) {
      if (far < begins * (1 - 1e-12L)) break;
      ++step;
    }
    return first + own_ + step;
  }

  RelativeBias bias_;
  int64_t count_ = 0, own_ = 0;  // buckets of one direction, and those of one distance
  std::vector<long double> begins_;
};

// What the mask says about (b, h), with the scalars already read.
class Visibility {
 public:
  Visibility(const AttentionInputs& inputs, const Mask& mask, int64_t query_length, int64_t key_length, int64_t b, int64_t h)
      : inputs_(inputs), mask_(mask), batch_(b), head_(h), rows_(query_length), length_(key_length) {
    if (mask.has_key_lengths) length_ = batch_integer(inputs.key_lengths, b);
    if (mask.has_query_lengths) rows_ = batch_integer(inputs.query_lengths, b);
    switch (mask.causality) {
      case Causal::none:
        offset_ = mask.has_offsets ? batch_integer(inputs.offsets, b) : 0;
        break;
      case Causal::top_left:
        offset_ = 0;
        break;
      case Causal::bottom_right:
        offset_ = length_ - rows_;
        break;
      case Causal::offset:
        offset_ = batch_integer(inputs.offsets, b);
        break;
    }
  }

  // How far behind query t's place key s lies.
  long double behind(int64_t t, int64_t s) const {
    return static_cast<long double>(s) - (static_cast<long double>(t) + static_cast<long double>(offset_));
  }
  double distance(int64_t t, int64_t s) const { return static_cast<double>(std::fabs(behind(t, s))); }

  bool operator()(int64_t t, int64_t s) const {
    if (t >= rows_ || s >= length_) return false;
    // Wide enough for sums of any three 64-bit numbers.
    const long double diagonal = static_cast<long double>(t) + static_cast<long double>(offset_);
    const bool in_prefix = mask_.has_prefix && s < batch_integer(inputs_.prefix_lengths, batch_);
    if (mask_.causality != Causal::none && static_cast<long double>(s) > diagonal && !in_prefix) return false;
    if (mask_.window_left != Mask::unbounded && s >= mask_.window_kept &&
        static_cast<long double>(s) < diagonal - static_cast<long double>(mask_.window_left))
      return false;
    if (mask_.window_right != Mask::unbounded &&
        static_cast<long double>(s) > diagonal + static_cast<long double>(mask_.window_right))
      return false;
    if (mask_.has_segments &&
        position_integer(inputs_.query_segments, batch_, t) != position_integer(inputs_.key_segments, batch_, s))
      return false;
    if (mask_.block_queries != 0 &&
        broadcast_element(inputs_.block_mask, batch_, head_, t / mask_.block_queries, s / mask_.block_keys) == 0)
      return false;
    return !mask_.has_boolean || broadcast_element(inputs_.boolean_mask, batch_, head_, t, s) != 0;
  }

 private:
  const AttentionInputs& inputs_;
  const Mask& mask_;
  int64_t batch_, head_, rows_, length_, offset_ = 0;
};

// The attention of packed query [B, H, T, D], key [B, G, S, D] and value [B, G, S, E]; options.scale is set. The score function
// knows batch item 0 as `first_item`.
AttentionResult attention_of(const Array& query, const Array& key, const Array& value, const AttentionOptions& options,
                             const AttentionInputs& inputs, bool with_weights, const ScoreFunction& score_function = {},
                             int64_t first_item = 0) {
  const double scale = *options.scale;
  const Mask& mask = options.mask;
  const int64_t batch = query.size(0), heads = query.size(1), query_length = query.size(2), head_dim = query.size(3);
  const int64_t kv_heads = key.size(1), key_length = key.size(2), value_dim = value.size(3);
  const int64_t group = heads / kv_heads;
  AttentionResult result;
  result.out = Array({batch, heads, query_length, value_dim});
  result.lse = Array({batch, heads, query_length}, -infinity);
  result.score_magnitude = Array({batch, heads, query_length});
  result.value_magnitude = Array({batch, heads, query_length});
  if (with_weights) result.weights = Array({batch, heads, query_length, key_length});

  const auto keys = static_cast<std::size_t>(key_length);
  std::vector<double> score(keys), magnitude(keys), weight(keys), value_size(keys);
  std::vector<char> seen(keys);
  const RelativeRows relative_row(options.relative_bias);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = b * kv_heads + h / group;
      // NaN loses every comparison and so leaves the largest |v| alone.
      for (std::size_t s = 0; s < keys; ++s) {
        const double* v = value.row(kv_head * key_length + static_cast<int64_t>(s));
        value_size[s] = 0;
        for (int64_t e = 0; e < value_dim; ++e) value_size[s] = std::max(value_size[s], std::fabs(v[e]));
      }
      const Visibility visible(inputs, mask, query_length, key_length, b, h);
      const double slope = options.has_alibi ? broadcast_element(inputs.alibi_slopes, 0, 0, b, h) : 0;
      const double sink = options.has_sink ? broadcast_element(inputs.sink, 0, 0, 0, h) : -infinity;
      for (int64_t t = 0; t < query_length; ++t) {
        const int64_t row = (b * heads + h) * query_length + t;
        const double* q = query.row(row);
        bool any = false, nan = false;
        double largest = -infinity, score_magnitude = 0, value_magnitude = 0;
        for (int64_t s = 0; s < key_length; ++s) {
          const auto i = static_cast<std::size_t>(s);
          seen[i] = visible(t, s);
          if (!seen[i]) continue;
          const double* k = key.row(kv_head * key_length + s);
          double dot = 0, absolute = 0;
          for (int64_t d = 0; d < head_dim; ++d) {
            const double term = q[d] * k[d];
            dot += term;
            absolute += std::fabs(term);
          }
          score[i] = scale * dot;
          if (options.softcap > 0) score[i] = options.softcap * std::tanh(score[i] / options.softcap);
          if (score_function) score[i] = score_function(score[i], first_item + b, h, t, s);
          if (options.has_alibi) score[i] -= slope * visible.distance(t, s);
          if (mask.has_bias || options.relative_bias.given()) {
            // A bias of -inf masks the key, also where the score that it is added to is NaN.
            const double bias = mask.has_bias ? broadcast_element(inputs.bias, b, h, t, s)
                                              : broadcast_element(inputs.relative_bias_table, 0, 0,
                                                                  relative_row(t, s, visible.behind(t, s)), h);
            score[i] = bias == -infinity ? -infinity : score[i] + bias;
          }
          seen[i] = score[i] != -infinity;
          if (!seen[i]) continue;
          any = true;
          nan = nan || std::isnan(score[i]);
          largest = std::max(largest, score[i]);
          score_magnitude = std::max({score_magnitude, std::fabs(scale) * absolute, std::fabs(score[i])});
          value_magnitude = std::max(value_magnitude, value_size[i]);
        }
        result.score_magnitude.values[static_cast<std::size_t>(row)] = score_magnitude;
        result.value_magnitude.values[static_cast<std::size_t>(row)] = value_magnitude;
        result.lse.values[static_cast<std::size_t>(row)] = sink;
        if (!any) continue;
        largest = std::max(largest, sink);
        if (nan) largest = std::numeric_limits<double>::quiet_NaN();
        double sum = std::exp(sink - largest);
        for (std::size_t s = 0; s < keys; ++s) {
          weight[s] = seen[s] ? std::exp(score[s] - largest) : 0;
          sum += weight[s];
        }
        result.lse.values[static_cast<std::size_t>(row)] = largest + std::log(sum);
        double* out = result.out.row(row);
        for (int64_t s = 0; s < key_length; ++s) {
          const auto i = static_cast<std::size_t>(s);
          if (!seen[i]) continue;
          weight[i] /= sum;
          const double* v = value.row(kv_head * key_length + s);
          for (int64_t e = 0; e < value_dim; ++e) out[e] += weight[i] * v[e];
        }
        if (with_weights) std::copy(weight.begin(), weight.end(), result.weights.row(row));
      }
    }
  }
  return result;
}

// One packed sequence as a call of its own, batch 1 and not packed. What has a batch dimension keeps sequence i's part.
AttentionInputs sequence_inputs(const AttentionInputs& inputs, int64_t i) {
  AttentionInputs one = inputs;
  one.cumulative_query_lengths = one.cumulative_key_lengths = TensorView();
  const int64_t query_begin = batch_integer(inputs.cumulative_query_lengths, i),
                query_end = batch_integer(inputs.cumulative_query_lengths, i + 1);
  const int64_t key_begin = batch_integer(inputs.cumulative_key_lengths, i),
                key_end = batch_integer(inputs.cumulative_key_lengths, i + 1);
  one.query = testing::slice(inputs.query, 2, query_begin, query_end);
  one.key = testing::slice(inputs.key, 2, key_begin, key_end);
  one.value = testing::slice(inputs.value, 2, key_begin, key_end);
  for (TensorView* numbers : {&one.query_lengths, &one.key_lengths, &one.offsets, &one.prefix_lengths})
    if (!numbers->empty()) *numbers = testing::slice(*numbers, 0, i, i + 1);
  for (TensorView* mask : {&one.boolean_mask, &one.bias, &one.block_mask})
    if (mask->rank == 4 && mask->shape[0] != 1) *mask = testing::slice(*mask, 0, i, i + 1);
  if (one.alibi_slopes.rank == 2 && one.alibi_slopes.shape[0] != 1)
    one.alibi_slopes = testing::slice(one.alibi_slopes, 0, i, i + 1);
  return one;
}

int64_t sequence_count(const AttentionInputs& inputs) {
  return inputs.cumulative_query_lengths.shape[0] - 1;
}

// Rows `from` of [1, H, T, ...] to the rows of `to` that begin at `begin`.
void put_rows(const Array& from, Array& to, int64_t begin) {
  const int64_t heads = from.size(1), length = from.size(2);
  const int64_t width = from.shape.size() == 4 ? from.size(3) : 1;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < length * width; ++i)
      to.values[static_cast<std::size_t>((h * to.size(2) + begin) * width + i)] =
          from.values[static_cast<std::size_t>(h * length * width + i)];
}

// Each packed sequence alone. Rows of none see no key.
AttentionResult packed_attention(const AttentionInputs& inputs, AttentionOptions options, bool with_weights,
                                 const ScoreFunction& score_function) {
  options.mask.is_packed = false;
  const int64_t heads = inputs.query.shape[1], total = inputs.query.shape[2], value_dim = inputs.value.shape[3];
  const int64_t total_keys = inputs.key.shape[2];
  AttentionResult all;
  all.out = Array({1, heads, total, value_dim});
  all.lse = Array({1, heads, total}, -infinity);
  all.score_magnitude = Array({1, heads, total});
  all.value_magnitude = Array({1, heads, total});
  if (with_weights) all.weights = Array({1, heads, total, total_keys});
  for (int64_t h = 0; options.has_sink && h < heads; ++h)
    for (int64_t t = 0; t < total; ++t) {
      all.lse.values[static_cast<std::size_t>(h * total + t)] = broadcast_element(inputs.sink, 0, 0, 0, h);
    }
  for (int64_t i = 0; i < sequence_count(inputs); ++i) {
    const AttentionInputs one = sequence_inputs(inputs, i);
    const AttentionResult result = attention_of(to_array(one.query), to_array(one.key), to_array(one.value), options, one,
                                                with_weights, score_function, i);
    const int64_t begin = batch_integer(inputs.cumulative_query_lengths, i);
    put_rows(result.out, all.out, begin);
    put_rows(result.lse, all.lse, begin);
    put_rows(result.score_magnitude, all.score_magnitude, begin);
    put_rows(result.value_magnitude, all.value_magnitude, begin);
    const int64_t length = one.query.shape[2], keys = one.key.shape[2],
                  key_begin = batch_integer(inputs.cumulative_key_lengths, i);
    for (int64_t row = 0; with_weights && row < heads * length; ++row) {
      const double* from = result.weights.row(row);
      std::copy(from, from + keys, all.weights.row(row / length * total + begin + row % length) + key_begin);
    }
  }
  return all;
}

// [B, L, heads * dim] -> [B, heads, L, dim]
Array split_heads(const Array& x, int64_t heads) {
  const int64_t batch = x.size(0), length = x.size(1), dim = x.size(2) / heads;
  Array y({batch, heads, length, dim});
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t l = 0; l < length; ++l) {
        const double* source = x.row(b * length + l) + h * dim;
        std::copy(source, source + dim, y.row((b * heads + h) * length + l));
      }
  return y;
}

// [B, heads, L, dim] -> [B, L, heads * dim]
Array join_heads(const Array& x) {
  const int64_t batch = x.size(0), heads = x.size(1), length = x.size(2), dim = x.size(3);
  Array y({batch, length, heads * dim});
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t l = 0; l < length; ++l) {
        const double* source = x.row((b * heads + h) * length + l);
        std::copy(source, source + dim, y.row(b * length + l) + h * dim);
      }
  return y;
}

Array add(const Array& a, const Array& b) {
  Array sum = a;
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += b.values[i];
  return sum;
}

Array multi_head_attention_of(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                              const Array& query_input, const Array& key_input, const Array& value_input,
                              const AttentionInputs& mask_inputs) {
  const int64_t kv_heads = spec.kv_heads == 0 ? spec.heads : spec.kv_heads;
  const int64_t head_dim = spec.head_dim == 0 ? spec.d_model / spec.heads : spec.head_dim;
  const Array query = split_heads(linear(query_input, weights.query, weights.query_bias), spec.heads);
  const Array key = split_heads(linear(key_input, weights.key, weights.key_bias), kv_heads);
  const Array value = split_heads(linear(value_input, weights.value, weights.value_bias), kv_heads);
  AttentionOptions options;
  options.scale = spec.scale ? *spec.scale : 1 / std::sqrt(static_cast<double>(head_dim));
  options.mask = spec.mask;
  const AttentionResult heads = attention_of(query, key, value, options, mask_inputs, false);
  return linear(join_heads(heads.out), weights.output, weights.output_bias);
}

}  // namespace

Array::Array(std::vector<int64_t> sizes, double fill)
    : shape(std::move(sizes)), values(static_cast<std::size_t>(product(shape)), fill) {}

Array to_array(const TensorView& view) {
  Array array(std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  std::size_t next = 0;
  testing::for_each_offset(view, [&](int64_t offset) { array.values[next++] = testing::load(view, offset); });
  return array;
}

AttentionResult attention(const AttentionInputs& inputs, const AttentionOptions& options, bool with_weights,
                          const ScoreFunction& score_function) {
  AttentionOptions scaled = options;
  if (!scaled.scale) scaled.scale = 1 / std::sqrt(static_cast<double>(inputs.query.shape[3]));
  if (scaled.mask.is_packed) {
    return packed_attention(inputs, scaled, with_weights, score_function);
  }
  return attention_of(to_array(inputs.query), to_array(inputs.key), to_array(inputs.value), scaled, inputs, with_weights,
                      score_function);
}

bool allowed(const AttentionInputs& inputs, const Mask& mask, int64_t b, int64_t h, int64_t t, int64_t s) {
  for (int64_t i = 0; mask.is_packed && i < sequence_count(inputs); ++i) {
    const AttentionInputs one = sequence_inputs(inputs, i);
    const int64_t query = t - batch_integer(inputs.cumulative_query_lengths, i),
                  key = s - batch_integer(inputs.cumulative_key_lengths, i);
    if (query < 0 || query >= one.query.shape[2] || key < 0 || key >= one.key.shape[2]) continue;
    return Visibility(one, mask, one.query.shape[2], one.key.shape[2], 0, h)(query, key);
  }
  if (mask.is_packed) return false;
  return Visibility(inputs, mask, inputs.query.shape[2], inputs.key.shape[2], b, h)(t, s);
}

double activation(ActivationKind kind, double x) {
  constexpr double pi = 3.14159265358979323846;
  switch (kind) {
    case ActivationKind::none:
      return x;
    case ActivationKind::relu:
      return x < 0 ? 0 : x;
    case ActivationKind::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Array linear(const Array& x, const TensorView& weight, const TensorView& bias) {
  const Array w = to_array(weight);
  const int64_t out_features = w.size(0), in_features = w.size(1);
  assert(x.shape.back() == in_features);
  std::vector<int64_t> shape = x.shape;
  shape.back() = out_features;
  Array y(shape);
  const Array b = bias.empty() ? Array({out_features}) : to_array(bias);
  const int64_t rows = product(x.shape) / std::max<int64_t>(in_features, 1);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out_features; ++o) {
      const double* a = x.row(r);
      const double* c = w.row(o);
      double sum = b.values[static_cast<std::size_t>(o)];
      for (int64_t i = 0; i < in_features; ++i) sum += a[i] * c[i];
      y.row(r)[o] = sum;
    }
  return y;
}

Array layer_norm(const Array& x, const TensorView& gamma, const TensorView& beta, double epsilon) {
  const int64_t dim = x.shape.back(), rows = product(x.shape) / std::max<int64_t>(dim, 1);
  const Array g = gamma.empty() ? Array({dim}, 1.0) : to_array(gamma);
  const Array b = beta.empty() ? Array({dim}, 0.0) : to_array(beta);
  Array y(x.shape);
  for (int64_t r = 0; r < rows; ++r) {
    const double* in = x.row(r);
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < dim; ++i) mean += in[i];
    mean /= static_cast<double>(dim);
    for (int64_t i = 0; i < dim; ++i) variance += (in[i] - mean) * (in[i] - mean);
    variance /= static_cast<double>(dim);
    for (int64_t i = 0; i < dim; ++i)
      y.row(r)[i] = (in[i] - mean) / std::sqrt(variance + epsilon) * g.values[static_cast<std::size_t>(i)] +
                    b.values[static_cast<std::size_t>(i)];
  }
  return y;
}

Array feed_forward(const Array& x, const TensorView& in, const TensorView& in_bias, const TensorView& out,
                   const TensorView& out_bias, ActivationKind kind) {
  Array inner = linear(x, in, in_bias);
  for (double& value : inner.values) value = activation(kind, value);
  return linear(inner, out, out_bias);
}

Array multi_head_attention(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights,
                           const MultiHeadAttentionInputs& inputs) {
  const TensorView key_view = inputs.key.empty() ? inputs.query : inputs.key;
  const TensorView value_view = inputs.value.empty() ? key_view : inputs.value;
  AttentionInputs mask_inputs;
  mask_inputs.key_lengths = inputs.key_lengths;
  mask_inputs.offsets = inputs.offsets;
  mask_inputs.boolean_mask = inputs.boolean_mask;
  mask_inputs.bias = inputs.bias;
  return multi_head_attention_of(spec, weights, to_array(inputs.query), to_array(key_view), to_array(value_view), mask_inputs);
}

Array encoder_block(const EncoderBlockSpec& spec, const EncoderBlockWeights& weights, const Array& x) {
  MultiHeadAttentionSpec attention_spec = spec.attention;
  attention_spec.mask.has_key_lengths = false;  // the sequence is as long as it is: nothing is padded here
  const auto attend = [&](const Array& in) {
    return multi_head_attention_of(attention_spec, weights.attention, in, in, in, AttentionInputs{});
  };
  const auto feed = [&](const Array& in) {
    return feed_forward(in, weights.feed_forward_in, weights.feed_forward_in_bias, weights.feed_forward_out,
                        weights.feed_forward_out_bias, spec.activation);
  };
  const auto first_norm = [&](const Array& in) {
    return layer_norm(in, weights.attention_norm_gamma, weights.attention_norm_beta, spec.norm_epsilon);
  };
  const auto second_norm = [&](const Array& in) {
    return layer_norm(in, weights.feed_forward_norm_gamma, weights.feed_forward_norm_beta, spec.norm_epsilon);
  };
  if (spec.norm == NormPlacement::post) {
    const Array attended = first_norm(add(x, attend(x)));
    return second_norm(add(attended, feed(attended)));
  }
  const Array attended = add(x, attend(first_norm(x)));
  return add(attended, feed(second_norm(attended)));
}

Array encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const Array& x,
              const TensorView& lengths) {
  const int64_t batch = x.size(0), padded_length = x.size(1), width = x.size(2);
  Array y(x.shape);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = lengths.empty() ? padded_length : batch_integer(lengths, b);
    Array sequence({1, length, width});
    const double* source = x.values.data() + b * padded_length * width;
    std::copy(source, source + length * width, sequence.values.begin());
    for (const EncoderBlockWeights& block : blocks) sequence = encoder_block(spec, block, sequence);
    std::copy(sequence.values.begin(), sequence.values.end(), y.values.begin() + b * padded_length * width);
  }
  return y;
}

Array encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const TensorView& x,
              const TensorView& lengths) {
  return encoder(spec, blocks, to_array(x), lengths);
}

Array bert_embeddings(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids) {
  const Array words = to_array(weights.word_embeddings), positions = to_array(weights.position_embeddings);
  const Array types = to_array(weights.token_type_embeddings), ids = to_array(token_ids);
  const int64_t batch = ids.size(0), length = ids.size(1), width = config.hidden_size;
  Array sum({batch, length, width});
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < length; ++t) {
      const double* word = words.row(static_cast<int64_t>(ids.values[static_cast<std::size_t>(b * length + t)]));
      for (int64_t i = 0; i < width; ++i) sum.row(b * length + t)[i] = word[i] + positions.row(t)[i] + types.row(0)[i];
    }
  return layer_norm(sum, weights.norm_gamma, weights.norm_beta, config.norm_epsilon);
}

Array bert_token_embeddings(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids,
                            const TensorView& lengths) {
  EncoderBlockSpec spec;
  spec.attention.d_model = config.hidden_size;
  spec.attention.heads = config.heads;
  spec.feed_forward_dim = config.intermediate_size;
  spec.activation = config.activation;
  spec.norm = NormPlacement::post;
  spec.norm_epsilon = config.norm_epsilon;
  return encoder(spec, weights.blocks, bert_embeddings(config, weights, token_ids), lengths);
}

Array mean_pool(const Array& token_embeddings, const TensorView& lengths, bool normalise) {
  const int64_t batch = token_embeddings.size(0), padded_length = token_embeddings.size(1), width = token_embeddings.size(2);
  Array pooled({batch, width});
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = lengths.empty() ? padded_length : batch_integer(lengths, b);
    double* out = pooled.row(b);
    if (length == 0) continue;
    for (int64_t t = 0; t < length; ++t)
      for (int64_t i = 0; i < width; ++i) out[i] += token_embeddings.row(b * padded_length + t)[i];
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      out[i] /= static_cast<double>(length);
      squares += out[i] * out[i];
    }
    if (normalise && squares > 0)
      for (int64_t i = 0; i < width; ++i) out[i] /= std::sqrt(squares);
  }
  return pooled;
}

Array bert_encode(const BertConfig& config, const BertWeights& weights, const TensorView& token_ids, const TensorView& lengths,
                  bool normalise) {
  return mean_pool(bert_token_embeddings(config, weights, token_ids, lengths), lengths, normalise);
}

}  // namespace polyhead::oracle
