// Each argument wrong in turn: refused before any work, with a message that names it, what it was and what was expected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr std::int64_t huge = std::int64_t{1} << 62;

::testing::AssertionResult refuses(const std::function<void()>& call, ErrorCode code, const std::vector<std::string>& words) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != code)
      return ::testing::AssertionFailure() << "code is " << static_cast<int>(error.code()) << ", message: " << error.what();
    for (const std::string& word : words)
      if (std::string(error.what()).find(word) == std::string::npos)
        return ::testing::AssertionFailure() << "the message lacks \"" << word << "\": " << error.what();
    return ::testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "threw something other than Error: " << error.what();
  }
  return ::testing::AssertionFailure() << "was accepted";
}

const Runtime& any_runtime() {
  return runtime_on(default_isa());
}

// ---- the spec

struct WrongSpec {
  const char* what;
  std::function<void(AttentionSpec&)> change;
  std::vector<std::string> words;  // of the message: the field, what it was
  ErrorCode code = ErrorCode::invalid_argument;
};

TEST(AttentionSpecErrors, NameTheField) {
  const WrongSpec wrong[] = {
      {"a negative batch", [](AttentionSpec& s) { s.batch = -1; }, {"batch", "-1"}},
      {"no heads", [](AttentionSpec& s) { s.heads = 0; }, {"heads", "0"}},
      {"negative heads", [](AttentionSpec& s) { s.heads = -4; }, {"heads", "-4"}},
      {"negative kv_heads", [](AttentionSpec& s) { s.kv_heads = -2; }, {"kv_heads", "-2"}},
      {"kv_heads that do not divide heads", [](AttentionSpec& s) { s.kv_heads = 3; }, {"kv_heads", "3", "4"}},
      {"more kv_heads than heads", [](AttentionSpec& s) { s.kv_heads = 8; }, {"kv_heads", "8", "4"}},
      {"9 heads over 7 kv_heads", [](AttentionSpec& s) { s.heads = 9, s.kv_heads = 7; }, {"kv_heads", "7", "9"}},
      {"a negative query_length", [](AttentionSpec& s) { s.query_length = -5; }, {"query_length", "-5"}},
      {"a negative key_length", [](AttentionSpec& s) { s.key_length = -6; }, {"key_length", "-6"}},
      {"a head_dim of 0", [](AttentionSpec& s) { s.head_dim = 0; }, {"head_dim", "0"}},
      {"a negative head_dim", [](AttentionSpec& s) { s.head_dim = -8; }, {"head_dim", "-8"}},
      {"a negative value_dim", [](AttentionSpec& s) { s.value_dim = -7; }, {"value_dim", "-7"}},
      {"a NaN scale", [](AttentionSpec& s) { s.scale = std::nan(""); }, {"scale", "nan", "finite"}},
      {"an infinite scale", [](AttentionSpec& s) { s.scale = HUGE_VAL; }, {"scale", "inf", "finite"}},
      {"an infinite negative scale", [](AttentionSpec& s) { s.scale = -HUGE_VAL; }, {"scale", "-inf", "finite"}},
      {"a negative softcap", [](AttentionSpec& s) { s.softcap = -30; }, {"softcap", "-30", "positive"}},
      {"a NaN softcap", [](AttentionSpec& s) { s.softcap = std::nan(""); }, {"softcap", "nan", "finite"}},
      {"an infinite softcap", [](AttentionSpec& s) { s.softcap = HUGE_VAL; }, {"softcap", "inf", "finite"}},
      {"T5 without buckets",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(3); },
       {"relative_bias.buckets", "3", "4"}},
      {"T5 with buckets that do not halve",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(7); },
       {"relative_bias.buckets", "7", "even"}},
      {"a T5 decoder without buckets",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(1, 128, false); },
       {"relative_bias.buckets", "1", "2"}},
      {"T5 whose distances all have buckets",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(32, 8); },
       {"relative_bias.max_distance", "8", "9"}},
      {"T5 with a huge distance",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(32, huge); },
       {"relative_bias.max_distance"}},
      {"T5 beside a bias",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(), s.mask = Mask::bias(); },
       {"has_bias", "relative bias"}},
      {"a Swin window without columns",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(7, 0); },
       {"relative_bias.width", "0", "1"}},
      {"a huge Swin window", [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(huge, 7); }, {"relative_bias.height"}},
      {"a causal Swin window",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(3, 7), s.mask = Mask::causal(Causal::top_left); },
       {"relative_bias", "causal"}},
      {"a Swin window within a window",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(3, 7), s.mask = Mask::window(3, 3); },
       {"relative_bias", "window"}},
      {"a Swin window with ALiBi",
       [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(3, 7), s.has_alibi = true; },
       {"relative_bias", "ALiBi"}},
      {"a relative bias that does not exist",
       [](AttentionSpec& s) { s.relative_bias.kind = static_cast<RelativeBias::Kind>(3); },
       {"relative_bias.kind", "3"}},
      {"an integer dtype",
       [](AttentionSpec& s) { s.dtype = DType::i32; },
       {"dtype", "i32", "serves f32"},
       ErrorCode::unsupported},
      {"a negative left window", [](AttentionSpec& s) { s.mask.window_left = -2; }, {"window", "-2"}},
      {"negative kept keys", [](AttentionSpec& s) { s.mask.window_kept = -4; }, {"window_kept", "-4"}},
      {"a negative right window", [](AttentionSpec& s) { s.mask.window_right = -3; }, {"window", "-3"}},
      {"a causal alignment by offset without offsets",
       [](AttentionSpec& s) { s.mask.causality = Causal::offset, s.mask.has_offsets = false; },
       {"offsets"}},
      {"a causal alignment that does not exist",
       [](AttentionSpec& s) { s.mask.causality = static_cast<Causal>(9); },
       {"caus", "9"}},
      {"sizes whose product overflows", [](AttentionSpec& s) { s.query_length = huge, s.head_dim = huge; }, {}},
      {"key sizes whose product overflows", [](AttentionSpec& s) { s.key_length = huge, s.value_dim = huge; }, {}},
      {"a batch that overflows", [](AttentionSpec& s) { s.batch = huge, s.query_length = huge; }, {}},
  };
  for (const WrongSpec& w : wrong) {
    AttentionSpec spec = attention_spec(2, 4, 2, 6, 10, 8, 12);
    w.change(spec);
    EXPECT_TRUE(refuses([&] { AttentionPlan(spec, any_runtime()); }, w.code, w.words)) << w.what;
  }
}

