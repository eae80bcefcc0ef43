// What every attention kernel is tested for: its results against float64, and the promises of its contract. A test file
// instantiates AttentionKernelTest with the kernels it is about.
#pragma once

#include <gtest/gtest.h>

#include <cfenv>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention_problem.hpp"

namespace polyhead::test {

using simd::AttentionF32Args;
using simd::AttentionKernel;

struct KernelCase {
  std::string name;
  const simd::AttentionKernel* kernel;
  const simd::MergeKernel* merge;
  bool promises_speed;
  // Whether a NaN in a value column leaves the other columns of its row bit for bit alone (else: right, by the formula).
  bool computes_columns_apart;
  Precision precision = Precision::strict;
  double weight_rounding = 0;  // relative, of weights before values are multiplied with them
};

class AttentionKernelTest : public ::testing::TestWithParam<KernelCase> {
 protected:
  const AttentionKernel& kernel() const { return *GetParam().kernel; }
  const simd::MergeKernel& merge() const { return *GetParam().merge; }

  void expect_right(AttentionProblem& problem, const AttentionProblem::Result& result, const std::string& what) const {
    problem.expect_right(result, what, GetParam().precision, GetParam().weight_rounding);
  }

  // What a number may change by when it is computed in another way: values are below 1.7, weights rounded to bf16 add up to 1
  // within 2^-9, and results of 16 bits may fall to the next number.
  float reach() const {
    if (kernel().element == simd::Element::f16) return 1.7f * (0x1p-11f + 0x1p-10f);
    if (GetParam().weight_rounding > 0) return 1.7f * (0x1p-8f + 0x1p-7f);
    return GetParam().precision == Precision::fast ? 2e-4f : 1e-5f;
  }

  // `other`: the same result where a NaN somewhere in its row's operands did not reach it.
  bool same_or_right(float other, float clean, bool row_is_clean) const {
    if (row_is_clean || GetParam().computes_columns_apart) return bits_of(other) == bits_of(clean);
    return std::fabs(other - clean) < reach();
  }

  void check(const AttentionShape& shape, std::uint32_t seed, double query_size = 1.0) {
    AttentionProblem problem(shape, seed, query_size);
    expect_right(problem, problem.run(kernel()), kernel().name);
  }

  std::mt19937 generator{7};
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  }
};

// Values around the multiples of `edge`.
inline std::vector<std::int64_t> around(std::initializer_list<std::int64_t> edges, std::int64_t reach) {
  std::set<std::int64_t> values;
  for (const std::int64_t edge : edges) {
    for (std::int64_t i = -reach; i <= reach; ++i) {
      if (edge + i >= 1) values.insert(edge + i);
    }
  }
  return {values.begin(), values.end()};
}

TEST_P(AttentionKernelTest, EveryRemainderOfRows) {
  const std::int64_t block = kernel().row_block;
  for (std::int64_t rows = 1; rows <= 4 * block + 2; rows += rows < block + 2 ? 1 : 5) check({rows, 1, 37, 11, 9}, 100);
}

TEST_P(AttentionKernelTest, EveryRemainderOfKeys) {
  const std::int64_t block = kernel().key_block;
  for (std::int64_t keys = 1; keys <= 40; ++keys) check({5, 1, keys, 8, 8}, 200);
  for (const std::int64_t keys : around({block, 2 * block, 5 * block}, 4)) check({3, 2, keys, 6, 5}, 300);
}

TEST_P(AttentionKernelTest, EveryRemainderOfHeadAndValueSizes) {
  for (std::int64_t size = 1; size <= 40; ++size) {
    check({7, 1, 19, size, 5}, 400);
    check({7, 1, 19, 5, size}, 500);
    check({1, 3, 19, size, 41 - size}, 600);
  }
  for (const std::int64_t size : {64, 72, 80, 96, 112, 128, 192, 256, 500}) check({9, 1, 50, size, size}, 700);
}

TEST_P(AttentionKernelTest, RandomShapesAndLayouts) {
  for (std::uint32_t i = 0; i < 60; ++i) {
    AttentionShape shape{pick(1, 40), pick(1, 5), pick(1, 300), pick(1, 70), pick(1, 70)};
    shape.gap = pick(0, 1) * pick(1, 9);
    shape.heads_outside = pick(0, 1) != 0;
    check(shape, 800 + i);
  }
}

TEST_P(AttentionKernelTest, ScaleMayBeNegativeZeroOrLarge) {
  for (const double scale : {0.0, -0.125, -1.0, 1.0, 3.5, 1e-30, 1e-300}) {
    check({20, 1, 150, 16, 16, scale}, 900);
  }
  check({33, 1, 270, 64, 64, 0.125}, 901, 8.0);
  check({33, 1, 270, 64, 64, 0.125}, 902, 100.0);
}

TEST_P(AttentionKernelTest, CausalAndWindows) {
  const std::int64_t none_begin = AttentionF32Args::unbounded_begin, none_end = AttentionF32Args::unbounded_end;
  for (const std::int64_t group : {1, 3}) {
    for (const std::int64_t keys : {5, 70, 300}) {
      for (const std::int64_t queries : {1, 6, 40, 150}) {
        for (const auto& [begin, end] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{none_begin, 1},
                                                                {none_begin, keys - queries + 1},
                                                                {0, none_end},
                                                                {-3, 4},
                                                                {0, 1},
                                                                {keys - queries - 6, keys - queries + 1},
                                                                {-200, -100},
                                                                {1000, none_end},
                                                                {none_begin, -1000},
                                                                {5, 5}}) {
          check({queries, group, keys, 9, 8, 0.3, begin, end}, 1000);
        }
      }
    }
  }
}

