// Keys and values in pages of the caller's own arrays: the bits of plain attention over the same keys, and what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_case.hpp"
#include "support/pages.hpp"

namespace polyhead::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class PagesTest : public EveryIsa {
 protected:
  void check(const AttentionCase& test, const Pages& pages, const std::string& what) {
    fill(test.out, not_a_number);
    fill(test.lse, not_a_number);
    AttentionPlan(test.spec, runtime(1)).run(test.inputs_with_lse());
    const Tensor out = test.out.clone(), lse = test.lse.clone();
    AttentionSpec spec = test.spec;
    spec.key_length = pages.table.view().shape[1] * pages.key.view().shape[2];
    for (const int threads : {1, 2}) {
      for (const bool one_call : {false, true}) {
        fill(test.out, not_a_number);
        fill(test.lse, not_a_number);
        const AttentionInputs inputs = pages.inputs(test.inputs_with_lse());
        if (one_call) {
          attention(runtime(threads), inputs, test.options());
        } else {
          AttentionPlan(spec, runtime(threads)).run(inputs);
        }
        ASSERT_TRUE(same_bits(out, test.out)) << what << ", " << test.describe() << ": " << first_difference(out, test.out);
        ASSERT_TRUE(same_bits(lse, test.lse)) << what << ", lse: " << first_difference(lse, test.lse);
      }
    }
  }
};

TEST_P(PagesTest, GiveTheBitsOfPlainAttention) {
  const Mask masks[] = {Mask::none(), Mask::causal(Causal::bottom_right),
                        Mask::causal(Causal::bottom_right) & Mask::window(40, 0), Mask::window(30, 9) & Mask::offsets()};
  std::uint64_t seed = 40;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {1, 5, 70})
      for (const std::int64_t tokens : {1, 7, 16, 256, 400}) {
        Random random(++seed);
        if (slow() && query_length == 70 && seed % 3 != 0) continue;
        AttentionSpec spec = attention_spec(3, 4, 2, query_length, 290, 32, 32, mask & Mask::key_lengths());
        if (seed % 3 == 0) spec.has_alibi = spec.has_sink = true;
        if (seed % 4 == 0) spec.relative_bias = RelativeBias::t5();
        const AttentionCase test = make_case(spec, random);
        if (tokens == 16) {
          EXPECT_TRUE(run_and_compare(test, runtime()));
        }
        check(test, Pages(test, tokens, 1, seed % 2 == 0, random), "pages of " + std::to_string(tokens));
      }
}

TEST_P(PagesTest, LongSequencesAreSplitAlike) {
  Random random(70);
  for (const std::int64_t query_length : {1, 20}) {
    if (slow() && query_length > 1) continue;
    AttentionCase test = make_case(attention_spec(2, 2, 1, query_length, 6000, 8, 8, Mask::key_lengths()), random);
    test.key_lengths = integers(DType::i64, {6000, 2049});
    check(test, Pages(test, 96, 1, true, random), "long");
  }
}

// One page an item: batch items in any order, some of them twice.
TEST_P(PagesTest, ATableOfOneColumnChoosesBatchItems) {
  Random random(71);
  AttentionCase test = make_case(attention_spec(3, 2, 2, 4, 50, 16, 16, Mask::key_lengths()), random);
  test.key_lengths = integers(DType::i64, {50, 20, 50});
  AttentionInputs inputs = test.inputs();
  const Tensor table = integers(DType::i32, {2, 0, 2});
  inputs.block_table = TensorView(table.view().data, DType::i32, {3, 1});
  attention(runtime(), inputs, test.options());
  const Tensor out = test.out.clone();
  AttentionCase gathered = test;
  gathered.key = test.key.clone(), gathered.value = test.value.clone();
  for (const auto& [to, from] : {std::pair<std::int64_t, std::int64_t>(0, 2), {1, 0}, {2, 2}}) {
    copy(select(test.key, from), select(gathered.key, to));
    copy(select(test.value, from), select(gathered.value, to));
  }
  const Tensor expected = run_fresh(gathered, runtime());
  EXPECT_TRUE(same_bits(expected, out)) << first_difference(expected, out);
}

