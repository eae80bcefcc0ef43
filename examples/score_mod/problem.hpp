// What the examples' programs share: random operands, and attention by the formula in double precision to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "polyhead/polyhead.hpp"

struct Problem {
  std::int64_t batch, heads, kv_heads, queries, keys, dim;
  std::vector<float> query, key, value, out;

  Problem(std::int64_t batch_, std::int64_t heads_, std::int64_t kv_heads_, std::int64_t queries_, std::int64_t keys_,
          std::int64_t dim_, std::int64_t seed)
      : batch(batch_), heads(heads_), kv_heads(kv_heads_), queries(queries_), keys(keys_), dim(dim_) {
    std::mt19937 generator(static_cast<unsigned>(seed));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::int64_t of_heads, std::int64_t length) {
      values.resize(static_cast<std::size_t>(batch * of_heads * length * dim));
      for (float& value_of : values) value_of = normal(generator);
    };
    fill(query, heads, queries);
    fill(key, kv_heads, keys);
    fill(value, kv_heads, keys);
    out.resize(query.size());
  }

  polyhead::AttentionInputs inputs() {
    polyhead::AttentionInputs given;
    given.query = polyhead::TensorView::of(query.data(), {batch, heads, queries, dim});
    given.key = polyhead::TensorView::of(key.data(), {batch, kv_heads, keys, dim});
    given.value = polyhead::TensorView::of(value.data(), {batch, kv_heads, keys, dim});
    given.out = polyhead::TensorView::of(out.data(), {batch, heads, queries, dim});
    return given;
  }

  // By the formula, with `change` for the score modification; -inf excludes.
  using Change = std::function<double(double score, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s)>;
  std::vector<double> by_formula(const Change& change) const {
    std::vector<double> expected(out.size()), score(static_cast<std::size_t>(keys));
    for (std::int64_t row = 0; row < batch * heads * queries; ++row) {
      const std::int64_t t = row % queries, h = row / queries % heads, b = row / queries / heads;
      const std::int64_t kv_head = b * kv_heads + h / (heads / kv_heads);
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t s = 0; s < keys; ++s) {
        double dot = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
          dot += static_cast<double>(query[static_cast<std::size_t>(row * dim + d)]) *
                 static_cast<double>(key[static_cast<std::size_t>((kv_head * keys + s) * dim + d)]);
        }
        double& changed = score[static_cast<std::size_t>(s)];
        changed = change(dot / std::sqrt(static_cast<double>(dim)), b, h, t, s);
        largest = std::max(largest, changed);
      }
      if (std::isinf(largest)) continue;  // no key is left: zeros
      for (double& s : score) sum += s = std::exp(s - largest);
      for (std::int64_t s = 0; s < keys; ++s)
        for (std::int64_t d = 0; d < dim; ++d) {
          expected[static_cast<std::size_t>(row * dim + d)] +=
              score[static_cast<std::size_t>(s)] / sum *
              static_cast<double>(value[static_cast<std::size_t>((kv_head * keys + s) * dim + d)]);
        }
    }
    return expected;
  }

  // Prints and returns whether out is what it should be.
  template <class Number>
  bool is_close(const char* to, const std::vector<Number>& expected) const {
    double error = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(out[i]) - static_cast<double>(expected[i]));
      if (!(difference <= error)) error = difference;  // a NaN stays
    }
    std::printf("largest difference from %s: %.2g\n", to, error);
    return error <= 2e-5;
  }
};