TEST(AttentionSpecErrors, AScaleThatAFloatCannotHoldIsRefusedOrRight) {
  Random random(3);
  AttentionCase test = make_case(attention_spec(1, 1, 1, 2, 3, 4, 4), random);
  test.spec.scale = 1e300;
  try {
    const AttentionPlan plan(test.spec, any_runtime());
    fill(test.query, 0.0);
    EXPECT_TRUE(run_and_compare(test, any_runtime()));  // 0 * 1e300 is 0
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("scale"), std::string::npos) << error.what();
  }
}

TEST(AttentionSpecErrors, MasksRefuseNegativeWindows) {
  for (const std::int64_t wrong : {std::int64_t{-2}, std::int64_t{-100}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_TRUE(refuses([&] { Mask::window(wrong, 0); }, ErrorCode::invalid_argument, {"window", std::to_string(wrong)}));
    EXPECT_TRUE(refuses([&] { Mask::window(0, wrong); }, ErrorCode::invalid_argument, {"window", std::to_string(wrong)}));
    EXPECT_TRUE(refuses([&] { Mask::window(0, 0, wrong); }, ErrorCode::invalid_argument, {"kept", std::to_string(wrong)}));
  }
}

// ---- the inputs

AttentionCase good_case() {
  Random random(5);
  AttentionSpec spec =
      attention_spec(2, 4, 2, 6, 10, 8, 12,
                     Mask::key_lengths() & Mask::causal(Causal::offset) & Mask::offsets() & Mask::boolean() & Mask::bias());
  spec.has_alibi = spec.has_sink = true;
  return make_case(spec, random);
}

struct WrongInput {
  const char* what;
  std::function<void(AttentionInputs&)> change;
  std::vector<std::string> words;
  ErrorCode code = ErrorCode::invalid_argument;
};

TensorView resized(TensorView view, int dimension, std::int64_t size) {
  view.shape[static_cast<std::size_t>(dimension)] = size;
  return view;
}

TensorView with_dtype(TensorView view, DType dtype) {
  view.dtype = dtype;
  return view;
}

TensorView with_rank(TensorView view, int rank) {
  view.rank = rank;
  return view;
}

TensorView without_data(TensorView view) {
  view.data = nullptr;
  return view;
}

TEST(AttentionInputErrors, NameTheInput) {
  const AttentionCase test = good_case();
  const AttentionPlan plan(test.spec, any_runtime());
  const std::vector<WrongInput> wrong = {
      // not there
      {"no query", [](AttentionInputs& i) { i.query = {}; }, {"query"}},
      {"no key", [](AttentionInputs& i) { i.key = {}; }, {"key"}},
      {"no value", [](AttentionInputs& i) { i.value = {}; }, {"value"}},
      {"no out", [](AttentionInputs& i) { i.out = {}; }, {"out"}},
      {"no key_lengths", [](AttentionInputs& i) { i.key_lengths = {}; }, {"key_lengths"}},
      {"no offsets", [](AttentionInputs& i) { i.offsets = {}; }, {"offsets"}},
      {"no boolean_mask", [](AttentionInputs& i) { i.boolean_mask = {}; }, {"boolean_mask"}},
      {"no bias", [](AttentionInputs& i) { i.bias = {}; }, {"bias"}},
      {"no alibi_slopes", [](AttentionInputs& i) { i.alibi_slopes = {}; }, {"alibi_slopes", "not given", "ALiBi"}},
      {"no sink", [](AttentionInputs& i) { i.sink = {}; }, {"sink", "not given"}},
      {"a query without memory", [](AttentionInputs& i) { i.query = without_data(i.query); }, {"query"}},
      {"a key without memory", [](AttentionInputs& i) { i.key = without_data(i.key); }, {"key"}},
      {"a value without memory", [](AttentionInputs& i) { i.value = without_data(i.value); }, {"value"}},
      {"an out without memory", [](AttentionInputs& i) { i.out = without_data(i.out); }, {"out"}},
      {"an lse without memory", [](AttentionInputs& i) { i.lse = without_data(i.lse); }, {"lse"}},
      {"alibi_slopes without memory",
       [](AttentionInputs& i) { i.alibi_slopes = without_data(i.alibi_slopes); },
       {"alibi_slopes"}},
      {"a sink without memory", [](AttentionInputs& i) { i.sink = without_data(i.sink); }, {"sink"}},
      {"a bias without memory", [](AttentionInputs& i) { i.bias = without_data(i.bias); }, {"bias"}},
      {"a boolean_mask without memory",
       [](AttentionInputs& i) { i.boolean_mask = without_data(i.boolean_mask); },
       {"boolean_mask"}},
      {"key_lengths without memory", [](AttentionInputs& i) { i.key_lengths = without_data(i.key_lengths); }, {"key_lengths"}},
      // rank
      {"a query of rank 3", [](AttentionInputs& i) { i.query = with_rank(i.query, 3); }, {"query", "3"}},
      {"a key of rank 3", [](AttentionInputs& i) { i.key = select(i.key, 0); }, {"key"}},
      {"a value of rank 5", [](AttentionInputs& i) { i.value = resized(with_rank(i.value, 5), 4, 1); }, {"value"}},
      {"an out of rank 0", [](AttentionInputs& i) { i.out = with_rank(i.out, 0); }, {"out"}},
      {"an lse of rank 2", [](AttentionInputs& i) { i.lse = with_rank(i.lse, 2); }, {"lse"}},
      {"key_lengths of rank 0", [](AttentionInputs& i) { i.key_lengths = with_rank(i.key_lengths, 0); }, {"key_lengths"}},
      {"offsets of rank 3",
       [](AttentionInputs& i) { i.offsets = resized(resized(with_rank(i.offsets, 3), 1, 1), 2, 1); },
       {"offsets"}},
      {"alibi_slopes of rank 2",
       [](AttentionInputs& i) { i.alibi_slopes = resized(with_rank(i.alibi_slopes, 2), 1, 1); },
       {"alibi_slopes"}},
      {"a sink of rank 0", [](AttentionInputs& i) { i.sink = with_rank(i.sink, 0); }, {"sink"}},
      {"a bias of rank 5", [](AttentionInputs& i) { i.bias = resized(with_rank(i.bias, 5), 4, 10); }, {"bias"}},
      {"a negative rank", [](AttentionInputs& i) { i.query = with_rank(i.query, -1); }, {"query"}},
      {"a rank above the largest", [](AttentionInputs& i) { i.query = with_rank(i.query, 9); }, {"query"}},
      // dtype
      {"a query of f64", [](AttentionInputs& i) { i.query = with_dtype(i.query, DType::f64); }, {"query", "f64", "f32"}},
      {"a key of f16", [](AttentionInputs& i) { i.key = with_dtype(i.key, DType::f16); }, {"key", "f16", "f32"}},
      {"a value of i32", [](AttentionInputs& i) { i.value = with_dtype(i.value, DType::i32); }, {"value", "i32", "f32"}},
      {"an out of f64", [](AttentionInputs& i) { i.out = with_dtype(i.out, DType::f64); }, {"out", "f64", "f32"}},
      {"an lse of f64", [](AttentionInputs& i) { i.lse = with_dtype(i.lse, DType::f64); }, {"lse", "f64", "f32"}},
      {"key_lengths of f32",
       [](AttentionInputs& i) { i.key_lengths = with_dtype(i.key_lengths, DType::f32); },
       {"key_lengths", "f32"}},
      {"offsets of u8", [](AttentionInputs& i) { i.offsets = with_dtype(i.offsets, DType::u8); }, {"offsets", "u8"}},
      {"a boolean_mask of f32",
       [](AttentionInputs& i) { i.boolean_mask = with_dtype(i.boolean_mask, DType::f32); },
       {"boolean_mask", "f32"}},
      {"a bias of bool",
       [](AttentionInputs& i) { i.bias = with_dtype(i.bias, DType::boolean); },
       {"bias is of dtype bool, expected f32, bf16 or f16"}},
      {"a bias of f64",
       [](AttentionInputs& i) { i.bias = with_dtype(i.bias, DType::f64); },
       {"bias is of dtype f64, expected f32, bf16 or f16"}},
      {"a bias of i8",
       [](AttentionInputs& i) { i.bias = with_dtype(i.bias, DType::i8); },
       {"bias is of dtype i8, expected f32, bf16 or f16"}},
      {"alibi_slopes of f64",
       [](AttentionInputs& i) { i.alibi_slopes = with_dtype(i.alibi_slopes, DType::f64); },
       {"alibi_slopes", "f64", "f32"}},
      {"a sink of f16", [](AttentionInputs& i) { i.sink = with_dtype(i.sink, DType::f16); }, {"sink", "f16", "f32"}},
      {"a dtype that does not exist",
       [](AttentionInputs& i) { i.query = with_dtype(i.query, static_cast<DType>(77)); },
       {"query"}},
      // shape
      {"a query of other heads", [](AttentionInputs& i) { i.query = resized(i.query, 1, 3); }, {"query", "3", "4"}},
      {"a query of another head_dim", [](AttentionInputs& i) { i.query = resized(i.query, 3, 7); }, {"query", "7", "8"}},
      {"a key of other heads", [](AttentionInputs& i) { i.key = resized(i.key, 1, 1); }, {"key", "1", "2"}},
      {"a key of another head_dim", [](AttentionInputs& i) { i.key = resized(i.key, 3, 5); }, {"key", "5", "8"}},
      {"a key of another batch", [](AttentionInputs& i) { i.key = resized(i.key, 0, 1); }, {"key"}},
      {"a value of another batch", [](AttentionInputs& i) { i.value = resized(i.value, 0, 1); }, {"value"}},
      {"a value of another length", [](AttentionInputs& i) { i.value = resized(i.value, 2, 9); }, {"value", "9", "10"}},
      {"a value of other heads", [](AttentionInputs& i) { i.value = resized(i.value, 1, 1); }, {"value", "1", "2"}},
      {"a value of another value_dim", [](AttentionInputs& i) { i.value = resized(i.value, 3, 11); }, {"value", "11", "12"}},
      {"an out of another batch", [](AttentionInputs& i) { i.out = resized(i.out, 0, 1); }, {"out"}},
      {"an out of other heads", [](AttentionInputs& i) { i.out = resized(i.out, 1, 2); }, {"out", "2", "4"}},
      {"an out of another length", [](AttentionInputs& i) { i.out = resized(i.out, 2, 5); }, {"out", "5", "6"}},
      {"an out of another value_dim", [](AttentionInputs& i) { i.out = resized(i.out, 3, 8); }, {"out", "8", "12"}},
      {"an lse of another length", [](AttentionInputs& i) { i.lse = resized(i.lse, 2, 5); }, {"lse", "5", "6"}},
      {"an lse of other heads", [](AttentionInputs& i) { i.lse = resized(i.lse, 1, 2); }, {"lse", "2", "4"}},
      {"an lse of another batch", [](AttentionInputs& i) { i.lse = resized(i.lse, 0, 1); }, {"lse"}},
      {"key_lengths of another batch",
       [](AttentionInputs& i) { i.key_lengths = resized(i.key_lengths, 0, 1); },
       {"key_lengths", "1", "2"}},
      {"offsets of another batch", [](AttentionInputs& i) { i.offsets = resized(i.offsets, 0, 1); }, {"offsets", "1", "2"}},
      {"a boolean_mask of other heads",
       [](AttentionInputs& i) { i.boolean_mask = resized(i.boolean_mask, 1, 2); },
       {"boolean_mask", "2"}},
      {"a boolean_mask of other keys",
       [](AttentionInputs& i) { i.boolean_mask = resized(i.boolean_mask, 3, 9); },
       {"boolean_mask", "9", "10"}},
      {"alibi_slopes of other heads",
       [](AttentionInputs& i) { i.alibi_slopes = resized(i.alibi_slopes, 0, 2); },
       {"alibi_slopes", "2", "4"}},
      {"alibi_slopes of another batch",
       [](AttentionInputs& i) {
         i.alibi_slopes = resized(resized(with_rank(i.alibi_slopes, 2), 0, 3), 1, 4);
         i.alibi_slopes.strides[0] = i.alibi_slopes.strides[1] = 0;
       },
       {"alibi_slopes", "f32[3, 4]", "f32[2, 4]"}},
      {"a sink of one head", [](AttentionInputs& i) { i.sink = resized(i.sink, 0, 1); }, {"sink", "1", "4"}},
      {"a bias of other queries", [](AttentionInputs& i) { i.bias = resized(i.bias, 2, 5); }, {"bias", "5", "6"}},
      {"a bias of another batch", [](AttentionInputs& i) { i.bias = resized(i.bias, 0, 3); }, {"bias", "3", "2"}},
      {"a bias with a size of 0", [](AttentionInputs& i) { i.bias = resized(i.bias, 3, 0); }, {"bias"}},
      {"a negative size", [](AttentionInputs& i) { i.query = resized(i.query, 2, -6); }, {"query", "-6"}},
      // more than the plan's maximum
      {"a batch above the plan's",
       [](AttentionInputs& i) {
         for (TensorView* view : {&i.query, &i.key, &i.value, &i.out, &i.key_lengths, &i.offsets, &i.boolean_mask, &i.bias})
           view->shape[0] = 3;
       },
       {"batch", "3", "2"}},
      {"a query_length above the plan's",
       [](AttentionInputs& i) {
         for (TensorView* view : {&i.query, &i.out, &i.boolean_mask, &i.bias}) view->shape[2] = 7;
       },
       {"query", "7", "6"}},
      {"a key_length above the plan's",
       [](AttentionInputs& i) {
         i.key.shape[2] = i.value.shape[2] = 11;
         i.boolean_mask.shape[3] = i.bias.shape[3] = 11;
       },
       {"key", "11", "10"}},
  };
  for (const WrongInput& w : wrong) {
    AttentionInputs inputs = test.inputs_with_lse();
    w.change(inputs);
    if (w.what == std::string("a batch above the plan's") || w.what == std::string("a query_length above the plan's"))
      inputs.lse = {};
    EXPECT_TRUE(refuses([&] { plan.run(inputs); }, w.code, w.words)) << w.what;
  }
  // Nothing was written, and the plan works as before.
  EXPECT_TRUE(std::isnan(test.out({0, 0, 0, 0})));
  EXPECT_TRUE(run_and_compare(test, any_runtime()));
}

TEST(AttentionInputErrors, TensorsThatTheMaskDoesNotHaveAreRefused) {
  Random random(7);
  const AttentionCase full = good_case();
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 6, 10, 8, 12), random);
  const AttentionPlan plan(test.spec, any_runtime());
  const auto with = [&](const std::function<void(AttentionInputs&)>& change) {
    AttentionInputs inputs = test.inputs();
    change(inputs);
    return [inputs, &plan] { plan.run(inputs); };
  };
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.key_lengths = full.key_lengths; }), ErrorCode::invalid_argument,
                      {"key_lengths"}));
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.offsets = full.offsets; }), ErrorCode::invalid_argument, {"offsets"}));
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.boolean_mask = full.boolean_mask; }), ErrorCode::invalid_argument,
                      {"boolean_mask"}));
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.bias = full.bias; }), ErrorCode::invalid_argument, {"bias"}));
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.alibi_slopes = full.alibi_slopes; }), ErrorCode::invalid_argument,
                      {"alibi_slopes", "no tensor, since the spec has no ALiBi"}));
  EXPECT_TRUE(refuses(with([&](AttentionInputs& i) { i.sink = full.sink; }), ErrorCode::invalid_argument,
                      {"sink", "no tensor, since the spec has no sink"}));
}

