// Boolean masks that heads or batch items share are summarised once a run: kernels pass over blocks that nobody sees and take
// whole ones as if there were no mask. No bit may show it: masks are compared with the same ones written out for each head and
// batch item, which nothing is shared of.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "simd/contract/attention.hpp"
#include "support/attention_case.hpp"
#include "support/cached_keys.hpp"
#include "support/pages.hpp"

namespace polyhead::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t queries_per_mark = simd::AttentionArgs::queries_per_mark;
constexpr std::int64_t keys_per_mark = simd::AttentionArgs::keys_per_mark;

// Whether (b, h, t, s) is visible, b and h being 0 where the mask is shared.
struct Pattern {
  const char* name;
  std::function<bool(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s)> visible;
};

std::vector<Pattern> patterns() {
  const auto mixed = [](std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
    const auto place = static_cast<std::uint64_t>(((b * 7 + h) * 1000 + t) * 1000 + s);
    return (place * 0x9E3779B97F4A7C15u >> 40) % 10 < 7;
  };
  return {
      {"all", [](auto, auto, auto, auto) { return true; }},
      {"none", [](auto, auto, auto, auto) { return false; }},
      {"mixed", mixed},
      {"bytes in turn", [](auto, auto, auto t, auto s) { return (t + s) % 2 == 0; }},
      {"blocks in turn", [](auto, auto, auto t, auto s) { return (t / queries_per_mark + s / keys_per_mark) % 2 == 0; }},
      {"first half", [](auto, auto, auto, auto s) { return s < 150; }},
      {"second half", [](auto b, auto h, auto, auto s) { return s >= 128 + b + h; }},
      {"edges of blocks",
       [](auto, auto, auto t, auto s) {
         return (t % queries_per_mark == 0 || t % queries_per_mark == queries_per_mark - 1) &&
                (s % (2 * keys_per_mark) == keys_per_mark - 1 || s == 2 * keys_per_mark);
       }},
      {"all but edges", [](auto, auto, auto t,
                           auto s) { return !(t % 16 == queries_per_mark && s % (4 * keys_per_mark) == 3 * keys_per_mark); }},
      {"band", [](auto, auto, auto t, auto s) { return t * 4 <= s && s < t * 4 + 70; }},
      {"documents", [](auto, auto, auto t, auto s) { return t / 20 == s / 80; }},
  };
}

// Bytes other than 0 and 1 are true too.
void fill_pattern(const Tensor& mask, const Pattern& pattern) {
  const TensorView& view = mask;
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t h = 0; h < view.shape[1]; ++h)
      for (std::int64_t t = 0; t < view.shape[2]; ++t)
        for (std::int64_t s = 0; s < view.shape[3]; ++s)
          mask.set({b, h, t, s}, pattern.visible(b, h, t, s) ? (view.dtype == DType::u8 && (t + s) % 3 == 0 ? 128 : 1) : 0);
}

// The mask with every dimension at its whole size.
Tensor written_out(const Tensor& mask, const AttentionSpec& spec) {
  TensorView view = mask;
  const std::int64_t sizes[] = {spec.batch, spec.heads, spec.query_length, spec.key_length};
  for (int i = 0; i < 4; ++i) {
    if (view.shape[static_cast<std::size_t>(i)] == 1) view = expanded(view, i, sizes[i]);
  }
  const Tensor whole(view.dtype, {view.shape[0], view.shape[1], view.shape[2], view.shape[3]});
  copy(view, whole);
  return whole;
}

class SummaryTest : public EveryIsaAndDType {
 protected:
  struct Result {
    Tensor out, lse;
  };
  Result run(const AttentionCase& test, int threads) const {
    Result result = {test.out.clone(), test.lse.clone()};
    fill(result.out, not_a_number);
    fill(result.lse, not_a_number);
    AttentionCase own = test;
    own.out = result.out;
    own.lse = result.lse;
    const AttentionPlan plan(own.spec, runtime(threads));
    own.run(plan, own.inputs_with_lse());
    return result;
  }

