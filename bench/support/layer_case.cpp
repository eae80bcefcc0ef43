#include "support/layer_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/evict.hpp"

namespace polyhead::bench {
namespace {

constexpr double norm_epsilon = 1e-12;

const float* data_of(const TensorView& view) {
  return static_cast<const float*>(view.data);
}

// matrix is [rows, columns] row-major; matrix x + bias.
std::vector<double> affine(const TensorView& matrix, const TensorView& bias, const std::vector<double>& x) {
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  std::vector<double> y(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = data_of(bias)[row];
    for (std::int64_t column = 0; column < columns; ++column) {
      sum += data_of(matrix)[row * columns + column] * x[static_cast<std::size_t>(column)];
    }
    y[static_cast<std::size_t>(row)] = sum;
  }
  return y;
}

std::vector<double> normalised(std::vector<double> x, const TensorView& gamma, const TensorView& beta) {
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
  const double inverse = 1.0 / std::sqrt(variance + norm_epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - mean) * inverse * data_of(gamma)[i] + data_of(beta)[i];
  return x;
}

}  // namespace

AlignedArray& LayerCase::array(std::size_t count, std::uint64_t seed, double deviation) {
  arrays_.push_back(std::make_unique<AlignedArray>(count));
  arrays_.back()->fill_random(seed, deviation);
  return *arrays_.back();
}

LayerCase::LayerCase(const LayerWorkload& workload, LayerKind kind, const Runtime& runtime)
    : workload_(workload), kind_(kind), feed_forward_dim_(4 * workload.d_model) {
  const std::int64_t width = workload.d_model;
  std::uint64_t seed = 10;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(columns));
    return TensorView::of(array(static_cast<std::size_t>(rows * columns), seed++, deviation).data(), {rows, columns});
  };
  const auto vector = [&](std::int64_t size) {
    return TensorView::of(array(static_cast<std::size_t>(size), seed++, 0.1).data(), {size});
  };
  const auto ones = [&](std::int64_t size) {
    AlignedArray& memory = array(static_cast<std::size_t>(size), seed++, 0.1);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] += 1.0f;
    return TensorView::of(memory.data(), {size});
  };
  MultiHeadAttentionWeights& attention = weights_.attention;
  attention.query = matrix(width, width);
  attention.key = matrix(width, width);
  attention.value = matrix(width, width);
  attention.output = matrix(width, width);
  attention.query_bias = vector(width);
  attention.key_bias = vector(width);
  attention.value_bias = vector(width);
  attention.output_bias = vector(width);

  const auto count = static_cast<std::size_t>(workload.batch * workload.length * width);
  x_ = AlignedArray(count);
  x_.fill_random(1);
  out_ = AlignedArray(count);

  EncoderBlockSpec spec;
  spec.attention.d_model = width;
  spec.attention.heads = workload.heads;
  if (kind == LayerKind::attention) {
    attention_ = std::make_unique<MultiHeadAttention>(spec.attention, attention, runtime);
    return;
  }
  weights_.attention_norm_gamma = ones(width);
  weights_.attention_norm_beta = vector(width);
  weights_.feed_forward_in = matrix(feed_forward_dim_, width);
  weights_.feed_forward_in_bias = vector(feed_forward_dim_);
  weights_.feed_forward_out = matrix(width, feed_forward_dim_);
  weights_.feed_forward_out_bias = vector(width);
  weights_.feed_forward_norm_gamma = ones(width);
  weights_.feed_forward_norm_beta = vector(width);
  spec.feed_forward_dim = feed_forward_dim_;
  spec.norm_epsilon = norm_epsilon;
  encoder_ = std::make_unique<Encoder>(spec, std::vector<EncoderBlockWeights>{weights_}, runtime);
}

void LayerCase::run() const {
  const TensorView x = TensorView::of(x_.data(), {workload_.batch, workload_.length, workload_.d_model});
  const TensorView out = TensorView::of(out_.data(), {workload_.batch, workload_.length, workload_.d_model});
  if (encoder_) {
    encoder_->run(x, {}, out);
  } else {
    MultiHeadAttentionInputs inputs;
    inputs.query = x;
    inputs.out = out;
    attention_->run(inputs);
  }
}