TEST(AttentionInputErrors, DataTypesMayNotBeMixed) {
  for (const DType dtype : attention_dtypes()) {
    AttentionSpec spec = attention_spec(1, 2, 2, 3, 4, 8, 8);
    spec.dtype = dtype;
    Random random(5);
    const AttentionCase test = make_case(spec, random);
    const AttentionPlan plan(spec, any_runtime());
    for (const DType other : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
      if (other == dtype) continue;
      const Tensor stranger(other, {1, 2, 4, 8});
      TensorView AttentionInputs::* const members[] = {&AttentionInputs::query, &AttentionInputs::key, &AttentionInputs::value,
                                                       &AttentionInputs::out};
      const char* const names[] = {"query", "key", "value", "out"};
      for (int i = 0; i < 4; ++i) {
        AttentionInputs inputs = test.inputs();
        inputs.*members[i] = slice(stranger, 2, 0, (inputs.*members[i]).shape[2]);
        const std::string is = std::string(names[i]) + " is " + name(other) + "[",
                          wanted = std::string("expected ") + name(dtype);
        EXPECT_TRUE(refuses([&] { plan.run(inputs); }, ErrorCode::invalid_argument, {is, wanted}));
        if (i == 0) continue;  // query decides what the others have to be
        EXPECT_TRUE(refuses([&] { attention(any_runtime(), inputs); }, ErrorCode::invalid_argument, {is, wanted}));
      }
    }
  }
}