TEST_P(AttentionKernelTest, BooleanMaskWithEveryBroadcast) {
  for (int pattern = 0; pattern < 8; ++pattern) {
    for (const std::int64_t key_step : {1, 3}) {
      for (const std::int64_t group : {1, 2}) {
        for (const double density : {0.0, 0.5, 0.95, 1.0}) {
          AttentionProblem problem({21, group, 277, 12, 10}, 1100 + static_cast<std::uint32_t>(pattern));
          problem.mask.emplace(problem.shape, pattern & 1, pattern & 2, pattern & 4, key_step);
          std::bernoulli_distribution keep(density);
          for (std::size_t i = 0; i < problem.mask->values->size(); ++i) {
            // Any byte but 0 allows.
            (*problem.mask->values)[i] = keep(generator) ? static_cast<std::uint8_t>(pick(1, 255)) : 0;
          }
          expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " mask pattern " + std::to_string(pattern));
        }
      }
    }
  }
}

TEST_P(AttentionKernelTest, BiasWithEveryBroadcast) {
  for (int pattern = 0; pattern < 8; ++pattern) {
    for (const std::int64_t key_step : {1, 3}) {
      for (const std::int64_t group : {1, 2}) {
        for (const bool excluding : {false, true}) {
          AttentionProblem problem({21, group, 277, 12, 10}, 1200 + static_cast<std::uint32_t>(pattern));
          problem.bias.emplace(problem.shape, pattern & 1, pattern & 2, pattern & 4, key_step);
          problem.bias->values->fill_random(1300, -6, 6);
          for (std::size_t i = 0; excluding && i < problem.bias->values->size(); ++i) {
            if (pick(0, 2) == 0) (*problem.bias->values)[i] = -kInfinity;
          }
          expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " bias pattern " + std::to_string(pattern));
        }
      }
    }
  }
}

// Rows may be asked for ahead of their use: from behind the keys' end too, in pages, and with keys that nobody sees.
TEST_P(AttentionKernelTest, FetchingAheadChangesNoBit) {
  for (const std::int64_t keys : {100, 256, 700}) {
    for (const std::int64_t head_dim : {3, 49, 130}) {
      for (const std::int64_t group : {1, 5}) {
        for (const bool paged : {false, true}) {
          AttentionShape shape{1, group, keys, head_dim, head_dim, 0.2};
          shape.visible_end = keys - 10;
          AttentionProblem problem(shape, 2600);
          if (paged) problem.put_in_pages(64);
          const AttentionProblem::Result left = problem.run(kernel());
          for (const std::int64_t bytes : {1, 2304, 1 << 20}) {
            problem.fetch_ahead = bytes;
            const std::string what = std::string(kernel().name) + ", " + std::to_string(bytes) + " bytes ahead";
            expect_same_bits(problem.run(kernel()).out, left.out, what);
          }
        }
      }
    }
  }
}

// A bias of 16 bits is worth what its numbers are in f32, to the bit, however it is spread out: of everyday size and -inf,
// denormals of f16 (which count beside scores of 0), the largest of its type. What no row sees is poisoned.
TEST_P(AttentionKernelTest, BiasOf16BitsIsWidenedExactly) {
  for (const simd::Element element : {simd::Element::bf16, simd::Element::f16}) {
    const float largest = element == simd::Element::bf16 ? 0x1.FEp127f : 65504.0f;
    for (int pattern = 0; pattern < 8; ++pattern) {
      for (const std::int64_t key_step : {1, 3}) {
        for (const std::int64_t queries : {1, 21}) {
          for (const int kind : {0, 1, 2}) {
            AttentionShape shape{queries, 2, 277, 12, 10, kind == 1 ? 0.0 : 0.125};
            const std::int64_t seen_end = 260;
            shape.visible_end = seen_end - queries + 1;
            AttentionProblem problem(shape, 1320 + static_cast<std::uint32_t>(pattern));
            problem.bias_element = element;
            problem.bias.emplace(shape, pattern & 1, pattern & 2, pattern & 4, key_step);
            Guarded<float>& values = *problem.bias->values;
            values.fill_random(1330, kind == 1 ? -6e-5 : -6, kind == 1 ? 6e-5 : 6);
            for (std::size_t i = 0; i < values.size(); ++i) {
              if (kind == 0 && pick(0, 2) == 0) values[i] = -kInfinity;
              if (kind == 2) values[i] = pick(0, 2) == 0 ? 0.0f : -largest;
            }
            for (std::int64_t s = seen_end; (pattern & 4) != 0 && s < shape.keys; ++s) {
              for (std::int64_t row = 0; row < shape.rows(); ++row) problem.bias->at(row / 2, row % 2, s) = kNaN;
            }
            const std::string what = std::string(kernel().name) + (element == simd::Element::bf16 ? " bf16" : " f16") +
                                     " bias, pattern " + std::to_string(pattern) + ", kind " + std::to_string(kind);
            const AttentionProblem::Result narrow = problem.run(kernel());
            const AttentionProblem::Result narrow_split = problem.run_split(kernel(), merge(), kernel().key_block);
            expect_right(problem, narrow, what);
            problem.bias_element = simd::Element::f32;
            const AttentionProblem::Result wide = problem.run(kernel());
            const AttentionProblem::Result wide_split = problem.run_split(kernel(), merge(), kernel().key_block);
            expect_same_bits(narrow.out, wide.out, what);
            expect_same_bits(narrow.lse, wide.lse, what + ", lse");
            expect_same_bits(narrow_split.out, wide_split.out, what + ", split");
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// Scores far below, around and far above the cap; a cap that leaves every score as it is; one that makes all of them equal.
TEST_P(AttentionKernelTest, SoftcapOfEverySize) {
  for (const double softcap : {1e-300, 1e-30, 0.01, 0.5, 3.0, 30.0, 1000.0, 1e30, 1e300}) {
    for (const double query_size : {0.01, 1.0, 20.0}) {
      for (const std::int64_t queries : {1, 21}) {
        AttentionProblem problem({queries, 2, 277, 12, 10}, 2700, query_size);
        problem.softcap = softcap;
        const std::string what = std::string(kernel().name) + " softcap " + std::to_string(softcap);
        expect_right(problem, problem.run(kernel()), what);
        expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), what + ", split");
      }
    }
  }
}

// An infinite score is capped too, and a NaN stays.
TEST_P(AttentionKernelTest, SoftcapOfInfiniteAndNaNScores) {
  for (const float value : {kInfinity, -kInfinity, kNaN}) {
    AttentionProblem problem({20, 1, 150, 1, 6}, 2710);
    problem.softcap = 2.0;
    for (const std::int64_t s : {0, 77, 149}) problem.key_at(s, 0) = value;
    expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " key " + std::to_string(value));
  }
}

TEST_P(AttentionKernelTest, AlibiAtEveryDistance) {
  for (const std::int64_t offset : {0, 130, -40, 100000, -100000}) {
    for (const std::int64_t group : {1, 3}) {
      for (const std::int64_t queries : {1, 50}) {
        for (const float steep : {0.001f, 0.3f, 20.0f}) {
          AttentionProblem problem({queries, group, 277, 12, 10}, 2720);
          problem.give_alibi(2721, -steep, steep, offset);
          const std::string what =
              std::string(kernel().name) + " slopes up to " + std::to_string(steep) + ", offset " + std::to_string(offset);
          expect_right(problem, problem.run(kernel()), what);
          expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), what + ", split");
        }
      }
    }
  }
}

// A finite bias does not bring back a key whose score is -inf.
TEST_P(AttentionKernelTest, BiasLeavesScoresOfMinusInfinity) {
  for (const std::int64_t queries : {1, 20}) {
    AttentionProblem problem({queries, 2, 150, 1, 6}, 2740);
    problem.bias.emplace(problem.shape, true, true, true, 1);
    problem.bias->values->fill_random(2741, -3, 3);
    for (std::int64_t row = 0; row < 2 * queries; ++row) problem.query_at(row / 2, row % 2, 0) = 1.0f;
    for (const std::int64_t s : {4, 149}) {
      problem.key_at(s, 0) = -kInfinity;
      problem.value_at(s, 3) = kNaN;
    }
    expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " biased scores of -inf");
  }
}

