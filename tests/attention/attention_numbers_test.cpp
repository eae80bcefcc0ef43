// Numbers: scales, heads, large and tiny values, sizes of zero, the floating-point environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <vector>

#include "support/attention_case.hpp"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class NumbersTest : public EveryIsa {};

// ---- scale

TEST_P(NumbersTest, AnyFiniteScale) {
  for (const double scale : {0.0, -0.0, 1.0, -1.0, 0.125, -0.37, 3.0, 1e-3, -20.0, 1e-30, 1e-40})
    for (const std::int64_t query_length : {1, 4, 18})
      for (const Mask& mask : {Mask::none(), Mask::causal(Causal::bottom_right), Mask::boolean(), Mask::bias()}) {
        Random random(3);
        AttentionCase test = make_case(attention_spec(1, 4, 2, query_length, 45, 16, 8, mask), random);
        test.spec.scale = scale;
        ASSERT_TRUE(run_and_compare(test, runtime()));
      }
}

TEST_P(NumbersTest, AScaleOfZeroAveragesWhatIsVisible) {
  Random random(5);
  AttentionCase test = make_case(attention_spec(1, 1, 1, 3, 4, 8, 1, Mask::causal(Causal::top_left)), random);
  test.spec.scale = 0;
  double next = 0;
  fill(test.value, [&] { return next++; });
  const Tensor out = run_fresh(test, runtime());
  for (std::int64_t t = 0; t < 3; ++t) EXPECT_NEAR(out({0, 0, t, 0}), 0.5 * static_cast<double>(t), 1e-6);
}

TEST_P(NumbersTest, ANegativeScaleStillExcludesWhatIsMasked) {
  Random random(6);
  AttentionCase test = make_case(attention_spec(1, 1, 1, 2, 3, 1, 1, Mask::boolean() & Mask::causal(Causal::top_left)), random);
  test.spec.scale = -1;
  fill(test.query, 1.0);
  fill(test.key, 100.0);  // at a masked key even an unscaled -inf would turn into +inf
  fill(test.boolean_mask, 1.0);
  test.boolean_mask.set({0, 0, 1, 1}, 0);
  double next = 1;
  fill(test.value, [&] { return next++; });
  const Tensor out = run_fresh(test, runtime());
  EXPECT_NEAR(out({0, 0, 0, 0}), 1, 1e-6);
  EXPECT_NEAR(out({0, 0, 1, 0}), 1, 1e-6);
}

TEST_P(NumbersTest, TheDefaultScaleIsOneOverTheRootOfHeadDim) {
  for (const std::int64_t dim : {1, 3, 64, 100}) {
    Random random(7);
    AttentionCase test = make_case(attention_spec(1, 2, 2, 5, 20, dim, 4), random);
    const Tensor by_default = run_fresh(test, runtime());
    test.spec.scale = 1 / std::sqrt(static_cast<double>(dim));
    EXPECT_TRUE(same_bits(by_default, run_fresh(test, runtime())));
  }
}

// ---- heads

TEST_P(NumbersTest, QueryHeadsReadTheKeyValueHeadOfTheirGroup) {
  for (const std::int64_t query_length : {1, 3, 20}) {
    Random random(9);
    AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 7, 8, 8), random);
    for (std::int64_t g = 0; g < 2; ++g) fill(slice(test.value, 1, g, g + 1), static_cast<double>(g));
    const Tensor out = run_fresh(test, runtime());
    for (std::int64_t h = 0; h < 4; ++h) EXPECT_NEAR(out({1, h, query_length - 1, 5}), static_cast<double>(h / 2), 1e-6) << h;
  }
}

// ---- large, small, close and far

TEST_P(NumbersTest, ScoresOfEveryMagnitude) {
  for (const double magnitude : {0.01, 1.0, 8.0, 30.0, 300.0, 1e4})
    for (const std::int64_t query_length : {1, 2, 17})
      for (const std::int64_t key_length : {9, 70, 600}) {
        Random random(11);
        AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, key_length, 64, 16), random);
        for_each_offset(test.query, [&](std::int64_t i) { test.query.f32()[i] *= static_cast<float>(magnitude); });
        ASSERT_TRUE(run_and_compare(test, runtime(), "query times " + std::to_string(magnitude)));
      }
}