  // The case's mask, and the same written out: the same bits, with one thread and with two.
  void expect_same_bits(const AttentionCase& shared, const std::string& what) const {
    AttentionCase apart = shared;
    apart.boolean_mask = written_out(shared.boolean_mask, shared.spec);
    const Result expected = run(apart, 1);
    for (const int threads : {1, 2}) {
      const Result result = run(shared, threads);
      const std::string where = what + ", " + shared.describe() + ", " + name(isa()) + ", threads " + std::to_string(threads);
      ASSERT_TRUE(same_bits(expected.out, result.out)) << where << ": " << first_difference(expected.out, result.out);
      ASSERT_TRUE(same_bits(expected.lse, result.lse)) << where << ": " << first_difference(expected.lse, result.lse);
    }
  }

  // A case of 2 items, 4 heads and 2 kv heads whose mask has these sizes.
  AttentionCase with_mask(const Tensor::Sizes& sizes, const Pattern& pattern, std::int64_t query_length,
                          std::int64_t key_length, const Mask& mask, Random& random) const {
    AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, key_length, 16, 8, mask & Mask::boolean()), random);
    test.boolean_mask = Tensor(DType::u8, sizes);
    fill_pattern(test.boolean_mask, pattern);
    return test;
  }
};

TEST_P(SummaryTest, EveryBroadcastOfEveryPatternHasTheBitsOfTheMaskWrittenOut) {
  std::uint64_t seed = 0;
  for (const std::int64_t query_length : {1, 3, 8, 70})
    for (const std::int64_t key_length : {256, 331}) {
      const std::int64_t t = query_length, s = key_length;
      for (const Tensor::Sizes& sizes :
           {Tensor::Sizes{1, 1, 1, s}, Tensor::Sizes{2, 1, 1, s}, Tensor::Sizes{1, 1, t, s}, Tensor::Sizes{2, 1, t, s},
            Tensor::Sizes{1, 4, 1, s}, Tensor::Sizes{1, 4, t, s}, Tensor::Sizes{2, 1, t, 1}, Tensor::Sizes{1, 1, t, 1}})
        for (const Pattern& pattern : patterns()) {
          if (++seed % (slow() ? 16 : 2) != 0) continue;
          Random random(seed);
          const AttentionCase test = with_mask(sizes, pattern, query_length, key_length, {}, random);
          ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, pattern.name));
          if (seed % 5 == 0) {
            ASSERT_TRUE(run_and_compare(test, runtime(2), pattern.name));
          }
        }
    }
}

TEST_P(SummaryTest, EveryOtherPartOfAMaskStillHides) {
  Mask kept = Mask::causal(Causal::bottom_right) & Mask::window(40, 0, 5);
  const Mask masks[] = {Mask::causal(Causal::top_left),
                        Mask::causal(Causal::bottom_right),
                        Mask::key_lengths(),
                        Mask::causal(Causal::bottom_right) & Mask::key_lengths() & Mask::bias(),
                        Mask::causal(Causal::offset) & Mask::offsets(),
                        Mask::window(60, 30),
                        kept,
                        kept & Mask::key_lengths(),
                        Mask::query_lengths() & Mask::key_lengths(),
                        Mask::query_lengths() & Mask::causal(Causal::top_left) & Mask::prefix(),
                        Mask::segments(),
                        Mask::blocks(16, 48),
                        Mask::bias()};
  std::uint64_t seed = 0;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {2, 83})
      for (const Pattern& pattern : patterns())
        for (const bool by_rows : {false, true}) {
          if (++seed % (slow() ? 19 : 3) != 0) continue;
          Random random(seed);
          const std::int64_t key_length = 300;
          AttentionCase test = with_mask({seed % 2 == 0 ? 2 : 1, 1, by_rows ? query_length : 1, key_length}, pattern,
                                         query_length, key_length, mask, random);
          ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, pattern.name));
          if (seed % 4 == 0) {
            ASSERT_TRUE(run_and_compare(test, runtime(1), pattern.name));
          }
        }
}