// The caller's own function: a number of its own for each place, exact in f32, and -inf for one place in seven.
inline double score_of_place(double score, std::int64_t head, std::int64_t query, std::int64_t key) {
  if ((head + query + 2 * key) % 7 == 0) return -kInfinity;
  return 0.75 * score + 0.25 * static_cast<double>((5 * head + 3 * query + 11 * key) % 13 - 6);
}

struct PlacesSeen {
  std::int64_t calls = 0, asked = 0, wrong = 0;
};

inline void change_places(void* context, const simd::ScoreModTile& tile) {
  auto& seen = *static_cast<PlacesSeen*>(context);
  ++seen.calls;
  const auto at = [](const simd::ScoreModIndex& index, std::int64_t line, std::int64_t lane) {
    return index.first + index.of_line[line] + index.of_lane[lane];
  };
  seen.wrong += tile.batch != 3 || tile.lines < 1 || tile.lanes < 1 || tile.line_stride < tile.lanes;
  for (std::int64_t line = 0; line < tile.lines; ++line) {
    for (std::int64_t lane = 0; lane < tile.lanes; ++lane) {
      const std::int64_t head = at(tile.head, line, lane), query = at(tile.query, line, lane), key = at(tile.key, line, lane);
      seen.wrong += head < 20 || query < 100 || key < 7000;
      float& score = tile.scores[line * tile.line_stride + lane];
      score = static_cast<float>(score_of_place(static_cast<double>(score), head, query, key));
    }
  }
}

inline simd::TileClass class_of_places(void* context, const simd::ScoreModRange& range) {
  auto& seen = *static_cast<PlacesSeen*>(context);
  ++seen.asked;
  seen.wrong += range.batch != 3 || range.head_begin < 20 || range.head_end <= range.head_begin || range.query_begin < 100 ||
                range.query_end <= range.query_begin || range.key_begin < 7000 || range.key_end <= range.key_begin;
  return simd::TileClass::partial;
}

TEST_P(AttentionKernelTest, ScoreModIsToldWhichScoreItChanges) {
  for (const std::int64_t group : {1, 3}) {
    for (const std::int64_t queries : {1, 5, 50}) {
      for (const std::int64_t keys : {1, 60, 277}) {
        for (const bool capped : {false, true}) {
          AttentionProblem problem({queries, group, keys, 40, 10}, 2750);
          PlacesSeen seen;
          const simd::ScoreMod mod = {change_places, class_of_places, &seen};
          problem.score_mod = &mod;
          problem.score_function = [](double score, std::int64_t t, std::int64_t g, std::int64_t s) {
            return score_of_place(score, 20 + g, 100 + t, 7000 + s);
          };
          if (capped) {
            problem.softcap = 1.5;
            problem.give_alibi(2751, -0.1f, 0.4f, 30);
            problem.bias.emplace(problem.shape, true, true, true, 1);
            problem.bias->values->fill_random(2752, -3, 3);
          }
          const std::string what = std::string(kernel().name) + " score_mod, group " + std::to_string(group) + ", queries " +
                                   std::to_string(queries) + ", keys " + std::to_string(keys);
          expect_right(problem, problem.run(kernel()), what);
          expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), what + ", split");
          ASSERT_EQ(seen.wrong, 0) << what;
          ASSERT_GT(seen.calls, 0) << what;
          ASSERT_GT(seen.asked, 0) << what;
        }
      }
    }
  }
}

