#include "layer/bert_embeddings.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "layer/geometry.hpp"

namespace polyhead::layer {

BertEmbeddings::BertEmbeddings(platform::AlignedBuffer words, platform::AlignedBuffer positions_and_type,
                               platform::AlignedBuffer gamma, platform::AlignedBuffer beta, std::int64_t hidden, double epsilon,
                               const simd::LayerNormKernel& layer_norm)
    : words_(std::move(words)),
      positions_and_type_(std::move(positions_and_type)),
      gamma_(std::move(gamma)),
      beta_(std::move(beta)),
      hidden_(hidden),
      epsilon_(epsilon),
      layer_norm_(&layer_norm) {}

void BertEmbeddings::Tokens::load(std::int64_t b, std::int64_t begin, std::int64_t end, float* rows,
                                  std::ptrdiff_t stride) const {
  const std::int64_t hidden = embeddings_.hidden_;
  const std::ptrdiff_t table_stride = hidden * static_cast<std::ptrdiff_t>(sizeof(float));
  for (std::int64_t t = begin; t < end; ++t) {
    std::memcpy(row_at(rows, stride, t - begin), row_at(embeddings_.words_.as<const float>(), table_stride, id(b, t)),
                static_cast<std::size_t>(table_stride));
  }
  simd::LayerNormF32Args args;
  args.x = rows;
  args.x_stride = stride;
  args.residual = row_at(embeddings_.positions_and_type_.as<const float>(), table_stride, begin);
  args.residual_stride = table_stride;
  args.y = rows;
  args.y_stride = stride;
  args.gamma = embeddings_.gamma_.as<float>();
  args.beta = embeddings_.beta_.as<float>();
  args.rows = end - begin;
  args.dim = hidden;
  args.epsilon = embeddings_.epsilon_;
  embeddings_.layer_norm_->run(args);
}

void mean_pool(const float* rows, std::ptrdiff_t stride, std::int64_t count, std::int64_t hidden, bool normalise, float* out,
               std::int64_t out_stride) {
  // Columns in groups, so that sums in double precision stay on the stack; rows in ascending order.
  constexpr std::int64_t group = 64;
  double square_sum = 0;
  for (std::int64_t begin = 0; begin < hidden; begin += group) {
    const std::int64_t columns = hidden - begin < group ? hidden - begin : group;
    double sums[group] = {};
    for (std::int64_t row = 0; row < count; ++row) {
      const float* x = row_at(rows, stride, row) + begin;
      for (std::int64_t i = 0; i < columns; ++i) sums[i] += static_cast<double>(x[i]);
    }
    for (std::int64_t i = 0; i < columns; ++i) {
      const double mean = count == 0 ? 0.0 : sums[i] / static_cast<double>(count);
      square_sum += mean * mean;
      out[(begin + i) * out_stride] = static_cast<float>(mean);
    }
  }
  if (!normalise || square_sum == 0) return;
  const double factor = 1 / std::sqrt(square_sum);
  for (std::int64_t i = 0; i < hidden; ++i) {
    out[i * out_stride] = static_cast<float>(static_cast<double>(out[i * out_stride]) * factor);
  }
}

}  // namespace polyhead::layer