TEST_P(SummaryTest, ChangesOfScoresStay) {
  std::uint64_t seed = 0;
  for (const std::int64_t query_length : {2, 49})
    for (const Pattern& pattern : patterns()) {
      if (slow() && ++seed % 4 != 0) continue;
      Random random(++seed);
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, 270, 16, 8, Mask::boolean());
      spec.softcap = 2.0;
      spec.has_alibi = spec.has_sink = true;
      if (seed % 2 == 0) spec.relative_bias = RelativeBias::t5();
      if (seed % 3 == 0) spec.score_mod = places_score_mod();
      if (seed % 2 == 0) spec.has_alibi = false;
      AttentionCase test = make_case(spec, random);
      if (seed % 3 == 0) test.score_function = score_at_place;
      test.boolean_mask = Tensor(DType::u8, {1, 1, query_length, 270});
      fill_pattern(test.boolean_mask, pattern);
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, pattern.name));
    }
  // Swin's bias renumbers queries; its masks are not summarised, and right.
  Random random(1);
  AttentionSpec spec = attention_spec(2, 4, 2, 256, 256, 16, 8, Mask::boolean());
  spec.relative_bias = RelativeBias::swin(16, 16);
  AttentionCase test = make_case(spec, random);
  test.boolean_mask = Tensor(DType::u8, {1, 1, 256, 256});
  fill_pattern(test.boolean_mask, patterns()[4]);
  ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, "Swin"));
}

TEST_P(SummaryTest, StridesDoNotMatter) {
  std::uint64_t seed = 0;
  for (const Pattern& pattern : patterns()) {
    if (slow() && ++seed % 4 != 0) continue;
    Random random(++seed);
    AttentionCase test = with_mask({2, 1, 45, 300}, pattern, 45, 300, {}, random);
    const Tensor plain = test.boolean_mask;
    const Result expected = run(test, 1);
    const std::vector<std::pair<const char*, Tensor>> others = {
        {"padded rows", Tensor::ordered(DType::u8, {2, 1, 45, 300}, {0, 1, 2, 3}, 13)},
        {"keys apart", Tensor::ordered(DType::u8, {2, 1, 45, 300}, {0, 1, 2, 3}, 0, 3)},
        {"keys outermost", Tensor::ordered(DType::u8, {2, 1, 45, 300}, {3, 0, 1, 2})},
        {"items innermost", Tensor::ordered(DType::u8, {2, 1, 45, 300}, {2, 3, 1, 0})},
        {"guard before", Tensor(DType::u8, {2, 1, 45, 300}, Guard::before)},
        {"guard behind", Tensor(DType::u8, {2, 1, 45, 300}, Guard::behind)}};
    const auto check = [&](const char* what, const Tensor& mask) {
      test.boolean_mask = mask;
      const Result result = run(test, 2);
      ASSERT_TRUE(same_bits(expected.out, result.out)) << pattern.name << ", " << what;
      ASSERT_TRUE(same_bits(expected.lse, result.lse)) << pattern.name << ", " << what;
    };
    for (const auto& [what, mask] : others) {
      copy(plain, mask);
      ASSERT_NO_FATAL_FAILURE(check(what, mask));
    }
    for (const int dimension : {0, 2, 3}) {
      Tensor turned(DType::u8, {2, 1, 45, 300}, dimension == 2 ? Guard::before : Guard::behind);
      turned = turned.viewed(reversed(turned, dimension));
      copy(plain, turned);
      ASSERT_NO_FATAL_FAILURE(check("backwards", turned));
    }
  }
}