// What it makes of hidden keys counts for nothing, nor do their values.
TEST_P(AttentionKernelTest, ScoreModOfHiddenKeysCountsForNothing) {
  for (const std::int64_t queries : {1, 50}) {
    AttentionProblem problem({queries, 2, 150, 8, 6}, 2760);
    problem.shape.visible_begin = 40;
    problem.shape.visible_end = 90;
    const simd::ScoreMod mod = {
        [](void*, const simd::ScoreModTile& tile) {
          for (std::int64_t line = 0; line < tile.lines; ++line) {
            for (std::int64_t lane = 0; lane < tile.lanes; ++lane) {
              const std::int64_t t = tile.query.first + tile.query.of_line[line] + tile.query.of_lane[lane] - 100,
                                 s = tile.key.first + tile.key.of_line[line] + tile.key.of_lane[lane] - 7000;
              if (s < t + 40 || s >= t + 90) tile.scores[line * tile.line_stride + lane] = kNaN;
            }
          }
        },
        nullptr, nullptr};
    problem.score_mod = &mod;
    for (std::int64_t s = 0; s < 40; ++s) problem.value_at(s, 3) = kNaN;
    expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " NaN of hidden keys");
  }
}

// However far away a key is, ALiBi excludes none; a score of -inf does.
TEST_P(AttentionKernelTest, AlibiOfHugeDistancesIsArithmetic) {
  AttentionProblem far({20, 2, 150, 8, 6}, 2730);
  far.give_alibi(2731, 1e30f, 2e30f, std::int64_t{1} << 60);
  const AttentionProblem::Result result = far.run(kernel());
  for (const float x : result.out) ASSERT_TRUE(std::isfinite(x)) << kernel().name;
  for (const float x : result.lse) ASSERT_LT(x, -1e38f) << kernel().name;

  AttentionProblem excluded({20, 2, 150, 1, 6}, 2732);
  excluded.give_alibi(2733, 0.1f, 0.2f, 10);
  for (std::int64_t row = 0; row < 40; ++row) excluded.query_at(row / 2, row % 2, 0) = 1.0f;
  for (const std::int64_t s : {4, 149}) {
    excluded.key_at(s, 0) = -kInfinity;
    excluded.value_at(s, 3) = kNaN;
  }
  expect_right(excluded, excluded.run(kernel()), std::string(kernel().name) + " scores of -inf");
}

TEST_P(AttentionKernelTest, SinksOfEverySize) {
  for (const float sink : {-1e30f, -100.0f, -3.0f, 0.0f, 3.0f, 100.0f, 3e38f, -kInfinity}) {
    for (const std::int64_t queries : {1, 21}) {
      AttentionShape shape{queries, 3, 277, 12, 10};
      shape.visible_end = 5;
      shape.visible_begin = -100;
      for (const std::int64_t empty_rows : {0, 9}) {
        shape.visible_end = 5 - 2 * empty_rows;
        AttentionProblem problem(shape, 2740);
        problem.sinks.emplace(3);
        for (std::size_t g = 0; g < 3; ++g) (*problem.sinks)[g] = sink + 0.25f * static_cast<float>(g);
        const std::string what = std::string(kernel().name) + " sink " + std::to_string(sink);
        const AttentionProblem::Result whole = problem.run(kernel());
        expect_right(problem, whole, what);
        expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), what + ", split");
        expect_same_bits(problem.run(kernel(), 0, shape.rows(), false).out, whole.out, what + ", without lse");
        if (sink != -kInfinity) continue;
        problem.sinks.reset();
        const AttentionProblem::Result without = problem.run(kernel());
        expect_same_bits(without.out, whole.out, what);
        expect_same_bits(without.lse, whole.lse, what);
      }
    }
  }
}

TEST_P(AttentionKernelTest, EverythingAtOnce) {
  for (std::uint32_t i = 0; i < 40; ++i) {
    AttentionShape shape{pick(1, 50), pick(1, 4), pick(1, 330), pick(1, 40), pick(1, 40)};
    shape.visible_begin = pick(-200, 60);
    shape.visible_end = shape.visible_begin + pick(0, 300);
    shape.gap = pick(0, 3);
    AttentionProblem problem(shape, 1400 + i);
    problem.mask.emplace(shape, pick(0, 1), pick(0, 1), pick(0, 1), pick(1, 2));
    for (std::size_t j = 0; j < problem.mask->values->size(); ++j) (*problem.mask->values)[j] = pick(0, 5) != 0;
    problem.bias.emplace(shape, pick(0, 1), pick(0, 1), pick(0, 1), pick(1, 2));
    problem.bias->values->fill_random(1500 + i, -3, 3);
    problem.bias_element = bias_elements[i % 3];
    if (pick(0, 1) != 0) problem.softcap = 1.5;
    if (pick(0, 1) != 0) problem.give_alibi(1550 + i, -0.1f, 0.4f, pick(-50, 300));
    if (pick(0, 1) != 0) problem.give_sinks(1580 + i, -3, 3);
    expect_right(problem, problem.run(kernel()), kernel().name);
    expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), std::string(kernel().name) + " split");
  }
}