// One output row without projecting all keys and values: dot(q, W_K x_s + b_K) = dot(W_K' q, x_s) + dot(q, b_K), and
// sum_s p_s (W_V x_s + b_V) = W_V (sum_s p_s x_s) + b_V.
std::vector<double> LayerCase::attention_row(std::int64_t item, std::int64_t position) const {
  const std::int64_t width = workload_.d_model, length = workload_.length, head_dim = width / workload_.heads;
  const MultiHeadAttentionWeights& weights = weights_.attention;
  const float* const x = x_.data() + item * length * width;
  const std::vector<double> query =
      affine(weights.query, weights.query_bias, {x + position * width, x + (position + 1) * width});
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  std::vector<double> context(static_cast<std::size_t>(width));
  for (std::int64_t head = 0; head < workload_.heads; ++head) {
    std::vector<double> direction(static_cast<std::size_t>(width));
    double constant = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const std::int64_t row = head * head_dim + d;
      const double q = query[static_cast<std::size_t>(row)];
      constant += q * data_of(weights.key_bias)[row];
      for (std::int64_t i = 0; i < width; ++i)
        direction[static_cast<std::size_t>(i)] += q * data_of(weights.key)[row * width + i];
    }
    std::vector<double> scores(static_cast<std::size_t>(length));
    for (std::int64_t s = 0; s < length; ++s) {
      double dot = constant;
      for (std::int64_t i = 0; i < width; ++i) dot += direction[static_cast<std::size_t>(i)] * x[s * width + i];
      scores[static_cast<std::size_t>(s)] = scale * dot;
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double denominator = 0;
    for (double& score : scores) denominator += score = std::exp(score - largest);
    std::vector<double> mixed(static_cast<std::size_t>(width));
    for (std::int64_t s = 0; s < length; ++s) {
      const double weight = scores[static_cast<std::size_t>(s)] / denominator;
      for (std::int64_t i = 0; i < width; ++i) mixed[static_cast<std::size_t>(i)] += weight * x[s * width + i];
    }
    for (std::int64_t e = 0; e < head_dim; ++e) {
      const std::int64_t row = head * head_dim + e;
      double sum = data_of(weights.value_bias)[row];
      for (std::int64_t i = 0; i < width; ++i)
        sum += data_of(weights.value)[row * width + i] * mixed[static_cast<std::size_t>(i)];
      context[static_cast<std::size_t>(row)] = sum;
    }
  }
  return affine(weights.output, weights.output_bias, context);
}

std::vector<double> LayerCase::encoder_row(std::int64_t item, std::int64_t position) const {
  const std::int64_t width = workload_.d_model;
  const float* const x = x_.data() + (item * workload_.length + position) * width;
  std::vector<double> attended = attention_row(item, position);
  for (std::int64_t i = 0; i < width; ++i) attended[static_cast<std::size_t>(i)] += x[i];
  const std::vector<double> middle = normalised(attended, weights_.attention_norm_gamma, weights_.attention_norm_beta);
  std::vector<double> hidden = affine(weights_.feed_forward_in, weights_.feed_forward_in_bias, middle);
  for (double& value : hidden) value = 0.5 * value * (1.0 + std::erf(value / std::sqrt(2.0)));
  std::vector<double> out = affine(weights_.feed_forward_out, weights_.feed_forward_out_bias, hidden);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += middle[i];
  return normalised(out, weights_.feed_forward_norm_gamma, weights_.feed_forward_norm_beta);
}

// The library has packed the weights into memory of its own.
void LayerCase::evict() const {
  evict_all();
}

Check LayerCase::check() {
  out_.fill(std::numeric_limits<float>::quiet_NaN());
  run();
  disturb(out_[0]);
  Check result;
  for (const std::int64_t item : {std::int64_t{0}, workload_.batch - 1}) {
    for (const std::int64_t position : {std::int64_t{0}, workload_.length / 2, workload_.length - 1}) {
      const std::vector<double> expected = encoder_ ? encoder_row(item, position) : attention_row(item, position);
      double largest = 0;
      for (const double value : expected) largest = std::max(largest, std::abs(value));
      for (std::int64_t i = 0; i < workload_.d_model; ++i) {
        const std::int64_t index = (item * workload_.length + position) * workload_.d_model + i;
        // Four chained products of d_model terms; a wrong kernel is off by orders of magnitude, rounding is well inside.
        result.take(out_[static_cast<std::size_t>(index)], expected[static_cast<std::size_t>(i)],
                    1e-5 * std::max(1.0, largest));
      }
    }
  }
  return result;
}

double LayerCase::flops() const {
  const auto tokens = static_cast<double>(workload_.batch * workload_.length);
  const auto width = static_cast<double>(workload_.d_model);
  const double attention = tokens * width * (8.0 * width + 4.0 * static_cast<double>(workload_.length));
  return kind_ == LayerKind::attention ? attention : attention + 4.0 * tokens * width * static_cast<double>(feed_forward_dim_);
}

double LayerCase::bytes() const {
  double weights = 0;
  for (const std::unique_ptr<AlignedArray>& array : arrays_) weights += static_cast<double>(array->size());
  return static_cast<double>(sizeof(float)) * (weights + static_cast<double>(x_.size() + out_.size()));
}

}  // namespace polyhead::bench