// The running maximum moves at each key, never, or at the very end; by little and by more than exp can span.
TEST_P(NumbersTest, ScoresThatRiseFallAndJump) {
  for (const double step : {0.01, 0.5, 3.0, 100.0, 1e5, -0.01, -0.5, -3.0, -100.0, -1e5})
    for (const std::int64_t query_length : {1, 3, 16})
      for (const std::int64_t key_length : {2, 65, 200}) {
        Random random(13);
        AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, key_length, 2, 8), random);
        test.spec.scale = 1;
        fill(test.query, 1.0);
        for (std::int64_t s = 0; s < key_length; ++s) fill(slice(test.key, 2, s, s + 1), 0.5 * step * static_cast<double>(s));
        ASSERT_TRUE(run_and_compare(test, runtime(), "step " + std::to_string(step)));
        fill(test.key, -1000.0);
        const std::int64_t peak = key_length - 1;
        fill(slice(test.key, 2, peak, peak + 1), 1000.0);
        ASSERT_TRUE(run_and_compare(test, runtime(), "one peak"));
        EXPECT_NEAR(run_fresh(test, runtime())({0, 0, 0, 3}), test.value({0, 0, peak, 3}), 1e-6);
      }
}

TEST_P(NumbersTest, ScoresFarBelowZeroAreNotEmptyRows) {
  for (const double score : {-88.0, -104.0, -127.0, -1e3, -1e6, -1e30, 1e30}) {
    for (const std::int64_t query_length : {1, 5, 20}) {
      Random random(15);
      AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 40, 1, 1), random);
      test.spec.scale = 1;
      fill(test.query, 1.0);
      fill(test.key, score);
      double next = 0;
      fill(test.value, [&] { return next++; });
      fill(test.lse, 7.0);
      AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
      EXPECT_NEAR(test.out({0, 0, query_length - 1, 0}), 19.5, 1e-4) << score;
      EXPECT_NEAR(test.lse({0, 0, query_length - 1}), score + std::log(40.0), 1e-6 * (10 + std::fabs(score))) << score;
    }
  }
}

TEST_P(NumbersTest, ALongSumOfEqualWeightsStaysExact) {
  for (const std::int64_t key_length : {256, 257, 1024, 4096, 20000}) {
    Random random(17);
    AttentionCase test = make_case(attention_spec(1, 1, 1, 2, key_length, 1, 2), random);
    fill(test.query, 0.0);
    fill(test.value, 1.0);
    EXPECT_TRUE(run_and_compare(test, runtime()));
    EXPECT_NEAR(run_fresh(test, runtime())({0, 0, 0, 0}), 1, 1e-6);
  }
}

// A running sum in bf16 sticks at 256, one in f16 at 2048. Of weights: lse counts the keys, and half of the values are 0, since
// a sum of values that sticks where that of the weights does would not show. Of products: each score is the number of
// dimensions, within what the roundings of a sum come to where all go one way.
TEST_P(NumbersTest, LongSumsOfOnesDoNotStickInAnyType) {
  for (const DType dtype : attention_dtypes())
    for (const std::int64_t count : {256, 257, 1024, 4096})
      for (const std::int64_t query_length : {1, 20}) {
        const auto n = static_cast<double>(count);
        Random random(18);
        AttentionSpec spec = attention_spec(1, 1, 1, query_length, 2 * count, 1, 2);
        spec.dtype = dtype;
        AttentionCase test = make_case(spec, random);
        fill(test.query, 0.0);
        fill(test.value, 0.0);
        fill(slice(test.value, 2, count, 2 * count), 1.0);
        ASSERT_TRUE(run_and_compare(test, runtime()));
        AttentionPlan(spec, runtime()).run(test.inputs_with_lse());
        for (std::int64_t t = 0; t < query_length; ++t) {
          EXPECT_NEAR(test.lse({0, 0, t}), std::log(2.0 * n), 2e-6) << test.describe();
          EXPECT_NEAR(test.out({0, 0, t, 1}), 0.5, 1e-6) << test.describe();
        }
        spec = attention_spec(1, 1, 1, query_length, 3, count, 2);
        spec.dtype = dtype;
        spec.scale = 1;
        test = make_case(spec, random);
        fill(test.query, 1.0);
        fill(test.key, 1.0);
        AttentionPlan(spec, runtime()).run(test.inputs_with_lse());
        for (std::int64_t t = 0; t < query_length; ++t)
          EXPECT_NEAR(test.lse({0, 0, t}), n + std::log(3.0), 0x1p-25 * n * n) << test.describe();
      }
}

