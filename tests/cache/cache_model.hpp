// What a cache should hold, kept the plain way: a list of tokens for each sequence.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/kv_cache.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"

namespace polyhead::testing {

inline KvCacheSpec cache_spec(CacheKind kind, std::int64_t sequences, std::int64_t kv_heads, std::int64_t head_dim,
                              std::int64_t value_dim, std::int64_t capacity = 0, std::int64_t page_tokens = 0) {
  KvCacheSpec spec;
  spec.kind = kind;
  spec.sequences = sequences;
  spec.kv_heads = kv_heads;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.capacity = capacity;
  spec.page_tokens = page_tokens;
  if (kind == CacheKind::ring) spec.window = capacity;
  return spec;
}

inline std::string describe(const KvCacheSpec& spec) {
  const char* const kinds[] = {"contiguous", "ring", "paged"};
  return std::string(kinds[static_cast<int>(spec.kind)]) + " sequences " + std::to_string(spec.sequences) + " G " +
         std::to_string(spec.kv_heads) + " D " + std::to_string(spec.head_dim) + " E " + std::to_string(spec.value_dim) +
         " capacity " + std::to_string(spec.capacity) + " page_tokens " + std::to_string(spec.page_tokens) + " max_pages " +
         std::to_string(spec.max_pages) + " " + name(spec.dtype);
}

// A list whose memory stays for good, so that views of it may be kept.
inline const TensorView& list_of(DType dtype, const std::vector<std::int64_t>& values) {
  static std::deque<Tensor> all;
  return all.emplace_back(integers(dtype, values)).view();
}

// New tokens for some sequences, with memory of their own.
struct NewTokens {
  std::vector<std::int64_t> which, counts;
  Tensor key, value, sequences, lengths;

  CacheAppend append() const {
    CacheAppend tokens;
    tokens.key = key;
    tokens.value = value;
    tokens.sequences = sequences;
    tokens.lengths = lengths;
    return tokens;
  }
};

// `which` and `counts` of tokens, of numbers that tell every element from every other; any layout.
inline NewTokens new_tokens(const KvCacheSpec& spec, const std::vector<std::int64_t>& which,
                            const std::vector<std::int64_t>& counts, Random& random) {
  NewTokens tokens;
  tokens.which = which;
  tokens.counts = counts;
  const auto batch = static_cast<std::int64_t>(which.size());
  std::int64_t longest = 0;
  for (const std::int64_t count : counts) longest = std::max(longest, count);
  longest += random.integer(0, 2);  // padding that must not be stored
  const auto made = [&](std::int64_t dim) {
    const std::vector<int> order =
        random.choice(std::vector<std::vector<int>>{{0, 1, 2, 3}, {0, 2, 1, 3}, {2, 0, 1, 3}, {0, 1, 3, 2}});
    Tensor tensor = Tensor::ordered(DType::f32, {batch, spec.kv_heads, longest, dim}, order, random.integer(0, 3));
    fill_normal(tensor, random);
    return tensor;
  };
  tokens.key = made(spec.head_dim);
  tokens.value = made(spec.value_dim == 0 ? spec.head_dim : spec.value_dim);
  tokens.sequences = integers(random.choice({DType::i32, DType::i64}), which);
  tokens.lengths = integers(random.choice({DType::i32, DType::i64}), counts);
  return tokens;
}

// The nearest number of the type, to even.
inline float rounded_to(DType dtype, double value) {
  static const Tensor f32(DType::f32, Tensor::Sizes{1}), bf16(DType::bf16, Tensor::Sizes{1}), f16(DType::f16, Tensor::Sizes{1});
  const TensorView& place = dtype == DType::bf16 ? bf16.view() : dtype == DType::f16 ? f16.view() : f32.view();
  store(place, 0, value);
  return static_cast<float>(load(place, 0));
}

class CacheModel {
 public:
  struct Token {
    std::vector<float> key, value;  // [kv_heads][dim]
  };

  explicit CacheModel(const KvCacheSpec& spec) : spec_(spec), tokens(static_cast<std::size_t>(spec.sequences)) {
    first.assign(tokens.size(), 0);
  }

