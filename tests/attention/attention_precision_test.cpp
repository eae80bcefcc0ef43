// Precision: what chooses the kernel, what it says about itself, and that it changes nothing where there is no faster kernel.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "dispatch/kernel_table.hpp"
#include "plan/attention_work.hpp"
#include "polyhead/multi_head_attention.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "was accepted";
}

TEST(Precision, HasNames) {
  EXPECT_STREQ(name(Precision::strict), "strict");
  EXPECT_STREQ(name(Precision::fast), "fast");
  EXPECT_EQ(AttentionSpec().precision, Precision::strict);
  EXPECT_EQ(AttentionOptions().precision, Precision::strict);
  EXPECT_EQ(MultiHeadAttentionSpec().precision, Precision::strict);
}

// Of every target that is built, whether this machine can run it or not.
TEST(Precision, ChoosesTheKernel) {
  for (const Isa isa : dispatch::built_isas()) {
    const dispatch::KernelTable& kernels = dispatch::kernel_table(isa);
    const bool has_fast = kernels.fast_attention_f32 != kernels.attention_f32;
    EXPECT_EQ(has_fast, isa == Isa::amx) << name(isa);
    for (const std::int64_t queries : {1, 4, 5, 9, 64, 65, 500}) {
      for (const bool length_invariant : {false, true}) {
        const plan::AttentionShape shape = {2, 4, 4, queries, 5000, 64, 64};
        const auto choose = [&](Precision precision) {
          return plan::choose_attention(shape, Mask::none(), length_invariant, precision, kernels);
        };
        const plan::AttentionChoice strict = choose(Precision::strict), fast = choose(Precision::fast);
        const std::string what = std::string(name(isa)) + ", queries " + std::to_string(queries);
        EXPECT_EQ(strict.precision, Precision::strict) << what;
        if (has_fast) {
          EXPECT_NE(strict.kernel, kernels.fast_attention_f32) << what;
        }
        if (has_fast && strict.kernel == kernels.attention_f32) {
          EXPECT_EQ(fast.kernel, kernels.fast_attention_f32) << what;
          EXPECT_EQ(fast.precision, Precision::fast) << what;
        } else {
          EXPECT_EQ(fast.kernel, strict.kernel) << what;
          EXPECT_EQ(fast.precision, Precision::strict) << what;
        }
        EXPECT_EQ(fast.key_split, strict.key_split) << what;
        EXPECT_GE(plan::most_scratch_bytes(shape, Mask::none(), length_invariant, Precision::fast, kernels),
                  plan::scratch_bytes(fast, shape, shape.rows()))
            << what;
      }
    }
  }
}

TEST(Precision, FastIsRightForEveryMask) {
  Random random(71);
  for (const Mask& mask :
       {Mask::none(), Mask::causal(Causal::top_left), Mask::causal(Causal::bottom_right) & Mask::window(9, 0),
        Mask::key_lengths() & Mask::causal(Causal::offset) & Mask::offsets(), Mask::boolean(),
        Mask::bias() & Mask::boolean()}) {
    for (const std::int64_t queries : {1, 33, 90}) {
      AttentionCase test = make_case(attention_spec(2, 4, 2, queries, 150, 40, 24, mask), random);
      test.spec.precision = Precision::fast;
      EXPECT_TRUE(run_everywhere(test));
    }
  }
}

TEST(Precision, FastHasStrictBitsWithoutAFasterKernel) {
  Random random(72);
  for (const Isa isa : available_isas()) {
    const Runtime& runtime = runtime_on(isa);
    const dispatch::KernelTable& kernels = dispatch::kernel_table(isa);
    for (const std::int64_t queries : {1, 50}) {
      AttentionCase test = make_case(attention_spec(2, 2, 1, queries, 70, 32, 32, Mask::causal(Causal::bottom_right)), random);
      const Tensor strict = run_fresh(test, runtime);
      test.spec.precision = Precision::fast;
      const Tensor fast = run_fresh(test, runtime);
      const bool has_fast = kernels.fast_attention_f32 != kernels.attention_f32 && queries > 1;
      EXPECT_NE(same_bits(strict, fast), has_fast) << name(isa) << ", queries " << queries;

      // One-shot calls keep the plans of both apart.
      for (const Precision precision : {Precision::fast, Precision::strict, Precision::fast}) {
        AttentionOptions options = test.options();
        options.precision = precision;
        attention(runtime, test.inputs(), options);
        EXPECT_TRUE(same_bits(test.out, precision == Precision::fast ? fast : strict)) << name(isa) << ", " << name(precision);
      }
    }
  }
}

TEST(Precision, ExplainNamesIt) {
  for (const Isa isa : available_isas()) {
    const dispatch::KernelTable& kernels = dispatch::kernel_table(isa);
    AttentionSpec spec = attention_spec(1, 2, 2, 60, 60, 32, 32);
    const auto explain = [&] { return AttentionPlan(spec, runtime_on(isa)).explain(); };
    EXPECT_NE(explain().find("precision    strict\n"), std::string::npos) << explain();
    spec.precision = Precision::fast;
    EXPECT_NE(explain().find(kernels.fast_attention_f32->name), std::string::npos) << explain();
    const bool has_fast = kernels.fast_attention_f32 != kernels.attention_f32;
    EXPECT_NE(explain().find(has_fast ? "precision    fast\n" : "precision    fast: computed as strict"), std::string::npos)
        << explain();
  }
}

TEST(Precision, AnotherValueIsRefused) {
  const auto wrong = static_cast<Precision>(7);
  AttentionSpec spec = attention_spec(1, 1, 1, 2, 3, 4, 4);
  spec.precision = wrong;
  const Runtime& runtime = runtime_on(default_isa());
  const std::string expected = ".precision is 7, expected Precision::strict or Precision::fast";
  EXPECT_EQ(message_of([&] { AttentionPlan(spec, runtime); }), "AttentionSpec" + expected);

  Random random(73);
  const AttentionCase test = make_case(attention_spec(1, 1, 1, 2, 3, 4, 4), random);
  AttentionOptions options = test.options();
  attention(runtime, test.inputs(), options);  // the plan that a wrong value must not find
  options.precision = wrong;
  EXPECT_EQ(message_of([&] { attention(runtime, test.inputs(), options); }), "AttentionSpec" + expected);

  MultiHeadAttentionSpec layer;
  layer.d_model = 8;
  layer.precision = wrong;
  EXPECT_EQ(message_of([&] { MultiHeadAttention(layer, {}, runtime); }), "MultiHeadAttentionSpec" + expected);
}

}  // namespace
}  // namespace polyhead::testing