// Two keys of the same score, one of products that are all alike, one of a single product: roundings that all go one way, which
// random numbers never show.
TEST_P(NumbersTest, SumsOfProductsThatAreAllAlikeKeepTheirBound) {
  Random random(36);
  for (const std::int64_t dim : {32, 64, 128, 256, 512})
    for (const std::int64_t query_length : {1, 20})
      for (int turn = 0; turn < 20; ++turn) {
        const AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 2, dim, 1), random);
        fill(test.query, random.uniform(0.5, 2.0));
        fill(test.key, 0.0);
        fill(slice(test.key, 2, 0, 1), 1.0);
        test.key.set({0, 0, 1, 0}, static_cast<double>(dim));
        test.value.set({0, 0, 0, 0}, 1);
        test.value.set({0, 0, 1, 0}, -1);
        AttentionPlan(test.spec, runtime()).run(test.inputs());
        const double score = test.query({0, 0, 0, 0}) * std::sqrt(static_cast<double>(dim));
        const double bound = 2e-6 + std::max(0x1p-22, 0x1p-25 * static_cast<double>(dim)) * score;
        for (std::int64_t t = 0; t < query_length; ++t) ASSERT_NEAR(test.out({0, 0, t, 0}), 0.0, bound) << test.describe();
      }
}

// Equal weights over many keys, of which all, the last half, or every other one have the same value: their roundings all go one
// way. A chain is a block of keys long, 256 at most, where few rows have long heads; what blocks come to is added up apart.
TEST_P(NumbersTest, SumsOfWeightsThatAreAllAlikeKeepTheirBound) {
  Random random(40);
  for (const std::int64_t key_length : {128, 512, 1024, 2048, 2049, slow() ? 4096 : 8192, slow() ? 4096 : 65536})
    for (const std::int64_t query_length : {1, 5, 20, 65, 128})
      for (int turn = 0; turn < 4; ++turn) {
        const std::int64_t dim = turn % 2 == 0 ? 1 : 64;
        if (dim > 1 && (slow() || (key_length > 8192 && query_length > 65))) continue;
        const AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, key_length, dim, dim + 2), random);
        const double score = random.uniform();
        fill(test.query, score / std::sqrt(static_cast<double>(dim)));
        fill(test.key, 1.0);
        fill(test.value, random.uniform(0.5, 1.0));
        const TensorView last = slice(test.value, 3, dim, dim + 1), other = slice(test.value, 3, dim + 1, dim + 2);
        fill(last, 0.0), fill(other, 0.0);
        fill(slice(last, 2, key_length / 2, key_length), 1.0);
        for (std::int64_t s = 0; s < key_length; s += 2) test.value.set({0, 0, s, dim + 1}, 1);
        const double half = static_cast<double>((key_length + 1) / 2) / static_cast<double>(key_length);
        AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
        const double magnitude = std::fabs(static_cast<double>(test.query({0, 0, 0, 0})) * std::sqrt(static_cast<double>(dim)));
        const bool long_chains = query_length != 128 && dim > 1;  // few rows, or a few beside whole vectors of them
        const double bound = (long_chains ? 2.0 : 1.0) * 2e-6 + 0x1p-22 * magnitude;
        const double lse = magnitude + std::log(static_cast<double>(key_length));
        for (std::int64_t t = 0; t < query_length; ++t) {
          for (std::int64_t e = 0; e < dim; ++e) {
            const double value = test.value({0, 0, 0, e});
            ASSERT_NEAR(test.out({0, 0, t, e}), value, bound * value) << test.describe();
          }
          ASSERT_NEAR(test.out({0, 0, t, dim}), half, bound) << test.describe();
          ASSERT_NEAR(test.out({0, 0, t, dim + 1}), half, bound) << test.describe();
          ASSERT_NEAR(test.lse({0, 0, t}), lse, bound + 0x1p-23 * lse) << test.describe();
        }
      }
}

