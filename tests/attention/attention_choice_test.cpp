// Which kernel serves which rows: a function of a row's own shape and of the target.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "plan/attention_work.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

plan::AttentionChoice choose(Isa isa, const plan::AttentionShape& shape, bool length_invariant = false) {
  return plan::choose_attention(shape, Mask::none(), length_invariant, Precision::strict, dispatch::kernel_table(isa));
}

// Of every target that is built, whether this machine can run it or not.
TEST(AttentionChoice, RowMajorScoresForFewRowsAndForTheFewBehindTheLastWholeVector) {
  for (const Isa isa : dispatch::built_isas()) {
    const dispatch::KernelTable& kernels = dispatch::kernel_table(isa);
    const bool takes_rests = isa == Isa::avx2 || isa == Isa::avx512 || isa == Isa::avx512_bf16;
    for (const std::int64_t head_dim : {32, 64, 96, 128}) {
      const std::string what = std::string(name(isa)) + ", head size " + std::to_string(head_dim);
      const auto shape = [&](std::int64_t queries, std::int64_t keys) {
        return plan::AttentionShape{2, 4, 4, queries, keys, head_dim, head_dim};
      };
      EXPECT_EQ(choose(isa, shape(1, 500)).kernel, kernels.decode_f32) << what;
      for (const std::int64_t whole : {48, 96, 192}) {
        EXPECT_EQ(choose(isa, shape(whole, 500)).kernel, kernels.attention_f32) << what;
        EXPECT_EQ(choose(isa, shape(whole, 500)).rest_kernel, nullptr) << what;
        const plan::AttentionChoice choice = choose(isa, shape(whole + 1, 500));
        EXPECT_EQ(choice.kernel, kernels.attention_f32) << what;
        EXPECT_EQ(choice.rest_kernel, takes_rests ? kernels.decode_f32 : nullptr) << what;
        if (takes_rests) {
          EXPECT_EQ(choice.rest_begin, whole) << what;
        }
        EXPECT_EQ(choose(isa, shape(whole + 15, 500)).rest_kernel, nullptr) << what;
        // Few rows read a split of the keys again, which the cache has; many all keys.
        EXPECT_EQ(choose(isa, shape(whole + 1, plan::long_keys)).rest_kernel,
                  takes_rests && whole == 48 ? kernels.decode_f32 : nullptr)
            << what;
        EXPECT_EQ(choose(isa, shape(whole + 1, 500), true).rest_kernel, nullptr) << what << ": bits depend on the length";
      }
    }
  }
}

#if defined(POLYHEAD_HAVE_BF16)
// A block of rows on tiles takes one product of bf16 where f32 takes six, so fewer rows are better off with row-major scores.
TEST(AttentionChoice, TilesOfBf16ServeFewerRowsAndNoOtherQueries) {
  const std::vector<Isa> built = dispatch::built_isas();
  if (std::find(built.begin(), built.end(), Isa::amx) == built.end()) GTEST_SKIP() << "this build has no kernels for amx";
  const dispatch::KernelTable& kernels = dispatch::kernel_table(Isa::amx);
  EXPECT_STREQ(kernels.attention_bf16->name, "attention_bf16_amx");
  const auto shape = [](std::int64_t queries, std::int64_t keys, DType query, std::optional<DType> out = {}) {
    plan::AttentionShape made{2, 4, 4, queries, keys, 64, 64};
    made.dtype = query;
    made.key_dtype = DType::bf16;
    made.out_dtype = out;
    return made;
  };
  EXPECT_EQ(choose(Isa::amx, shape(4, 500, DType::bf16)).kernel, kernels.decode_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(5, 500, DType::bf16)).kernel, kernels.attention_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(8, plan::long_keys, DType::bf16)).kernel, kernels.decode_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(9, plan::long_keys, DType::bf16)).kernel, kernels.attention_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(1, 500, DType::bf16), true).kernel, kernels.attention_bf16);
  const dispatch::KernelTable& mixing = dispatch::mixing_table(kernels, DType::bf16);
  EXPECT_NE(mixing.attention_bf16, kernels.attention_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(100, 500, DType::f32)).kernel, mixing.attention_bf16);
  EXPECT_EQ(choose(Isa::amx, shape(100, 500, DType::bf16, DType::f32)).kernel, mixing.attention_bf16);
  EXPECT_EQ(&dispatch::mixing_table(kernels, DType::f32), &kernels) << "pieces of f32 take any query";
  EXPECT_EQ(&dispatch::mixing_table(kernels, DType::f16), &mixing);
}
#endif

TEST(AttentionChoice, ScratchIsEnoughForEveryShorterRun) {
  for (const Isa isa : dispatch::built_isas()) {
    const dispatch::KernelTable& kernels = dispatch::kernel_table(isa);
    for (const plan::AttentionShape& most :
         {plan::AttentionShape{1, 2, 2, 70, 3000, 64, 48}, plan::AttentionShape{1, 8, 2, 40, 5000, 128, 128},
          plan::AttentionShape{1, 2, 2, 32, 2100, 16, 200}}) {
      const std::size_t bytes = plan::most_scratch_bytes(most, Mask::none(), false, Precision::strict, kernels);
      for (std::int64_t queries = 1; queries <= most.query_length; ++queries) {
        for (const std::int64_t keys : {std::int64_t{1}, std::int64_t{130}, std::int64_t{2049}, most.key_length}) {
          plan::AttentionShape shape = most;
          shape.query_length = queries;
          shape.key_length = std::min(keys, most.key_length);
          EXPECT_LE(plan::scratch_bytes(choose(isa, shape), shape, shape.rows()), bytes)
              << name(isa) << ", " << queries << " queries, " << keys << " keys";
        }
      }
    }
  }
}

TEST(AttentionChoice, ExplainNamesTheKernelOfTheRest) {
  for (const Isa isa : available_isas()) {
    const AttentionPlan plan(attention_spec(1, 2, 2, 49, 100, 32, 32, Mask::none()), runtime_on(isa));
    const bool takes_rests = isa == Isa::avx2 || isa == Isa::avx512 || isa == Isa::avx512_bf16;
    EXPECT_EQ(plan.explain().find("for the last 1 row") != std::string::npos, takes_rests) << plan.explain();
  }
}

class RestRows : public EveryIsaAndDType {};

TEST_P(RestRows, AreRightForEveryMaskAndSplit) {
  Random random(5);
  for (const std::int64_t keys : {std::int64_t{40}, std::int64_t{300}, std::int64_t{slow() ? 400 : 3000}}) {
    for (const std::int64_t queries : {17, 25, 50, 67}) {
      for (const Mask& mask : {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::key_lengths(), Mask::boolean(),
                               Mask::causal(Causal::top_left) & Mask::window(21, 0), Mask::bias()}) {
        for (const std::int64_t kv_heads : {2, 1}) {
          AttentionSpec spec = attention_spec(2, 2, kv_heads, queries, keys, 24, 16, mask);
          spec.softcap = queries == 50 ? 3.0 : 0.0;
          spec.has_alibi = spec.has_sink = queries == 67;
          EXPECT_TRUE(run_and_compare(make_case(spec, random), runtime(2)));
        }
      }
    }
  }
}
POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(RestRows);

}  // namespace
}  // namespace polyhead::testing