  void append(const NewTokens& fresh) {
    for (std::size_t b = 0; b < fresh.which.size(); ++b) {
      auto& sequence = tokens[static_cast<std::size_t>(fresh.which[b])];
      for (std::int64_t t = 0; t < fresh.counts[b]; ++t) {
        const auto batch = static_cast<std::int64_t>(b);
        Token token;
        for (std::int64_t g = 0; g < spec_.kv_heads; ++g) {
          for (std::int64_t d = 0; d < spec_.head_dim; ++d) {
            token.key.push_back(rounded_to(spec_.dtype, fresh.key({batch, g, t, d})));
          }
          for (std::int64_t e = 0; e < spec_.value_dim; ++e) {
            token.value.push_back(rounded_to(spec_.dtype, fresh.value({batch, g, t, e})));
          }
        }
        sequence.push_back(std::move(token));
      }
      if (spec_.kind != CacheKind::ring) continue;
      std::int64_t& oldest = first[static_cast<std::size_t>(fresh.which[b])];
      oldest = std::max(oldest, static_cast<std::int64_t>(sequence.size()) - spec_.capacity);
    }
  }
  void trim(std::int64_t sequence, std::int64_t length) {
    tokens[static_cast<std::size_t>(sequence)].resize(static_cast<std::size_t>(length));
    if (length == 0) first[static_cast<std::size_t>(sequence)] = 0;
  }
  void fork(std::int64_t from, std::int64_t to, std::int64_t length) {
    tokens[static_cast<std::size_t>(to)] = tokens[static_cast<std::size_t>(from)];
    first[static_cast<std::size_t>(to)] = first[static_cast<std::size_t>(from)];
    if (length >= 0) trim(to, length);
  }

  // Every sequence's length, first token, and every bit of what it holds.
  ::testing::AssertionResult matches(const KvCache& cache) const {
    for (std::int64_t i = 0; i < spec_.sequences; ++i) {
      const auto& sequence = tokens[static_cast<std::size_t>(i)];
      const auto length = static_cast<std::int64_t>(sequence.size());
      const std::int64_t oldest = first[static_cast<std::size_t>(i)];
      const std::string where = "sequence " + std::to_string(i) + " of " + describe(spec_);
      if (cache.length(i) != length || cache.first_token(i) != oldest) {
        return ::testing::AssertionFailure() << where << ": length " << cache.length(i) << " from " << cache.first_token(i)
                                             << ", expected " << length << " from " << oldest;
      }
      const Tensor key(DType::f32, {spec_.kv_heads, length - oldest, spec_.head_dim});
      const Tensor value(DType::f32, {spec_.kv_heads, length - oldest, spec_.value_dim});
      cache.read(i, oldest, key, value);
      for (std::int64_t t = oldest; t < length; ++t) {
        const Token& token = sequence[static_cast<std::size_t>(t)];
        for (std::int64_t g = 0; g < spec_.kv_heads; ++g) {
          for (std::int64_t d = 0; d < spec_.head_dim; ++d) {
            const double expected = token.key[static_cast<std::size_t>(g * spec_.head_dim + d)];
            if (key({g, t - oldest, d}) == expected) continue;
            return ::testing::AssertionFailure() << where << ": key of token " << t << ", head " << g << ", element " << d
                                                 << " is " << key({g, t - oldest, d}) << ", expected " << expected;
          }
          for (std::int64_t e = 0; e < spec_.value_dim; ++e) {
            const double expected = token.value[static_cast<std::size_t>(g * spec_.value_dim + e)];
            if (value({g, t - oldest, e}) == expected) continue;
            return ::testing::AssertionFailure() << where << ": value of token " << t << ", head " << g << ", element " << e
                                                 << " is " << value({g, t - oldest, e}) << ", expected " << expected;
          }
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  KvCacheSpec spec_;

 public:
  std::vector<std::vector<Token>> tokens;  // of each sequence, forgotten ones of a ring included
  std::vector<std::int64_t> first;
};

}  // namespace polyhead::testing