// Keys that a row does not see leave no trace in chains and totals: its bits do not depend on its place, nor on its neighbours'
// keys.
TEST_P(NumbersTest, BitsDoNotDependOnWhereOtherRowsKeysEnd) {
  const std::int64_t key_length = 3200;
  for (const std::int64_t query_length : {3, 48, 112}) {
    if (slow() && query_length > 48) continue;
    for (const std::int64_t dim : {40, 72}) {
      Random random(41);
      const AttentionCase test = make_case(
          attention_spec(1, 1, 1, query_length, key_length, dim, dim, Mask::causal(Causal::offset) & Mask::offsets()), random);
      const AttentionPlan plan(test.spec, runtime());
      for (std::int64_t d = 0; d < dim; ++d) fill(slice(test.query, 3, d, d + 1), 2 * random.normal());
      for (const std::int64_t seen : {250, 1001, 1023, 1024, 1025, 1040, 2047, 2049, 2100, 3080}) {
        Tensor first;
        for (const std::int64_t t : {std::int64_t{0}, std::int64_t{1}, query_length / 2, query_length - 1}) {
          test.offsets.set({0}, static_cast<double>(seen - 1 - t));
          plan.run(test.inputs());
          const Tensor row = test.out.viewed(slice(test.out, 2, t, t + 1)).clone();
          if (t == 0) first = row;
          ASSERT_TRUE(same_bits(first, row))
              << test.describe() << ", " << seen << " keys, row " << t << ": " << first_difference(first, row);
        }
      }
    }
  }
}

TEST_P(NumbersTest, ValuesOfEveryMagnitude) {
  for (const double magnitude : {1e-30, 1e-10, 1e10, 1e30, 1e37})
    for (const std::int64_t query_length : {1, 6, 33}) {
      Random random(19);
      AttentionCase test = make_case(attention_spec(1, 2, 2, query_length, 50, 16, 16), random);
      for_each_offset(test.value, [&](std::int64_t i) { test.value.f32()[i] *= static_cast<float>(magnitude); });
      EXPECT_TRUE(run_and_compare(test, runtime(), "value times " + std::to_string(magnitude)));
    }
}

TEST_P(NumbersTest, AlikeValuesNearTheLargestFloatDoNotOverflow) {
  // The sum over keys of p v would pass the largest float if p were not kept below 1 on the whole: the average does not.
  for (const std::int64_t query_length : {1, 9}) {
    Random random(20);
    AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 64, 8, 8), random);
    fill(test.value, 1e36);
    EXPECT_TRUE(run_and_compare(test, runtime()));
  }
}

// ---- sizes of zero

TEST_P(NumbersTest, SizesOfZeroAreLegal) {
  const std::vector<DType> dtypes = attention_dtypes();
  std::size_t turn = 0;
  for (const std::int64_t batch : {0, 2})
    for (const std::int64_t query_length : {0, 3})
      for (const std::int64_t key_length : {0, 5}) {
        if (batch != 0 && query_length != 0 && key_length != 0) continue;
        for (const Mask& mask :
             {Mask::none(), Mask::causal(Causal::bottom_right), Mask::key_lengths(), Mask::boolean() & Mask::bias(),
              Mask::causal(Causal::top_left) & Mask::window(2, 2), Mask::causal(Causal::top_left) & Mask::prefix(),
              Mask::segments(), Mask::blocks(2, 4), Mask::query_lengths() & Mask::causal(Causal::offset) & Mask::offsets()}) {
          Random random(21);
          AttentionSpec spec = attention_spec(batch, 4, 2, query_length, key_length, 8, 8, mask);
          spec.dtype = dtypes[turn % dtypes.size()];
          spec.has_alibi = turn % 2 != 0;
          spec.softcap = ++turn % 3 == 0 ? 2.0 : 0.0;
          const AttentionCase test = make_case(spec, random);
          for (const int threads : {1, 2}) {
            ASSERT_TRUE(run_and_compare(test, runtime(threads)));
            // In a plan whose maxima are larger, too.
            AttentionSpec larger = test.spec;
            larger.batch = 4;
            larger.query_length = 40;
            larger.key_length = 600;
            fill(test.out, 7.0);
            fill(test.lse, 7.0);
            AttentionPlan(larger, runtime(threads)).run(test.inputs_with_lse());
            for_each_offset(test.out, [&](std::int64_t i) { EXPECT_EQ(load(test.out, i), 0) << test.describe(); });
            for_each_offset(test.lse, [&](std::int64_t i) { EXPECT_EQ(load(test.lse, i), -infinity) << test.describe(); });
          }
        }
      }
}