// Beyond lengths there is no memory: the mask's last rows and keys that somebody sees are its last bytes.
TEST_P(SummaryTest, NothingBeyondLengthsIsRead) {
  for (const bool own_queries : {false, true}) {
    Random random(3);
    const Mask mask = own_queries ? Mask::query_lengths() & Mask::key_lengths() : Mask::key_lengths();
    AttentionCase test = with_mask({1, 1, 40, 400}, patterns()[2], 40, 400, mask, random);
    test.key_lengths = integers(DType::i64, {270, 141});
    if (own_queries) test.query_lengths = integers(DType::i64, {19, 33});
    const std::int64_t rows = own_queries ? 33 : 40;
    const Tensor expected_mask = test.boolean_mask;
    ASSERT_TRUE(run_and_compare(test, runtime(1)));
    const Result expected = run(test, 1);
    // Rows of 400 bytes that end behind key 270 of the last row.
    const Tensor memory(DType::u8, {(rows - 1) * 400 + 270}, Guard::behind);
    TensorView view(memory.view().data, DType::u8, {1, 1, 40, 400});
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t s = 0; s < (t + 1 < rows ? 400 : 270); ++s) store(memory, t * 400 + s, expected_mask({0, 0, t, s}));
    test.boolean_mask = memory.viewed(view);
    for (const int threads : {1, 2}) {
      const Result result = run(test, threads);
      ASSERT_TRUE(same_bits(expected.out, result.out)) << "own queries " << own_queries;
    }
  }
}

// Keys and values of blocks that nobody sees are NaN: they are not in the results, nor is anything computed twice for them.
TEST_P(SummaryTest, HiddenBlocksKeepTheirPoison) {
  std::uint64_t seed = 0;
  for (const std::int64_t query_length : {1, 5, 66})
    for (const bool by_rows : {false, true})
      for (const double poison : {not_a_number, std::numeric_limits<double>::infinity(), 3e38}) {
        Random random(++seed);
        const Pattern pattern = {"stripes", [](auto, auto, auto t, auto s) { return s / 64 % 3 == 1 && (t + s) % 5 != 0; }};
        AttentionCase test = with_mask({1, 1, by_rows ? query_length : 1, 450}, pattern, query_length, 450, {}, random);
        const Result expected = run(test, 1);
        ASSERT_TRUE(run_and_compare(test, runtime(1)));
        for (std::int64_t s = 0; s < 450; ++s) {
          if (s / 64 % 3 == 1) continue;
          fill(slice(test.key, 2, s, s + 1), poison);
          fill(slice(test.value, 2, s, s + 1), poison);
        }
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, "poison"));
        const Result result = run(test, 2);
        ASSERT_TRUE(same_bits(expected.out, result.out)) << poison << ", " << test.describe();
        ASSERT_TRUE(same_bits(expected.lse, result.lse)) << poison << ", " << test.describe();
      }
}

TEST_P(SummaryTest, PackedSequences) {
  std::uint64_t seed = 0;
  for (const Mask& mask : {Mask::packed(), Mask::packed() & Mask::causal(Causal::bottom_right)})
    for (const Pattern& pattern : patterns())
      for (const bool own : {false, true}) {
        if (++seed % (slow() ? 9 : 2) != 0) continue;
        Random random(seed);
        AttentionSpec spec = attention_spec(3, 4, 2, 50, 300, 16, 8, mask & Mask::boolean());
        AttentionCase test = make_case(spec, random);
        test.boolean_mask = Tensor(DType::u8, {own ? 3 : 1, 1, 50, 300});
        fill_pattern(test.boolean_mask, pattern);
        ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, pattern.name));
        ASSERT_TRUE(run_and_compare(test, runtime(2), pattern.name));
      }
}

TEST_P(SummaryTest, PagesAndCaches) {
  std::uint64_t seed = 0;
  for (const std::int64_t query_length : {1, 30})
    for (const Pattern& pattern : patterns()) {
      if (slow() && ++seed % 4 != 0) continue;
      Random random(++seed);
      AttentionCase test = with_mask({1, 1, query_length, 288}, pattern, query_length, 288, Mask::key_lengths(), random);
      test.key_lengths = integers(DType::i64, {288, 201});
      const AttentionCase plain = test;
      test.pages = std::make_shared<Pages>(test, 16, 0, seed % 2 == 0, random);
      test.spec.key_length = 288;
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(test, std::string("pages, ") + pattern.name));
      const Result in_tensors = run(plain, 1), in_pages = run(test, 2);
      ASSERT_TRUE(same_bits(in_tensors.out, in_pages.out)) << pattern.name;
      test.pages = nullptr;
      test.cached = std::make_shared<CachedKeys>(test, cache_layout(test.spec, CacheKind::paged, 16), random);
      const Result in_cache = run(test, 2);
      ASSERT_TRUE(same_bits(in_tensors.out, in_cache.out)) << pattern.name;
      ASSERT_TRUE(same_bits(in_tensors.lse, in_cache.lse)) << pattern.name;
    }
}