TEST(AttentionInputErrors, TablesOfRelativePositionsAreNamed) {
  Random random(9);
  AttentionSpec spec = attention_spec(2, 4, 2, 6, 10, 8, 12);
  spec.relative_bias = RelativeBias::t5();
  AttentionCase test = make_case(spec, random);
  const auto run = [&](const AttentionInputs& inputs) { AttentionPlan(test.spec, any_runtime()).run(inputs); };
  AttentionInputs inputs = test.inputs();
  EXPECT_NO_THROW(run(inputs));
  inputs.relative_bias_table = {};
  EXPECT_TRUE(refuses([&] { run(inputs); }, ErrorCode::invalid_argument, {"relative_bias_table", "not given"}));
  inputs.relative_bias_table = slice(test.relative_bias_table, 0, 0, 31);
  EXPECT_TRUE(refuses([&] { run(inputs); }, ErrorCode::invalid_argument, {"relative_bias_table", "f32[31, 4]", "f32[32, 4]"}));
  inputs.relative_bias_table = with_dtype(test.relative_bias_table, DType::f64);
  EXPECT_TRUE(refuses([&] { run(inputs); }, ErrorCode::invalid_argument, {"relative_bias_table", "f64", "f32"}));
  inputs = test.inputs_with_lse();
  inputs.lse = TensorView(test.relative_bias_table.view().data, DType::f32, {2, 4, 6});
  EXPECT_TRUE(refuses([&] { run(inputs); }, ErrorCode::invalid_argument, {"lse overlaps relative_bias_table"}));
  inputs = test.inputs();
  test.spec.relative_bias = {};
  EXPECT_TRUE(refuses([&] { run(inputs); }, ErrorCode::invalid_argument, {"relative_bias_table", "no relative bias"}));
  // A window has no more than its positions, and a larger plan changes nothing about that.
  spec.relative_bias = RelativeBias::swin(3, 3);
  test = make_case(spec, random);
  EXPECT_TRUE(refuses([&] { run(test.inputs()); }, ErrorCode::invalid_argument, {"key's length", "10", "9", "3 x 3"}));
  inputs = test.inputs();
  inputs.key = slice(inputs.key, 2, 0, 9);
  inputs.value = slice(inputs.value, 2, 0, 9);
  EXPECT_NO_THROW(run(inputs));
}