TEST_P(NumbersTest, TensorsOfSizeZeroNeedNoMemory) {
  const AttentionSpec spec = attention_spec(2, 4, 2, 3, 5, 8, 8);
  const AttentionPlan plan(spec, runtime());
  const Tensor query(DType::f32, {2, 4, 3, 8}), out(DType::f32, {2, 4, 3, 8});
  fill(query, 1.0);
  AttentionInputs inputs;
  inputs.query = query;
  inputs.key = TensorView(nullptr, DType::f32, {2, 2, 0, 8});
  inputs.value = TensorView(nullptr, DType::f32, {2, 2, 0, 8});
  inputs.out = out;
  plan.run(inputs);
  for_each_offset(out, [&](std::int64_t i) { EXPECT_EQ(load(out, i), 0); });
  inputs.query = TensorView(nullptr, DType::f32, {2, 4, 0, 8});
  inputs.out = TensorView(nullptr, DType::f32, {2, 4, 0, 8});
  EXPECT_NO_THROW(plan.run(inputs));
}

TEST_P(NumbersTest, EveryLengthUpToThePlansMaximum) {
  Random random(23);
  for (const Mask& mask : {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::key_lengths()}) {
    const AttentionPlan plan(attention_spec(3, 4, 2, 20, 90, 16, 16, mask), runtime());
    for (const std::int64_t batch : {1, 3})
      for (const std::int64_t query_length : {1, 2, 19, 20})
        for (const std::int64_t key_length : {1, 63, 64, 65, 90}) {
          const AttentionCase test = make_case(attention_spec(batch, 4, 2, query_length, key_length, 16, 16, mask), random);
          plan.run(test.inputs());
          ASSERT_TRUE(attention_matches(oracle::attention(test.inputs(), test.options()), test.out,
                                        test.describe() + ", " + name(isa())));
        }
  }
}

// ---- the one-call function

TEST_P(NumbersTest, TheOneCallFunctionEqualsAPlan) {
  Random random(27);
  for (const Mask& mask :
       {Mask::none(), Mask::boolean() & Mask::bias(), Mask::causal(Causal::bottom_right) & Mask::key_lengths()})
    for (const std::int64_t query_length : {0, 1, 20, 33})
      for (const double scale : {0.2, 0.0}) {
        AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 45, 16, 24, mask), random);
        test.spec.scale = scale;
        const Tensor planned = run_fresh(test, runtime(2));
        for (int repeat = 0; repeat < 2; ++repeat) {
          fill(test.out, 7.0);
          attention(runtime(2), test.inputs(), test.options());
          EXPECT_TRUE(same_bits(planned, test.out)) << test.describe() << ": " << first_difference(planned, test.out);
        }
      }
}

// ---- denormals and the floating-point environment

void fill_denormal(const TensorView& view, Random& random) {
  fill(view, [&] { return random.normal() * 1e-39; });
}

TEST_P(NumbersTest, DenormalInputsGiveResultsWithinTheBound) {
  for (const std::int64_t query_length : {1, 4, 20})
    for (int which = 0; which < 8; ++which) {
      Random random(29);
      const AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, 70, 16, 16), random);
      if ((which & 1) != 0) fill_denormal(test.query, random);
      if ((which & 2) != 0) fill_denormal(test.key, random);
      if ((which & 4) != 0) fill_denormal(test.value, random);
      EXPECT_TRUE(run_and_compare(test, runtime(), "denormal " + std::to_string(which)));
    }
}

TEST_P(NumbersTest, ManyWeightsBelowTheSmallestNormalNumber) {
  Random random(30);
  for (const std::int64_t query_length : {1, 16}) {
    const AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 200, 1, 8), random);
    fill(test.query, 1.0);
    fill(test.key, -87.5);  // exp is about 1e-38 against the one key at 0
    test.key.set({0, 0, 100, 0}, 0);
    EXPECT_TRUE(run_and_compare(test, runtime()));
  }
}