// First keys that stay in sight beside a window: within one block of keys with it, blocks apart, over several blocks, in part
// beyond the diagonal. What no row sees is poisoned.
TEST_P(AttentionKernelTest, KeptKeysBesideAWindow) {
  for (std::uint32_t i = 0; i < 24; ++i) {
    AttentionShape shape{i % 3 == 0 ? pick(1, 3) : pick(4, 90), pick(1, 3), pick(200, 1300), pick(1, 40), pick(1, 40)};
    shape.visible_end = pick(0, shape.keys);
    shape.visible_begin = shape.visible_end - pick(1, i % 4 == 0 ? 300 : 60);
    shape.kept_end = i % 2 == 0 ? pick(1, 9) : pick(10, 400);
    AttentionProblem problem(shape, 1600 + i);
    if (pick(0, 2) == 0) {
      problem.mask.emplace(shape, pick(0, 1), pick(0, 1), pick(0, 1), pick(1, 2));
      for (std::size_t j = 0; j < problem.mask->values->size(); ++j) (*problem.mask->values)[j] = pick(0, 5) != 0;
    }
    if (pick(0, 2) == 0) {
      problem.bias.emplace(shape, pick(0, 1), pick(0, 1), pick(0, 1), pick(1, 2));
      problem.bias->values->fill_random(1700 + i, -3, 3);
      problem.bias_element = bias_elements[i % 3];
    }
    for (std::int64_t s = 0; s < shape.keys; ++s) {
      const bool seen = (s < shape.kept_end || s >= shape.visible_begin) && s < shape.queries - 1 + shape.visible_end;
      if (!seen) problem.value_at(s, pick(0, shape.value_dim - 1)) = kNaN;
    }
    const AttentionProblem::Result whole = problem.run(kernel());
    expect_right(problem, whole, kernel().name);
    expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), std::string(kernel().name) + " split");
    const AttentionProblem::Result last = problem.run(kernel(), shape.rows() - 1, shape.rows());
    expect_same_bits(last.out, {whole.out.end() - shape.value_dim, whole.out.end()}, "the last row alone");
  }
}

TEST_P(AttentionKernelTest, FiniteBiasIsArithmetic) {
  const float lowest = std::numeric_limits<float>::lowest();
  for (const float bias : {-1e4f, -1e30f, lowest}) {
    for (const bool one_key_free : {false, true}) {
      AttentionProblem problem({18, 1, 140, 8, 8}, 1600);
      problem.bias.emplace(problem.shape, true, false, true);
      for (std::size_t i = 0; i < problem.bias->values->size(); ++i) (*problem.bias->values)[i] = bias;
      for (std::int64_t t = 0; one_key_free && t < problem.shape.queries; ++t) problem.bias->at(t, 0, t * 7) = 0.0f;
      expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " bias " + std::to_string(bias));
    }
  }
}

// A row's bits must not change with the rows it is computed beside, nor when lse is asked for.
TEST_P(AttentionKernelTest, RowsHaveTheSameBitsInAnyRange) {
  for (const int kind : {0, 1, 2, 3, 4}) {
    AttentionShape shape{45, 2, 300, 24, 20};
    if (kind == 1) shape.visible_end = 200;
    if (kind == 2) shape.visible_begin = -30, shape.visible_end = 31;
    AttentionProblem problem(shape, 1700, 3.0);
    if (kind == 3) {
      problem.mask.emplace(shape, true, false, true);
      for (std::size_t j = 0; j < problem.mask->values->size(); ++j) (*problem.mask->values)[j] = pick(0, 1) != 0;
      for (std::int64_t t = 0; t < 20; ++t) {
        for (std::int64_t s = 0; s < 200; ++s) problem.mask->at(t, 0, s) = 0;
      }
    }
    if (kind == 4) {
      problem.softcap = 2.0;
      problem.give_alibi(1701, 1e-8f, 1e-7f, (std::int64_t{1} << 24) + 1);  // a position that floats round
      problem.give_sinks(1702, -1, 1);
    }
    const AttentionProblem::Result all = problem.run(kernel());
    expect_same_bits(problem.run(kernel(), 0, shape.rows(), false).out, all.out, "without lse");
    for (const std::int64_t size : {1, 2, 3, 7, 16, 48, 61}) {
      std::vector<float> out, lse;
      for (std::int64_t row = 0; row < shape.rows(); row += size) {
        const AttentionProblem::Result some = problem.run(kernel(), row, std::min(row + size, shape.rows()));
        out.insert(out.end(), some.out.begin(), some.out.end());
        lse.insert(lse.end(), some.lse.begin(), some.lse.end());
      }
      expect_same_bits(out, all.out,
                       std::string(kernel().name) + " in ranges of " + std::to_string(size) + ", kind " + std::to_string(kind));
      expect_same_bits(lse, all.lse, "lse");
    }
  }
}

// Marks of a mask show in no bit, whatever rows, keys and limits a call has; and what they hide is not looked at.
TEST_P(AttentionKernelTest, MarksOfAMaskDoNotChangeBits) {
  for (int pattern = 0; pattern < 8; ++pattern) {
    for (const std::int64_t group : {1, 3}) {
      for (const std::int64_t queries : {1, 3, 45}) {
        for (const int limits : {0, 1, 2}) {
          AttentionShape shape{queries, group, 430, 20, 12, 0.2};
          if (limits == 1) shape.visible_end = 430 - queries + 1;
          if (limits == 2) shape.visible_begin = 150, shape.visible_end = 400, shape.kept_end = 10;
          AttentionProblem problem(shape, 1850 + static_cast<std::uint32_t>(pattern));
          problem.mask.emplace(shape, pattern & 1, pattern & 2, pattern & 4);
          // Blocks are hidden, whole or mixed; sevens and sixty-threes move them off the marks' own borders now and then.
          const std::int64_t keys_a_block = pick(0, 1) != 0 ? 64 : 63, queries_a_block = pick(0, 1) != 0 ? 8 : 7;
          for (std::int64_t t = 0; t < queries; ++t) {
            for (std::int64_t g = 0; g < group; ++g) {
              for (std::int64_t s = 0; s < 430; ++s) {
                const std::int64_t kind = (3 * (t / queries_a_block) + s / keys_a_block + pattern) % 4;
                problem.mask->at(t, g, s) = kind < 2 ? 0 : kind == 2 || (t + g + s) % 3 != 0 ? 200 : 0;
              }
            }
          }
          const AttentionProblem::Result without = problem.run(kernel());
          const std::string what =
              std::string(kernel().name) + " " + shape.text() + ", mask pattern " + std::to_string(pattern);
          expect_right(problem, without, what);
          for (const bool one_row : {true, false}) {
            problem.mark_mask(one_row);
            const AttentionProblem::Result with = problem.run(kernel());
            expect_same_bits(with.out, without.out, what);
            expect_same_bits(with.lse, without.lse, what + ", lse");
          }
          for (std::int64_t s = 0; s < 430; ++s) {
            bool seen = false;
            for (std::int64_t row = 0; row < shape.rows(); ++row) seen = seen || problem.allowed(row / group, row % group, s);
            if (seen) continue;
            for (std::int64_t d = 0; d < 20; ++d) problem.key_at(s, d) = kNaN;
            for (std::int64_t e = 0; e < 12; ++e) problem.value_at(s, e) = s % 2 != 0 ? kNaN : kInfinity;
          }
          const AttentionProblem::Result poisoned = problem.run(kernel());
          expect_same_bits(poisoned.out, without.out, what + ", poisoned");
          expect_same_bits(poisoned.lse, without.lse, what + ", poisoned, lse");
        }
      }
    }
  }
}