TEST(AttentionInputErrors, AddressesInsideAnElementAreRefused) {
  const std::pair<const char*, TensorView AttentionInputs::*> members[] = {
      {"query", &AttentionInputs::query},
      {"key", &AttentionInputs::key},
      {"value", &AttentionInputs::value},
      {"out", &AttentionInputs::out},
      {"lse", &AttentionInputs::lse},
      {"key_lengths", &AttentionInputs::key_lengths},
      {"offsets", &AttentionInputs::offsets},
      {"bias", &AttentionInputs::bias},
      {"alibi_slopes", &AttentionInputs::alibi_slopes},
      {"sink", &AttentionInputs::sink},
  };
  for (const DType dtype : attention_dtypes()) {
    set_case_dtype(dtype);
    const AttentionCase test = good_case();
    set_case_dtype(DType::f32);
    const AttentionPlan plan(test.spec, any_runtime());
    for (const auto& [name, member] : members) {
      const std::int64_t bytes = size_in_bytes((test.inputs_with_lse().*member).dtype);
      for (std::int64_t shift = 1; shift < bytes; ++shift) {
        AttentionInputs inputs = test.inputs_with_lse();
        (inputs.*member).data = static_cast<char*>((inputs.*member).data) + shift;
        EXPECT_TRUE(refuses([&] { plan.run(inputs); }, ErrorCode::invalid_argument,
                            {name, "not aligned", std::to_string(bytes) + "-byte alignment"}))
            << name << " " << shift << " bytes off";
      }
    }
  }
}