// A plan's smaller runs, and keys that come in several splits.
TEST_P(SummaryTest, SmallerRunsOfAPlanAndSplitKeys) {
  const AttentionPlan plan(attention_spec(3, 4, 2, 40, 5000, 16, 8, Mask::boolean()), runtime(2));
  std::uint64_t seed = 0;
  for (const std::int64_t batch : {1, 3})
    for (const std::int64_t query_length : {1, 7, 40})
      for (const std::int64_t key_length : {20, 255, 700, 5000}) {
        if (slow() && key_length == 5000) continue;
        Random random(++seed);
        AttentionCase test = make_case(attention_spec(batch, 4, 2, query_length, key_length, 16, 8, Mask::boolean()), random);
        test.boolean_mask = Tensor(DType::u8, {1, 1, query_length, key_length});
        fill_pattern(test.boolean_mask, patterns()[seed % patterns().size()]);
        AttentionCase apart = test;
        apart.boolean_mask = written_out(test.boolean_mask, test.spec);
        const Result expected = run(apart, 1);
        plan.run(test.inputs_with_lse());
        ASSERT_TRUE(same_bits(expected.out, test.out)) << test.describe();
        ASSERT_TRUE(same_bits(expected.lse, test.lse)) << test.describe();
      }
}

// A host's pool that does the work on the calling thread, and sets a flag before it does.
struct FlaggingPool {
  std::atomic<bool>* flag = nullptr;
  int calls = 0;

  static void parallel_for(void* context, std::size_t count, void (*function)(void*, std::size_t), void* argument) {
    auto* const self = static_cast<FlaggingPool*>(context);
    ++self->calls;
    if (self->flag != nullptr) *self->flag = true;
    for (std::size_t i = 0; i < count; ++i) function(argument, i);
  }
};

// The summary is made by the runtime's threads ahead of all else: a cancelled one leaves out as it was, and the plan usable.
TEST_P(SummaryTest, IsSharedOutAndCancelled) {
  if (slow()) GTEST_SKIP() << "a mask this large takes the scalar kernels seconds";
  Random random(1);
  AttentionCase test = make_case(attention_spec(1, 2, 2, 640, 700, 16, 8, Mask::boolean()), random);
  test.boolean_mask = Tensor(DType::u8, {1, 1, 640, 700});
  fill_pattern(test.boolean_mask, patterns()[4]);
  FlaggingPool pool;
  RuntimeOptions options;
  Executor executor;
  executor.context = &pool;
  executor.parallel_for = FlaggingPool::parallel_for;
  executor.concurrency = 2;
  options.executor = executor;
  options.isa = isa();
  const Runtime own(options);
  const AttentionPlan plan(test.spec, own);
  const AttentionInputs inputs = test.inputs_with_lse();
  std::atomic<bool> cancel{false};
  pool.flag = &cancel;
  RunOptions run_options;
  run_options.cancel = &cancel;
  fill(test.out, 17.0);
  try {
    plan.run(inputs, run_options);
    ADD_FAILURE() << "not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled) << error.what();
  }
  EXPECT_EQ(pool.calls, 1);
  for_each_offset(test.out, [&](std::int64_t offset) { ASSERT_EQ(load(test.out, offset), 17.0); });
  pool.flag = nullptr;
  cancel = false;
  plan.run(inputs, run_options);
  EXPECT_EQ(pool.calls, 3) << "the summary, then attention";
  const Result expected = run(test, 1);
  EXPECT_TRUE(same_bits(expected.out, test.out));
  EXPECT_TRUE(same_bits(expected.lse, test.lse));
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(SummaryTest);

}  // namespace
}  // namespace polyhead::testing