// Trailing keys that no row sees may be given or left out.
TEST_P(AttentionKernelTest, KeysThatNoRowSeesDoNotChangeBits) {
  AttentionShape shape{6, 2, 155, 20, 12, 0.2, AttentionF32Args::unbounded_begin, 140};
  AttentionProblem problem(shape, 1800);
  const AttentionProblem::Result all = problem.run(kernel(), 0, 4);
  for (const std::int64_t end : {141, 142, 143, 150}) {
    problem.shape.keys = end;
    expect_same_bits(problem.run(kernel(), 0, 4).out, all.out, "keys up to " + std::to_string(end));
  }
}

// NaN and infinities in K and V: they reach exactly the rows that may see their key.
TEST_P(AttentionKernelTest, PoisonReachesOnlyRowsThatSeeIt) {
  for (const int kind : {0, 1, 2, 3, 4, 5}) {
    for (const bool in_key : {false, true}) {
      for (const float poison : {kNaN, kInfinity, -kInfinity}) {
        AttentionShape shape{40, 2, 290, 10, 13};
        if (kind == 0 || kind == 5) shape.visible_end = 260;               // causal, bottom-right
        if (kind == 1) shape.visible_begin = -20, shape.visible_end = 21;  // window
        AttentionProblem problem(shape, 1900, 2.0);
        if (kind == 2) problem.mask.emplace(shape, true, true, true);
        if (kind == 3) problem.mask.emplace(shape, false, false, true);
        if (kind == 4) problem.bias.emplace(shape, true, false, true);
        for (std::size_t j = 0; problem.mask && j < problem.mask->values->size(); ++j) {
          (*problem.mask->values)[j] = pick(0, 7) != 0;
        }
        for (std::size_t j = 0; problem.bias && j < problem.bias->values->size(); ++j) {
          (*problem.bias->values)[j] = pick(0, 7) != 0 ? 0.5f : -kInfinity;
        }
        if (kind == 5) {
          problem.softcap = 2.0;
          problem.give_alibi(1901, 0.0f, 0.1f, 250);
          problem.give_sinks(1902, -1, 1);
        }
        const AttentionProblem::Result clean = problem.run(kernel());
        const std::vector<std::int64_t> bad = {3, 17, 30, 129, 270, 286};
        for (const std::int64_t s : bad) {
          if (in_key)
            problem.key_at(s, 4) = poison;
          else
            problem.value_at(s, 7) = poison;
        }
        const AttentionProblem::Result poisoned = problem.run(kernel());
        for (std::int64_t row = 0; row < shape.rows(); ++row) {
          bool sees = false;
          for (const std::int64_t s : bad) sees |= problem.allowed(row / 2, row % 2, s);
          for (std::int64_t e = 0; e < shape.value_dim; ++e) {
            const std::size_t i = static_cast<std::size_t>(row * shape.value_dim + e);
            const bool touched = sees && (in_key || e == 7);
            if (!touched) {
              ASSERT_TRUE(same_or_right(poisoned.out[i], clean.out[i], !sees))
                  << kernel().name << " kind " << kind << " row " << row << " element " << e << " poison " << poison;
            } else if (!in_key && !std::isnan(poison)) {
              ASSERT_FALSE(std::isfinite(poisoned.out[i])) << kernel().name << " kind " << kind << " row " << row;
            } else if (std::isnan(poison)) {
              ASSERT_TRUE(std::isnan(poisoned.out[i])) << kernel().name << " kind " << kind << " row " << row;
            }
          }
        }
      }
    }
  }
}

// A visible key whose weight underflows to 0 still passes on its NaN; a masked one in the same block does not.
TEST_P(AttentionKernelTest, UnderflowedWeightsAreNotMasks) {
  AttentionShape shape{4, 1, 12, 1, 1, 1.0};
  AttentionProblem problem(shape, 2000);
  for (std::int64_t t = 0; t < 4; ++t) problem.query_at(t, 0, 0) = 1.0f;
  for (std::int64_t s = 0; s < 12; ++s) problem.key_at(s, 0) = s == 0 ? 500.0f : -500.0f;
  problem.value_at(6, 0) = kNaN;
  problem.mask.emplace(shape, true, false, true);
  for (std::size_t j = 0; j < problem.mask->values->size(); ++j) (*problem.mask->values)[j] = 1;
  problem.mask->at(1, 0, 6) = 0;
  const AttentionProblem::Result result = problem.run(kernel());
  EXPECT_TRUE(std::isnan(result.out[0]));
  if (GetParam().computes_columns_apart) {
    EXPECT_EQ(result.out[1], problem.value_at(0, 0));
  } else {
    EXPECT_NEAR(result.out[1], problem.value_at(0, 0), reach());  // rounded as a sum of pieces
  }
  EXPECT_TRUE(std::isnan(result.out[2]));
}