TEST(AttentionInputErrors, NumbersOfHeadsThatMeanNothingNameTheHead) {
  const double infinity = HUGE_VAL;
  for (const std::int64_t head : {0, 3})
    for (const double number : {std::nan(""), infinity, -infinity}) {
      AttentionCase test = good_case();
      test.alibi_slopes.set({head}, number);
      const std::string place = "[" + std::to_string(head) + "]";
      EXPECT_TRUE(refuses([&] { AttentionPlan(test.spec, any_runtime()).run(test.inputs()); }, ErrorCode::invalid_argument,
                          {"alibi_slopes" + place, "finite"}));
      test.alibi_slopes = Tensor(DType::f32, {2, 4});
      fill(test.alibi_slopes, 0.5);
      EXPECT_NO_THROW(AttentionPlan(test.spec, any_runtime()).run(test.inputs()));
      test.alibi_slopes.set({1, head}, number);
      EXPECT_TRUE(refuses([&] { AttentionPlan(test.spec, any_runtime()).run(test.inputs()); }, ErrorCode::invalid_argument,
                          {"alibi_slopes[1, " + std::to_string(head) + "]", "finite"}));
      test = good_case();
      test.sink.set({head}, number);
      const auto run = [&] { AttentionPlan(test.spec, any_runtime()).run(test.inputs()); };
      if (number == -infinity) {
        EXPECT_NO_THROW(run());
      } else {
        EXPECT_TRUE(refuses(run, ErrorCode::invalid_argument, {"sink" + place, "-inf for no sink"}));
      }
    }
}