TEST_P(PagesTest, WhatDoesNotFitIsNamed) {
  Random random(72);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 3, 50, 16, 16, Mask::key_lengths()), random);
  fill(test.key_lengths, 50.0);
  const Pages pages(test, 16, 1, false, random);
  const AttentionInputs right = pages.inputs(test.inputs());
  const auto message = [&](const std::function<void(AttentionInputs&, AttentionOptions&)>& change) {
    AttentionInputs inputs = right;
    AttentionOptions options = test.options();
    change(inputs, options);
    try {
      attention(runtime(), inputs, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  using Inputs = AttentionInputs;
  using Options = AttentionOptions;
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  };
  has(message([](Inputs&, Options&) {}), "not refused");
  has(message([](Inputs& i, Options& o) { o.mask.has_key_lengths = false, i.key_lengths = {}; }),
      "AttentionSpec.mask.has_key_lengths is false");
  has(message([&](Inputs& i, Options& o) { o.mask.has_query_lengths = true, i.query_lengths = test.key_lengths; }),
      "which do not go with a block table");
  has(message([](Inputs& i, Options&) { i.block_table = slice(i.block_table, 0, 0, 1); }), "block_table is");
  has(message([](Inputs& i, Options&) { i.block_table = slice(i.block_table, 1, 0, 3); }),
      "key_lengths[0] is 50, expected 0 to 48");
  const Tensor wrong = pages.table.clone();
  wrong.set({1, 2}, 10000);
  has(message([&](Inputs& i, Options&) { i.block_table = wrong; }), "block_table[1, 2] is 10000, expected 0 to");
  wrong.set({1, 2}, -1);
  has(message([&](Inputs& i, Options&) { i.block_table = wrong; }), "block_table[1, 2] is -1");
  has(message([](Inputs& i, Options&) { i.value = slice(i.value, 2, 0, 15); }), "value is");
  const Tensor sparse = Tensor::ordered(test.spec.dtype, {pages.key.view().shape[0], 2, 16, 16}, {0, 1, 2, 3}, 4);
  fill(sparse, 0.0);
  has(message([&](Inputs& i, Options&) { i.value = sparse; }), "pages as far apart as key's");
  has(message([&](Inputs& i, Options&) { i.value = transposed(i.value, 2, 3), i.key = transposed(i.key, 2, 3); }),
      "a last dimension with a stride of 1");
}

// Weights need no values; pages have room for more keys than an item has, whose weights are 0.
TEST_P(PagesTest, WeightsReadKeysWhereTheyLie) {
  Random random(73);
  for (const DType dtype : attention_dtypes())
    for (const std::int64_t tokens : {1, 8, 300})
      for (const Mask& mask :
           {Mask::key_lengths(), Mask::key_lengths() & Mask::causal(Causal::bottom_right) & Mask::window(50, 0, 3)}) {
        AttentionSpec spec = attention_spec(2, 4, 2, 6, 290, 16, 12, mask);
        spec.dtype = dtype;
        AttentionCase test = make_case(spec, random);
        test.key_lengths = integers(DType::i64, {290, 131});
        const Pages pages(test, tokens, 1, random.chance(0.5), random);
        const std::int64_t room = pages.table.view().shape[1] * tokens;
        const Tensor weights(DType::f32, {2, 4, 6, 290}), in_pages(DType::f32, {2, 4, 6, room}),
            received(DType::f32, {2, 4, room});
        AttentionWeightsRequest request;
        request.weights = weights;
        attention_weights(runtime(), test.inputs(), test.options(), request);
        AttentionInputs inputs = pages.inputs(test.inputs());
        inputs.value = inputs.out = TensorView();
        const std::string where = test.describe() + ", pages of " + std::to_string(tokens);
        for (const int threads : {1, 2}) {
          fill(in_pages, std::numeric_limits<double>::quiet_NaN());
          request.weights = in_pages, request.received = received;
          attention_weights(runtime(threads), inputs, test.options(), request);
          const TensorView known = slice(in_pages, 3, 0, 290), rest = slice(in_pages, 3, 290, room);
          EXPECT_TRUE(same_bits(weights, known)) << where << ": " << first_difference(weights, known);
          for_each_offset(rest, [&](std::int64_t offset) { ASSERT_EQ(load(rest, offset), 0) << where; });
        }
      }
}

POLYHEAD_INSTANTIATE_EVERY_ISA(PagesTest);

}  // namespace
}  // namespace polyhead::testing