// A score of -inf that no mask asked for excludes its key too, whatever its value holds: here for rows whose query is
// positive.
TEST_P(AttentionKernelTest, ScoreOfMinusInfinityExcludesItsKey) {
  for (const float poison : {0.5f, kNaN, kInfinity}) {
    for (const bool every_key : {false, true}) {
      AttentionProblem problem({45, 2, 290, 5, 7}, 2050);
      for (std::int64_t row = 0; row < problem.shape.rows(); ++row) {
        for (std::int64_t d = 0; d < 5; ++d) {
          float& q = problem.query_at(row / 2, row % 2, d);
          q = row % 11 == 10 ? 0.0f : std::fabs(q) + 0.1f;  // 0 * -inf makes a row NaN
        }
      }
      for (std::int64_t s = 0; s < problem.shape.keys; ++s) {
        if (!every_key && s != 3 && s != 127 && s != 260) continue;
        for (std::int64_t d = 0; d < 5; ++d) problem.key_at(s, d) = -kInfinity;
        problem.value_at(s, s % 7) = poison;
      }
      const std::string what = std::string(kernel().name) + " value " + std::to_string(poison);
      expect_right(problem, problem.run(kernel()), what);
      expect_right(problem, problem.run_split(kernel(), merge(), kernel().key_block), what + ", split");
    }
  }
}

// A NaN in one row's result makes its block be computed again: no other row's bits may change, whichever rows are beside it.
TEST_P(AttentionKernelTest, NaNLeavesOtherRowsBitsAlone) {
  for (const bool in_value : {false, true}) {
    AttentionShape shape{70, 2, 300, 24, 21};
    if (in_value) shape.visible_end = 231;
    AttentionProblem problem(shape, 2060, 3.0);
    const AttentionProblem::Result clean = problem.run(kernel());
    // Rows 58 and 59, or those that see key 290.
    if (in_value)
      problem.value_at(290, 20) = kNaN;
    else
      problem.query_at(29, 0, 3) = problem.query_at(29, 1, 3) = kNaN;
    const auto compare = [&](const AttentionProblem::Result& result, std::int64_t first_row) {
      for (std::size_t i = 0; i < result.out.size(); ++i) {
        const std::int64_t row = first_row + static_cast<std::int64_t>(i) / 21, e = static_cast<std::int64_t>(i) % 21;
        if (in_value ? row >= 120 && e == 20 : row == 58 || row == 59) {
          ASSERT_TRUE(std::isnan(result.out[i])) << kernel().name << " row " << row;
        } else {
          ASSERT_TRUE(same_or_right(result.out[i], clean.out[static_cast<std::size_t>(row * 21 + e)], row < 120 || !in_value))
              << kernel().name << " row " << row << " element " << e;
        }
      }
    };
    for (const std::int64_t size : {3, 16, 47, 140}) {
      for (std::int64_t row = 0; row < shape.rows(); row += size) {
        compare(problem.run(kernel(), row, std::min(row + size, shape.rows())), row);
      }
    }
  }
}

// Whatever bits a NaN has.
TEST_P(AttentionKernelTest, NaNOfAnyPayloadReachesItsRow) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0xFFFFFFFFu, 0x7F800001u, 0x7FFFFFFFu, 0xFF800010u}) {
    for (const std::int64_t at : {0, 4, 8, 139}) {
      AttentionProblem problem({9, 1, 140, 5, 6}, 2100);
      float nan;
      std::memcpy(&nan, &bits, sizeof nan);
      problem.query_at(4, 0, at % 5) = nan;
      expect_right(problem, problem.run(kernel()), std::string(kernel().name) + " NaN in q");
      AttentionProblem other({9, 1, 140, 5, 6, 0.125, AttentionF32Args::unbounded_begin, 132}, 2101);
      other.key_at(at, 2) = nan;
      expect_right(other, other.run(kernel()), std::string(kernel().name) + " NaN in k");
      expect_right(other, other.run_split(kernel(), merge(), kernel().key_block),
                   std::string(kernel().name) + " NaN in k, split");
    }
  }
}

TEST_P(AttentionKernelTest, NaNBiasAndScoreAtExcludedKeys) {
  for (const simd::Element element : bias_elements) {
    AttentionProblem problem({17, 1, 133, 6, 6}, 2200);
    problem.bias_element = element;
    problem.bias.emplace(problem.shape, true, false, true);
    problem.mask.emplace(problem.shape, true, false, true);
    for (std::int64_t t = 0; t < 17; ++t) {
      for (std::int64_t s = 0; s < 133; ++s) {
        problem.mask->at(t, 0, s) = s % 3 != 0;
        problem.bias->at(t, 0, s) = s % 3 == 0 ? kNaN : s % 5 == 0 ? -kInfinity : 0.25f;
      }
    }
    for (std::int64_t s = 0; s < 133; s += 15) problem.key_at(s, 1) = kNaN;
    expect_right(problem, problem.run(kernel()), kernel().name);
    problem.bias->at(5, 0, 4) = kNaN;
    expect_right(problem, problem.run(kernel()), kernel().name);
  }
}

TEST_P(AttentionKernelTest, SplitsMergeToTheSameAnswer) {
  const std::int64_t block = kernel().key_block;
  for (const std::int64_t keys : {block - 1, block, 3 * block + 5, 70 * block + 1}) {
    for (const std::int64_t split : {block, 2 * block}) {
      AttentionProblem problem({3, 2, keys, 5, 11}, 2300, 4.0);
      expect_right(problem, problem.run_split(kernel(), merge(), split), std::string(kernel().name) + " split");
    }
  }
  AttentionProblem empty({30, 1, 2 * block + 9, 5, 11, 0.2, AttentionF32Args::unbounded_begin, -10}, 2301);
  expect_right(empty, empty.run_split(kernel(), merge(), block), std::string(kernel().name) + " split, empty rows");
}