TEST(AttentionInputErrors, LengthsOutsideTheKeysNameTheItem) {
  Random random(9);
  for (const DType dtype : {DType::i32, DType::i64})
    for (const std::int64_t item : {0, 1, 2}) {
      AttentionCase test = make_case(attention_spec(3, 1, 1, 2, 10, 8, 8, Mask::key_lengths()), random);
      const std::vector<std::int64_t> wrong = {-1, 11, std::numeric_limits<std::int32_t>::max(),
                                               std::numeric_limits<std::int32_t>::min()};
      for (const std::int64_t length : wrong) {
        std::vector<std::int64_t> lengths = {4, 4, 4};
        lengths[static_cast<std::size_t>(item)] = length;
        test.key_lengths = integers(dtype, lengths);
        EXPECT_TRUE(refuses([&] { AttentionPlan(test.spec, any_runtime()).run(test.inputs()); }, ErrorCode::invalid_argument,
                            {"key_lengths", std::to_string(length), "10", std::to_string(item)}));
      }
      for (const std::int64_t length : {0, 1, 9, 10}) {
        std::vector<std::int64_t> lengths = {4, 4, 4};
        lengths[static_cast<std::size_t>(item)] = length;
        test.key_lengths = integers(dtype, lengths);
        EXPECT_TRUE(run_and_compare(test, any_runtime()));
      }
    }
  AttentionCase wide = make_case(attention_spec(1, 1, 1, 2, 10, 8, 8, Mask::key_lengths()), random);
  for (const std::int64_t length :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), (std::int64_t{1} << 32) + 3}) {
    wide.key_lengths = integers(DType::i64, {length});
    EXPECT_TRUE(refuses([&] { AttentionPlan(wide.spec, any_runtime()).run(wide.inputs()); }, ErrorCode::invalid_argument,
                        {"key_lengths", std::to_string(length)}));
  }
}