#if defined(__SSE2__)
class ControlRegister {  // restores the caller's at the end of a test
 public:
  ControlRegister() : saved_(_mm_getcsr()) {}
  ~ControlRegister() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

TEST_P(NumbersTest, LeavesTheControlRegisterAsItWas) {
  const ControlRegister restore;
  constexpr unsigned flags = 0x3F;  // what operations have raised, not what they do
  for (const unsigned mode :
       {0x1F80u, 0x1F80u | 0x8000u, 0x1F80u | 0x0040u, 0x1F80u | 0x8040u, 0x1F80u | 0x2000u, 0x1F80u | 0x6000u})
    for (const int threads : {1, 2})
      for (const std::int64_t query_length : {1, 60}) {
        Random random(31);
        const AttentionCase test = make_case(attention_spec(4, 4, 2, query_length, 300, 16, 16), random);
        fill_denormal(test.value, random);
        const AttentionPlan plan(test.spec, runtime(threads));
        _mm_setcsr(mode);
        plan.run(test.inputs());
        const unsigned after = _mm_getcsr();
        _mm_setcsr(0x1F80u);
        EXPECT_EQ(after & ~flags, mode & ~flags) << "mode " << mode << ", threads " << threads;
      }
}

// Workers have a control register of their own: the caller's must not decide a row's bits, or threads would.
TEST_P(NumbersTest, BitsDoNotDependOnTheCallersFlushMode) {
  const ControlRegister restore;
  for (const std::int64_t query_length : {1, 60}) {
    Random random(33);
    const AttentionCase test = make_case(attention_spec(4, 4, 2, query_length, 300, 16, 16), random);
    fill(test.value, [&] { return random.normal() * 3e-38; });
    _mm_setcsr(0x1F80u);
    const Tensor plain = run_fresh(test, runtime(1));
    for (const int threads : {1, 2}) {
      const AttentionPlan plan(test.spec, runtime(threads));
      _mm_setcsr(0x1F80u | 0x8040u);
      plan.run(test.inputs());
      _mm_setcsr(0x1F80u);
      EXPECT_TRUE(same_bits(plain, test.out)) << "threads " << threads << ": " << first_difference(plain, test.out);
    }
  }
}
#endif

TEST_P(NumbersTest, LeavesTheRoundingModeAsItWas) {
  Random random(35);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 20, 100, 16, 16), random);
  const AttentionPlan plan(test.spec, runtime(2));
  for (const int mode : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    plan.run(test.inputs());
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(after, mode);
  }
}

TEST_P(NumbersTest, DenormalValuesDoNotSlowItDown) {
  if (slow()) GTEST_SKIP() << "the scalar kernels make no promise about speed";
  Random random(37);
  for (const std::int64_t query_length : {1, 64}) {
    const AttentionCase normal =
        make_case(attention_spec(1, 4, 4, query_length, query_length == 1 ? 4000 : 256, 64, 64), random);
    AttentionCase denormal = normal;
    denormal.value = normal.value.clone();
    fill_denormal(denormal.value, random);
    const AttentionPlan plan(normal.spec, runtime());
    const auto seconds = [&](const AttentionCase& test) {
      double best = infinity;
      for (int repeat = 0; repeat < 15; ++repeat) {
        const auto begin = std::chrono::steady_clock::now();
        plan.run(test.inputs());
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      return best;
    };
    const double with_normal = seconds(normal), with_denormal = seconds(denormal);
    EXPECT_LT(with_denormal, 3 * with_normal + 20e-6) << "query_length " << query_length << ", " << name(isa());
  }
}

// A mask or bias that heads share is read where it lies. Copied or written out for each head it would cost more than the small
// heads' products; bench/ says what it costs today.
TEST_P(NumbersTest, AMaskThatHeadsShareIsNoGreatCost) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "an unoptimised or instrumented build makes no promise about speed";
#endif
  if (slow()) GTEST_SKIP() << "the scalar kernels make no promise about speed";
  Random random(39);
  const auto shared = [&](const Mask& mask) {
    AttentionCase test = make_case(attention_spec(1, 4, 4, 512, 512, 32, 32, mask), random);
    test.boolean_mask = Tensor(DType::boolean, {512, 512});
    test.bias = Tensor(DType::f32, {512, 512});
    fill(test.boolean_mask, [&] { return random.chance(0.9) ? 1.0 : 0.0; });
    fill_normal(test.bias, random);
    return test;
  };
  const AttentionCase tests[] = {shared(Mask::none()), shared(Mask::boolean()), shared(Mask::bias())};
  std::vector<AttentionPlan> plans;
  for (const AttentionCase& test : tests) plans.emplace_back(test.spec, runtime());
  double best[3] = {infinity, infinity, infinity};
  for (int repeat = 0; repeat < 40; ++repeat)
    for (std::size_t i = 0; i < 3; ++i) {
      const std::clock_t begin = std::clock();  // processor time: one thread computes, whoever else wants the processor
      plans[i].run(tests[i].inputs());
      best[i] = std::min(best[i], static_cast<double>(std::clock() - begin));
    }
  EXPECT_LT(best[1], 1.6 * best[0]) << "boolean mask, " << name(isa());
  EXPECT_LT(best[2], 1.6 * best[0]) << "bias, " << name(isa());
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(NumbersTest);

}  // namespace
}  // namespace polyhead::testing
