// Rotary embedding against its formula in extended precision, with angles of their own: near and far positions, both pairings,
// heads that are rotated in part, keys on their way in and queries.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cache/cache_model.hpp"
#include "polyhead/error.hpp"

namespace polyhead::testing {
namespace {

// The formula. Elements of one head.
std::vector<double> rotated(const RotarySpec& rotary, const std::vector<double>& head, std::int64_t position) {
  std::vector<double> result = head;
  const auto dims = static_cast<std::size_t>(rotary.dims == 0 ? static_cast<std::int64_t>(head.size()) : rotary.dims);
  for (std::size_t i = 0; i < dims / 2; ++i) {
    const long double frequency = rotary.frequencies.empty()
                                      ? std::pow(static_cast<long double>(rotary.base),
                                                 -2.0L * static_cast<long double>(i) / static_cast<long double>(dims))
                                      : static_cast<long double>(rotary.frequencies[i]);
    const long double angle = frequency * static_cast<long double>(position);
    const std::size_t a = rotary.style == Rotary::interleaved ? 2 * i : i,
                      b = rotary.style == Rotary::interleaved ? a + 1 : i + dims / 2;
    const long double x = head[a], y = head[b];
    result[a] = static_cast<double>(x * std::cos(angle) - y * std::sin(angle));
    result[b] = static_cast<double>(x * std::sin(angle) + y * std::cos(angle));
  }
  return result;
}

// One rounding to f32, and what 2^-33 of a turned pair is; long double has 64 bits on x86 and 113 on ARM.
::testing::AssertionResult head_matches(const std::vector<double>& expected, const std::vector<double>& actual,
                                        const std::string& what) {
  double size = 0;
  for (const double x : expected) size = std::max(size, std::fabs(x));
  for (std::size_t d = 0; d < expected.size(); ++d) {
    const double error = std::fabs(expected[d] - actual[d]);
    if (error <= std::fabs(expected[d]) * 0x1p-24 + size * 0x1p-29 * 0x1p-3) continue;
    return ::testing::AssertionFailure() << what << ", element " << d << ": " << actual[d] << ", expected " << expected[d]
                                         << ", error " << error;
  }
  return ::testing::AssertionSuccess();
}

std::vector<RotarySpec> specs(std::int64_t head_dim) {
  std::vector<RotarySpec> all;
  for (const Rotary style : {Rotary::interleaved, Rotary::half_split}) {
    all.push_back({style, 0, 10000.0, {}});
    all.push_back({style, head_dim / 4 * 2, 500000.0, {}});
    all.push_back({style, 2, 1.0, {}});
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < head_dim / 2; ++i) frequencies.push_back(1.0 / static_cast<double>(3 * i + 1) - 0.01);
    all.push_back({style, head_dim, 10000.0, frequencies});
  }
  return all;
}

std::vector<double> head_of(const Tensor& tensor, std::initializer_list<std::int64_t> index, std::int64_t dim) {
  std::vector<std::int64_t> full(index);
  std::vector<double> head;
  for (std::int64_t d = 0; d < dim; ++d) {
    head.push_back(full.size() == 3 ? tensor({full[0], full[1], full[2], d}) : tensor({full[0], full[1], d}));
  }
  return head;
}

constexpr std::int64_t far = std::int64_t{1} << 32;
// 255 and 257, 1857 and 15962: where positions or angles of 16 bits go wrong.
const std::vector<std::int64_t> positions = {
    0,         1,          2,          255,     257, 1000,  1857, 15962, (1 << 17) - 1, (1 << 17) + 1, 1000003, (1 << 24) + 1,
    123456789, 2147483647, 2147483649, far - 5, -1,  -77777};

TEST(Rotary, KeysAreTurnedByExactAngles) {
  Random random(21);
  for (const std::int64_t head_dim : {8, 64, 130, 256}) {
    for (const RotarySpec& rotary : specs(head_dim)) {
      KvCacheSpec spec = cache_spec(CacheKind::paged, 1, 2, head_dim, 3, 0, 4);
      spec.rotary = rotary;
      KvCache cache(spec);
      for (const std::int64_t position : positions) {
        cache.trim(0, 0);
        const NewTokens fresh = new_tokens(spec, {0}, {3}, random);
        CacheAppend tokens = fresh.append();
        tokens.positions = list_of(DType::i64, {position});
        cache.append(tokens);
        const Tensor key(DType::f32, {2, 3, head_dim});
        cache.read(0, 0, key, {});
        for (std::int64_t g = 0; g < 2; ++g) {
          for (std::int64_t t = 0; t < 3; ++t) {
            ASSERT_TRUE(head_matches(
                rotated(rotary, head_of(fresh.key, {0, g, t}, head_dim), position + t), head_of(key, {g, t}, head_dim),
                "position " + std::to_string(position + t) + " style " + std::to_string(static_cast<int>(rotary.style)) +
                    " dims " + std::to_string(rotary.dims)));
          }
        }
      }
    }
  }
}

// Two numbers by hand: pair 1 of 16 at position 1857 stands at 1857 / 10000^(1/16) = 1044.268 radians, whose cosine is 0.307;
// an angle of 16 bits, 1045, has -0.408.
TEST(Rotary, AnglesAreNotOfSixteenBits) {
  KvCacheSpec spec = cache_spec(CacheKind::contiguous, 1, 1, 32, 2, 4);
  for (const Rotary style : {Rotary::interleaved, Rotary::half_split}) {
    spec.rotary.style = style;
    KvCache cache(spec);
    const Tensor key(DType::f32, {1, 1, 1, 32}), value(DType::f32, {1, 1, 1, 2}), stored(DType::f32, {1, 1, 32});
    fill(key, 0.0), fill(value, 0.0);
    const std::int64_t x = style == Rotary::interleaved ? 2 : 1, y = style == Rotary::interleaved ? 3 : 17;
    key.set({0, 0, 0, x}, 1);
    CacheAppend tokens;
    tokens.key = key, tokens.value = value;
    tokens.positions = list_of(DType::i32, {1857});
    cache.append(tokens);
    cache.read(0, 0, stored, {});
    EXPECT_NEAR(stored({0, 0, x}), 0.307, 1e-3);
    EXPECT_NEAR(stored({0, 0, y}), 0.952, 1e-3);
  }
}

TEST(Rotary, KeysStandAtTheirSequencesLengthUnlessPositionsAreGiven) {
  Random random(22);
  for (const CacheKind kind : {CacheKind::contiguous, CacheKind::ring, CacheKind::paged}) {
    KvCacheSpec spec = cache_spec(kind, 2, 1, 16, 2, kind == CacheKind::paged ? 0 : 30, kind == CacheKind::paged ? 4 : 0);
    spec.rotary.style = Rotary::half_split;
    KvCache cache(spec);
    std::vector<std::vector<double>> expected;
    for (const std::int64_t count : {7, 1, 12}) {
      const NewTokens fresh = new_tokens(spec, {1}, {count}, random);
      for (std::int64_t t = 0; t < count; ++t) {
        expected.push_back(rotated(spec.rotary, head_of(fresh.key, {0, 0, t}, 16), static_cast<std::int64_t>(expected.size())));
      }
      cache.append(fresh.append());
    }
    const Tensor key(DType::f32, {1, 20, 16});
    cache.read(1, 0, key, {});
    for (std::int64_t t = 0; t < 20; ++t) {
      ASSERT_TRUE(head_matches(expected[static_cast<std::size_t>(t)], head_of(key, {0, t}, 16), "token " + std::to_string(t)));
    }
  }
}

TEST(Rotary, QueriesAreTurnedAsKeysAre) {
  Random random(23);
  for (const std::int64_t head_dim : {16, 136}) {
    for (const RotarySpec& rotary : specs(head_dim)) {
      KvCacheSpec spec = cache_spec(CacheKind::contiguous, 3, 1, head_dim, 2, 40);
      spec.rotary = rotary;
      KvCache cache(spec);
      cache.append(new_tokens(spec, {0, 2}, {9, 25}, random).append());
      const Tensor query = Tensor::ordered(DType::f32, {2, 3, 4, head_dim}, {0, 2, 1, 3}, 5);
      fill_normal(query, random);
      const Tensor sequences = integers(DType::i64, {2, 0}), given = integers(DType::i32, {1 << 20, 5});
      for (const bool with_positions : {false, true}) {
        const Tensor out = Tensor::ordered(DType::f32, {2, 3, 4, head_dim}, {2, 0, 1, 3}, 1, 2);
        const Tensor in_place = query.clone();
        cache.rotate_queries(query, out, with_positions ? TensorView() : sequences.view(),
                             with_positions ? given.view() : TensorView());
        cache.rotate_queries(in_place, in_place, with_positions ? TensorView() : sequences.view(),
                             with_positions ? given.view() : TensorView());
        EXPECT_TRUE(same_bits(in_place, out)) << first_difference(in_place, out);
        EXPECT_TRUE(out.surroundings_intact());
        EXPECT_TRUE(in_place.surroundings_intact());
        for (std::int64_t b = 0; b < 2; ++b) {
          const std::int64_t first = with_positions ? (b == 0 ? 1 << 20 : 5) : (b == 0 ? 25 : 9) - 4;
          for (std::int64_t h = 0; h < 3; ++h) {
            for (std::int64_t t = 0; t < 4; ++t) {
              ASSERT_TRUE(head_matches(rotated(rotary, head_of(query, {b, h, t}, head_dim), first + t),
                                       head_of(out, {b, h, t}, head_dim), "query " + std::to_string(t)));
            }
          }
        }
      }
    }
  }
}

std::string message_of(const KvCache& cache, const TensorView& query, const TensorView& out, const TensorView& sequences,
                       const TensorView& where) {
  try {
    cache.rotate_queries(query, out, sequences, where);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "not refused";
}

TEST(Rotary, WhatDoesNotFitIsNamed) {
  Random random(24);
  KvCacheSpec spec = cache_spec(CacheKind::contiguous, 2, 1, 16, 2, 40);
  spec.rotary.style = Rotary::interleaved;
  KvCache cache(spec);
  const Tensor query(DType::f32, {2, 3, 4, 16}), other(DType::f32, {2, 3, 4, 16}), narrow(DType::f32, {2, 3, 4, 8});
  fill_normal(query, random);
  EXPECT_NE(message_of(cache, narrow, narrow, {}, {}).find("query is f32[2, 3, 4, 8]"), std::string::npos);
  EXPECT_NE(message_of(cache, query, narrow, {}, {}).find("out is f32[2, 3, 4, 8]"), std::string::npos);
  const TensorView shifted = slice(query, 2, 0, 3), later = slice(query, 2, 1, 4);
  EXPECT_NE(message_of(cache, shifted, later, {}, {}).find("out overlaps query"), std::string::npos);
  EXPECT_NE(message_of(cache, query, other, integers(DType::i32, {0, 2}), {}).find("sequences[1] is 2"), std::string::npos);
  EXPECT_NE(message_of(cache, query, other, {}, integers(DType::i64, {0, far + 1})).find("positions[1] is"), std::string::npos);
  EXPECT_NE(message_of(cache, query, other, {}, integers(DType::i64, {0, far - 2})).find("positions is"), std::string::npos);
  const NewTokens fresh = new_tokens(spec, {0}, {3}, random);
  CacheAppend tokens = fresh.append();
  tokens.positions = list_of(DType::i64, {far});
  EXPECT_THROW(cache.append(tokens), Error);
  EXPECT_EQ(cache.length(0), 0);
}

}  // namespace
}  // namespace polyhead::testing