TEST(AttentionInputErrors, AWorkspaceThatIsShortOrMisalignedIsRefused) {
  Random random(11);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 60, 300, 40, 40), random);
  const AttentionPlan plan(test.spec, any_runtime());
  const std::size_t bytes = plan.workspace_bytes();
  const Tensor memory(DType::u8, {static_cast<std::int64_t>(bytes + 128)});
  auto* const aligned = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(memory.view().data) + 63) / 64 * 64);
  RunOptions options;
  options.workspace = aligned;
  options.workspace_bytes = bytes;
  EXPECT_NO_THROW(plan.run(test.inputs(), options));
  if (bytes == 0) GTEST_SKIP() << "this plan needs no workspace";
  options.workspace_bytes = bytes - 1;
  EXPECT_TRUE(refuses([&] { plan.run(test.inputs(), options); }, ErrorCode::invalid_argument,
                      {"workspace", std::to_string(bytes - 1), std::to_string(bytes)}));
  options.workspace_bytes = 0;
  EXPECT_TRUE(refuses([&] { plan.run(test.inputs(), options); }, ErrorCode::invalid_argument, {"workspace"}));
  for (const int shift : {1, 4, 32, 63}) {
    options.workspace = aligned + shift;
    options.workspace_bytes = bytes;
    EXPECT_TRUE(refuses([&] { plan.run(test.inputs(), options); }, ErrorCode::invalid_argument, {"workspace", "64"})) << shift;
  }
}

TEST(AttentionInputErrors, TheOneCallFunctionChecksTheSame) {
  Random random(13);
  const AttentionCase test = make_case(attention_spec(2, 4, 2, 6, 10, 8, 12), random);
  const auto with = [&](const std::function<void(AttentionInputs&)>& change) {
    AttentionInputs inputs = test.inputs();
    change(inputs);
    return [inputs] { attention(any_runtime(), inputs, {}); };
  };
  EXPECT_TRUE(refuses(with([](AttentionInputs& i) { i.query = {}; }), ErrorCode::invalid_argument, {"query"}));
  EXPECT_TRUE(refuses(with([](AttentionInputs& i) { i.key = with_rank(i.key, 2); }), ErrorCode::invalid_argument, {"key"}));
  EXPECT_TRUE(
      refuses(with([](AttentionInputs& i) { i.value = resized(i.value, 2, 9); }), ErrorCode::invalid_argument, {"value"}));
  EXPECT_TRUE(refuses(with([](AttentionInputs& i) { i.out = resized(i.out, 3, 1); }), ErrorCode::invalid_argument, {"out"}));
  EXPECT_TRUE(
      refuses(with([](AttentionInputs& i) { i.query = resized(i.query, 1, 3); }), ErrorCode::invalid_argument, {"heads"}));
  AttentionOptions options;
  options.scale = std::nan("");
  EXPECT_TRUE(refuses([&] { attention(any_runtime(), test.inputs(), options); }, ErrorCode::invalid_argument, {"scale"}));
  options.scale.reset();
  options.mask = Mask::bias();
  EXPECT_TRUE(refuses([&] { attention(any_runtime(), test.inputs(), options); }, ErrorCode::invalid_argument, {"bias"}));
}

TEST(TensorErrors, ImpossibleViewsAreRefused) {
  float memory[4] = {};
  EXPECT_TRUE(
      refuses([&] { TensorView(memory, DType::f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}); }, ErrorCode::invalid_argument, {"9", "8"}));
  EXPECT_TRUE(refuses([&] { TensorView(memory, DType::f32, {2, -1}); }, ErrorCode::invalid_argument, {"-1"}));
  EXPECT_TRUE(refuses([&] { TensorView(memory, DType::f32, {huge, huge}); }, ErrorCode::invalid_argument, {}));
}

TEST(RuntimeErrors, NameTheOption) {
  RuntimeOptions options;
  options.threads = -1;
  EXPECT_TRUE(refuses([&] { Runtime{options}; }, ErrorCode::invalid_argument, {"threads", "-1"}));
  options = {};
  options.executor = Executor{};
  EXPECT_TRUE(refuses([&] { Runtime{options}; }, ErrorCode::invalid_argument, {"executor"}));
  std::vector<Isa> missing = {Isa::reference, Isa::sse4,      Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                              Isa::neon,      Isa::neon_bf16, Isa::sve,  Isa::amx};
  for (const Isa isa : available_isas()) missing.erase(std::find(missing.begin(), missing.end(), isa));
  for (const Isa isa : missing) {
    options = {};
    options.isa = isa;
    EXPECT_TRUE(refuses([&] { Runtime{options}; }, ErrorCode::unsupported, {name(isa)}));
  }
}

}  // namespace
}  // namespace polyhead::testing