// Where keys lie changes no bit: whole, in pages of any size, split at pages or not, with masks and with NaN that is not seen.
TEST_P(AttentionKernelTest, KeysInPagesGiveTheSameBits) {
  const std::int64_t block = kernel().key_block;
  const auto compare = [&](AttentionProblem& problem, const std::string& what) {
    const AttentionProblem::Result whole = problem.run(kernel());
    const AttentionProblem::Result split = problem.run_split(kernel(), merge(), block);
    expect_right(problem, whole, what);
    for (const std::int64_t page_keys : {std::int64_t{1}, std::int64_t{3}, std::int64_t{16}, std::int64_t{50},
                                         std::int64_t{128}, block, block + 1, 9 * block}) {
      problem.put_in_pages(page_keys);
      const std::string where = what + ", " + problem.shape.text() + ", pages of " + std::to_string(page_keys);
      const AttentionProblem::Result paged = problem.run(kernel()), paged_split = problem.run_split(kernel(), merge(), block);
      problem.pages.reset();
      expect_same_bits(paged.out, whole.out, where);
      expect_same_bits(paged.lse, whole.lse, where + ", lse");
      expect_same_bits(paged_split.out, split.out, where + ", split");
    }
  };
  for (const std::int64_t keys : {std::int64_t{1}, std::int64_t{37}, block, 2 * block + 70}) {
    for (const std::int64_t queries : {1, 3, 40}) {
      for (const std::int64_t head_dim : {5, 64}) {  // both ways through a block that decode_f32 has
        AttentionProblem problem({queries, 2, keys, head_dim, head_dim + 1, 0.2}, 2450);
        compare(problem, kernel().name);
        problem.shape.visible_begin = keys - queries - 20;
        problem.shape.visible_end = keys - queries + 1;
        compare(problem, std::string(kernel().name) + " with a window");
      }
    }
  }
  for (const std::int64_t head_dim : {9, 56}) {
    AttentionProblem problem({6, 2, 2 * block + 9, head_dim, head_dim}, 2451);
    problem.mask.emplace(problem.shape, true, false, true);
    problem.bias.emplace(problem.shape, false, true, true);
    for (std::int64_t s = 0; s < problem.shape.keys; ++s) {
      for (std::int64_t g = 0; g < 2; ++g) problem.bias->at(0, g, s) = 0.01f * static_cast<float>(s % 19);
      for (std::int64_t t = 0; t < 6; ++t) problem.mask->at(t, 0, s) = s % 7 != 3;
      if (s % 7 == 3) problem.value_at(s, 2) = kNaN;
    }
    problem.give_alibi(2452, 0.0f, 0.1f, 2 * block);
    problem.give_sinks(2453, -1.0f, 1.0f);
    problem.softcap = 5.0;
    compare(problem, std::string(kernel().name) + " with everything");
  }
}

// A ring of one page that the table names again and again: the same bits for rows that see nothing that was overwritten.
TEST_P(AttentionKernelTest, KeysInARingGiveTheSameBits) {
  const std::int64_t block = kernel().key_block;
  for (const std::int64_t head_dim : {5, 64}) {
    for (const std::int64_t queries : {1, 5, 40}) {
      for (const std::int64_t page_keys : {std::int64_t{45}, std::int64_t{64}, std::int64_t{100}, block, block + 3}) {
        for (const std::int64_t keys : {page_keys, page_keys + 1, 3 * block + 2, 9 * block}) {
          if (keys < page_keys) continue;
          AttentionProblem problem({queries, 1, keys, head_dim, head_dim, 0.2}, 2470);
          problem.shape.visible_end = keys - queries + 1;
          problem.shape.visible_begin = keys - page_keys;  // the first row sees the oldest key that is left
          const AttentionProblem::Result whole = problem.run(kernel());
          problem.put_in_pages(page_keys, true);
          problem.pages->first_page = std::max(keys - page_keys - 2 * block, std::int64_t{0}) / page_keys;
          const AttentionProblem::Result ring = problem.run(kernel(), 0, problem.shape.rows(), true, keys - page_keys);
          const std::string where = problem.shape.text() + ", ring of " + std::to_string(page_keys);
          expect_same_bits(ring.out, whole.out, where);
          expect_same_bits(ring.lse, whole.lse, where + ", lse");
        }
      }
    }
  }
}

TEST_P(AttentionKernelTest, NoKeysGiveZeros) {
  AttentionProblem problem({19, 2, 8, 5, 7}, 2400);
  problem.shape.keys = 0;
  expect_right(problem, problem.run(kernel()), kernel().name);
}

TEST_P(AttentionKernelTest, DenormalsCostNothing) {
  AttentionShape shape{64, 1, 512, 64, 64};
  AttentionProblem normal(shape, 2500), denormal(shape, 2500);
  const float tiny = kernel().element == simd::Element::f16 ? 1e-6f : 1e-39f;
  for (std::size_t i = 0; i < denormal.key.size(); ++i) denormal.key[i] *= tiny;
  for (std::size_t i = 0; i < denormal.value.size(); ++i) denormal.value[i] *= tiny;
  const auto seconds = [&](AttentionProblem& problem) {
    double best = 1e9;
    for (int i = 0; i < 7; ++i) {
      const auto start = std::chrono::steady_clock::now();
      problem.run(kernel());
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  if (!GetParam().promises_speed) GTEST_SKIP() << "this kernel promises no speed";
  EXPECT_LT(seconds(denormal), 3 * seconds(normal)) << kernel().name;
}

TEST_P(AttentionKernelTest, LeavesTheFloatingPointEnvironmentAlone) {
  AttentionProblem problem({5, 1, 20, 8, 8}, 2600);
  const AttentionProblem::Result right = problem.run(kernel());
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_UPWARD);
  const AttentionProblem::Result upward = problem.run(kernel());
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  volatile float tiny = 1e-39f;
  volatile float twice = tiny + tiny;
  EXPECT_GT(twice, 0.0f) << "denormals are flushed after the call";
  expect_same_bits(upward.out, right.out, "under another rounding mode");
}

}  // namespace polyhead::test
