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

  // All weights, whether keys lie in one tensor or, with two threads, in pages of which the table has as many as keys need.
  void expect_same_weights(const AttentionCase& test, const Pages& pages) {
    const AttentionSpec& spec = test.spec;
    const Tensor weights(DType::f32, {spec.batch, spec.heads, spec.query_length, spec.key_length}), in_pages = weights.clone();
    AttentionWeightsRequest request;
    request.weights = weights;
    attention_weights(runtime(), test.inputs(), test.options(), request);
    request.weights = in_pages;
    attention_weights(runtime(2), pages.inputs(test.inputs()), test.options(), request);
    EXPECT_TRUE(same_bits(weights, in_pages)) << test.describe() << ": " << first_difference(weights, in_pages);
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

// What goes by sequences: queries of many sequences packed, keys of each in pages of its own. Blocks and boolean masks are as
// wide as all pages of a sequence.
TEST_P(PagesTest, SequencesGiveTheBitsOfPlainAttention) {
  const Mask causal = Mask::causal(Causal::bottom_right);
  const Mask masks[] = {Mask::packed(),
                        Mask::packed() & causal,
                        Mask::packed() & causal & Mask::window(20, 0, 3),
                        Mask::packed() & Mask::query_lengths() & Mask::window(15, 4) & Mask::offsets(),
                        Mask::packed() & causal & Mask::prefix() & Mask::boolean() & Mask::bias(),
                        Mask::packed() & causal & Mask::blocks(16, 32),
                        Mask::packed() & Mask::blocks(3, 20),
                        Mask::query_lengths() & causal,
                        Mask::query_lengths() & causal & Mask::prefix() & Mask::blocks(4, 24)};
  std::uint64_t seed = 140;
  for (const Mask& mask : masks)
    for (const std::int64_t query_length : {1, 6, 70})
      for (const std::int64_t tokens : {1, 8, 96}) {
        Random random(++seed);
        if (slow() && query_length == 70 && tokens != 8) continue;
        AttentionSpec spec = attention_spec(5, 4, 2, query_length, 192, 32, 24, mask & Mask::key_lengths());
        if (seed % 2 == 0) spec.has_alibi = spec.has_sink = true;
        if (seed % 3 == 0) spec.softcap = 2.0;
        if (seed % 4 == 0 && !mask.has_bias) spec.relative_bias = RelativeBias::t5();
        AttentionCase test = make_case(spec, random);
        if (seed % 5 == 0) {
          test.spec.score_mod = places_score_mod();
          test.score_function = score_at_place;
        }
        if (tokens == 8) {
          EXPECT_TRUE(run_and_compare(test, runtime()));
        }
        check(test, Pages(test, tokens, 0, seed % 2 == 0, random), "pages of " + std::to_string(tokens));
      }
}

// A sequence is its own, whatever else the call has: the bits that it gives alone in a call without packing.
TEST_P(PagesTest, APackedSequenceGivesTheBitsThatItGivesAlone) {
  Random random(142);
  AttentionSpec spec =
      attention_spec(4, 4, 2, 40, 160, 32, 32, Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::key_lengths());
  AttentionCase test = make_case(spec, random);
  const std::vector<std::int64_t> query_ends = {0, 1, 33, 33, 73}, lengths = {150, 40, 16, 97};
  test.query = Tensor(spec.dtype, {1, 4, 73, 32}), test.out = Tensor(spec.dtype, {1, 4, 73, 32});
  test.key = Tensor(spec.dtype, {1, 2, 303, 32}), test.value = Tensor(spec.dtype, {1, 2, 303, 32});
  for (const Tensor* tensor : {&test.query, &test.key, &test.value}) fill_normal(*tensor, random);
  test.cumulative_query_lengths = integers(DType::i32, query_ends);
  test.cumulative_key_lengths = integers(DType::i64, {0, 150, 190, 206, 303});
  test.key_lengths = integers(DType::i64, lengths);
  const Pages pages(test, 16, 0, true, random);
  attention(runtime(2), pages.inputs(test.inputs()), test.options());
  for (std::int64_t b = 0; b < 4; ++b) {
    const auto at = static_cast<std::size_t>(b);
    AttentionInputs alone = pages.inputs(test.inputs());
    alone.cumulative_query_lengths = {};
    alone.query = slice(test.query, 2, query_ends[at], query_ends[at + 1]);
    const Tensor out(spec.dtype, {1, 4, query_ends[at + 1] - query_ends[at], 32});
    alone.out = out;
    alone.block_table = slice(pages.table, 0, b, b + 1);
    const Tensor length = integers(DType::i64, {lengths[at]});
    alone.key_lengths = length;
    AttentionOptions options = test.options();
    options.mask.is_packed = false;
    attention(runtime(), alone, options);
    EXPECT_TRUE(same_bits(out, slice(test.out, 2, query_ends[at], query_ends[at + 1]))) << "sequence " << b;
  }
}

// Long keys of few queries are split, and where there are threads the splits of a heavy sequence are shared out.
TEST_P(PagesTest, LongPackedSequencesAreSplitAlike) {
  Random random(143);
  if (slow()) GTEST_SKIP() << "minutes with the scalar kernels";
  for (const std::int64_t query_length : {1, 20}) {
    const std::int64_t key_lengths[] = {6000, 2049, 0, 9000, 2048};
    AttentionSpec spec = attention_spec(5, 4, 2, query_length, 9000, 64, 64,
                                        Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::key_lengths());
    AttentionCase test = make_case(spec, random);
    std::vector<std::int64_t> query_ends = {0}, key_ends = {0};
    for (const std::int64_t length : key_lengths) {
      query_ends.push_back(query_ends.back() + query_length);
      key_ends.push_back(key_ends.back() + length);
    }
    test.cumulative_query_lengths = integers(DType::i64, query_ends);
    test.cumulative_key_lengths = integers(DType::i64, key_ends);
    test.key_lengths = integers(DType::i32, {6000, 2049, 0, 9000, 2048});
    test.query = Tensor(spec.dtype, {1, 4, query_ends.back(), 64});
    test.out = Tensor(spec.dtype, {1, 4, query_ends.back(), 64});
    test.lse = Tensor(DType::f32, {1, 4, query_ends.back()});
    test.key = Tensor(spec.dtype, {1, 2, key_ends.back(), 64});
    test.value = Tensor(spec.dtype, {1, 2, key_ends.back(), 64});
    for (const Tensor* tensor : {&test.query, &test.key, &test.value}) fill_normal(*tensor, random);
    check(test, Pages(test, 96, 1, true, random), "long");
  }
}

// No sequence at all, with and without rows behind the last; sequences without queries or keys.
TEST_P(PagesTest, EmptyPackedSequencesAreLegal) {
  Random random(144);
  AttentionSpec spec =
      attention_spec(3, 2, 1, 8, 32, 16, 16, Mask::packed() & Mask::causal(Causal::bottom_right) & Mask::key_lengths());
  const AttentionCase test = make_case(spec, random);
  const Pages pages(test, 8, 0, false, random);
  const Tensor query(spec.dtype, {1, 2, 5, 16}), out(spec.dtype, {1, 2, 5, 16}), lse(DType::f32, {1, 2, 5});
  fill_normal(query, random);
  const auto run = [&](const std::vector<std::int64_t>& query_ends, const std::vector<std::int64_t>& key_lengths,
                       const TensorView& table) {
    const Tensor ends = integers(DType::i64, query_ends), lengths = integers(DType::i64, key_lengths);
    AttentionInputs inputs = pages.inputs(test.inputs());
    inputs.query = query, inputs.out = out, inputs.lse = lse;
    inputs.cumulative_query_lengths = ends, inputs.key_lengths = lengths, inputs.block_table = table;
    fill(out, not_a_number), fill(lse, not_a_number);
    attention(runtime(2), inputs, test.options());
    for_each_offset(out, [&](std::int64_t i) { ASSERT_EQ(load(out, i), 0); });
    for_each_offset(lse, [&](std::int64_t i) { ASSERT_EQ(load(lse, i), -std::numeric_limits<double>::infinity()); });
  };
  const TensorView table = pages.table;
  run({0}, {}, slice(table, 0, 0, 0));
  run({0, 0, 0, 0}, {0, 0, 0}, table);
  run({0, 2, 2, 5}, {0, 0, 0}, table);
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
  const Tensor numbers = integers(DType::i64, {0, 3, 3});
  has(message([&](Inputs& i, Options& o) {
        o.mask.has_segments = true;
        i.query_segments = i.key_segments = slice(test.key_lengths, 0, 0, 2);
      }),
      "AttentionSpec.mask.has_segments is true, expected false for keys in pages");
  const auto packed = [&](const std::function<void(Inputs&)>& change) {
    return message([&](Inputs& i, Options& o) {
      o.mask.is_packed = true;
      i.query = slice(i.query, 0, 0, 1), i.out = slice(i.out, 0, 0, 1), i.cumulative_query_lengths = numbers;
      change(i);
    });
  };
  has(packed([](Inputs&) {}), "not refused");
  has(packed([&](Inputs& i) { i.cumulative_key_lengths = numbers; }),
      "cumulative_key_lengths is given, expected none, since keys lie in pages");
  has(packed([](Inputs& i) { i.cumulative_query_lengths = {}; }), "cumulative_query_lengths is not given");
  has(packed([](Inputs& i) { i.cumulative_query_lengths = slice(i.cumulative_query_lengths, 0, 0, 2); }), "block_table is");
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

// Rows of one group see a prefix and rows behind it, an item's absent queries are no other item's, blocks end inside calls.
TEST_P(PagesTest, WeightsOfSequencesReadKeysWhereTheyLie) {
  Random random(74);
  const std::int64_t T = slow() ? 60 : 300, S = 600;
  for (const Mask& mask : {Mask::causal(Causal::top_left) & Mask::prefix(), Mask::causal(Causal::bottom_right) & Mask::prefix(),
                           Mask::causal(Causal::bottom_right) & Mask::query_lengths(), Mask::blocks(16, 32)}) {
    AttentionCase test = make_case(attention_spec(3, 2, 1, T, S, 8, 8, mask & Mask::key_lengths()), random);
    test.key_lengths = integers(DType::i64, {S, T, S});
    if (mask.has_prefix) test.prefix_lengths = integers(DType::i64, {T - 50, T - 50, 260});
    if (mask.has_query_lengths) test.query_lengths = integers(DType::i64, {T / 2, T, T});
    const Pages pages(test, 8, 0, random.chance(0.5), random);
    expect_same_weights(test, pages);
  }
}

// A block of keys begins before the last key, the window of all rows that are computed together behind it.
TEST_P(PagesTest, WeightsOfRowsBehindTheKeysReadNone) {
  Random random(75);
  const std::int64_t T = 120, S = 40;
  for (const Mask& mask : {Mask::window(30, 9), Mask::window(30, 9) & Mask::causal(Causal::top_left),
                           Mask::window(6, 9, 4) & Mask::offsets(), Mask::window(30, 9) & Mask::query_lengths()}) {
    AttentionCase test = make_case(attention_spec(5, 2, 1, T, S, 8, 8, mask & Mask::key_lengths()), random);
    test.key_lengths = integers(DType::i64, {1, 17, 20, 33, 40});
    if (mask.has_offsets) test.offsets = integers(DType::i64, {40, 0, 20, 50, 0});
    if (mask.has_query_lengths) test.query_lengths = integers(DType::i64, {T, 90, T, T, 100});
    const Pages pages(test, 8, 0, random.chance(0.5), random);
    expect_same_weights(test, pages);
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA(PagesTest);

}  // namespace
}  // namespace polyhead::testing
