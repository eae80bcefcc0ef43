// merge: parts over different keys come together as if they had been computed at once.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/merge.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Part {
  Tensor out, lse;
};

class MergeTest : public EveryIsa {
 protected:
  // The case over keys [begin, end) alone.
  Part part_of(const AttentionCase& test, std::int64_t begin, std::int64_t end) const {
    AttentionCase part = test;
    part.spec.key_length = end - begin;
    part.spec.has_sink = false;
    part.key = test.key.viewed(slice(test.key, 2, begin, end));
    part.value = test.value.viewed(slice(test.value, 2, begin, end));
    part.out = test.out.clone();
    part.lse = test.lse.clone();
    AttentionPlan(part.spec, runtime()).run(part.inputs_with_lse());
    return {part.out, part.lse};
  }
  static MergeInputs inputs_of(const Part& a, const Part& b, const TensorView& out, const TensorView& lse) {
    MergeInputs inputs;
    inputs.out1 = a.out, inputs.lse1 = a.lse;
    inputs.out2 = b.out, inputs.lse2 = b.lse;
    inputs.out = out, inputs.lse = lse;
    return inputs;
  }
  static Part filled(const std::vector<std::int64_t>& shape, double out, double lse) {
    Part part = {Tensor(DType::f32, shape), Tensor(DType::f32, {shape[0], shape[1], shape[2]})};
    fill(part.out, out);
    fill(part.lse, lse);
    return part;
  }
};

TEST_P(MergeTest, PartsOverDifferentKeysMakeTheWhole) {
  std::uint64_t seed = 0;
  for (const std::int64_t query_length : {1, 5, 70})
    for (const std::int64_t value_dim : {1, 7, 64, 700})
      for (const bool sink : {false, true}) {
        Random random(++seed);
        AttentionSpec spec = attention_spec(2, 4, 2, query_length, 90, 16, value_dim);
        spec.has_sink = sink;
        const AttentionCase test = make_case(spec, random);
        const std::int64_t cut = random.integer(0, 90);
        const Part a = part_of(test, 0, cut), b = part_of(test, cut, 90);
        for (const int threads : {1, 2}) {
          fill(test.out, not_a_number);
          fill(test.lse, not_a_number);
          MergeInputs inputs = inputs_of(a, b, test.out, test.lse);
          if (sink) inputs.sink = test.sink;
          merge(runtime(threads), inputs);
          const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
          const std::string where = test.describe() + ", cut at " + std::to_string(cut) + ", " + name(isa());
          ASSERT_TRUE(attention_matches(expected, test.out, where));
          ASSERT_TRUE(lse_matches(expected, test.lse, where));
        }
      }
}

TEST_P(MergeTest, ByTheFormulaForAnySizesOfLse) {
  Random random(51);
  for (const double size : {1e-3, 1.0, 30.0, 1e4, 1e30}) {
    const std::int64_t rows = 40, width = 5;
    Part a = {Tensor(DType::f32, {1, 2, rows, width}), Tensor(DType::f32, {1, 2, rows})}, b = filled({1, 2, rows, width}, 0, 0);
    for (const Tensor* tensor : {&a.out, &b.out}) fill_normal(*tensor, random);
    for (const Tensor* tensor : {&a.lse, &b.lse}) fill_normal(*tensor, random, size);
    for (std::int64_t t = 0; t < 10; ++t)  // neighbours, whose difference alone counts
      b.lse.set({0, 0, t}, a.lse({0, 0, t}) * (1 + 1e-6 * random.normal()));
    const Part result = filled({1, 2, rows, width}, not_a_number, not_a_number);
    merge(runtime(), inputs_of(a, b, result.out, result.lse));
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t t = 0; t < rows; ++t) {
        const double x = a.lse({0, h, t}), y = b.lse({0, h, t}), most = std::max(x, y);
        const double lse = most + std::log(std::exp(x - most) + std::exp(y - most));
        EXPECT_NEAR(result.lse({0, h, t}), lse, 2e-7 * (1 + std::fabs(lse)));
        for (std::int64_t e = 0; e < width; ++e) {
          const double first = a.out({0, h, t, e}), second = b.out({0, h, t, e});
          const double right = (std::exp(x - most) * first + std::exp(y - most) * second) / std::exp(lse - most);
          EXPECT_NEAR(result.out({0, h, t, e}), right, 5e-7 * std::max(std::fabs(first), std::fabs(second)));
        }
      }
  }
}

TEST_P(MergeTest, AnEmptyPartCountsForNothingWhateverItHolds) {
  Random random(53);
  for (const double junk : {0.0, 7.0, not_a_number, infinity}) {
    Part full = filled({1, 2, 3, 20}, 0, 0);
    fill_normal(full.out, random);
    fill_normal(full.lse, random);
    const Part empty = filled({1, 2, 3, 20}, junk, -infinity), result = filled({1, 2, 3, 20}, not_a_number, not_a_number);
    merge(runtime(), inputs_of(full, empty, result.out, result.lse));
    EXPECT_TRUE(same_bits(full.out, result.out)) << first_difference(full.out, result.out);
    EXPECT_TRUE(same_bits(full.lse, result.lse));
    merge(runtime(), inputs_of(empty, full, result.out, result.lse));
    EXPECT_TRUE(same_bits(full.out, result.out)) << first_difference(full.out, result.out);
    merge(runtime(), inputs_of(empty, empty, result.out, result.lse));
    for_each_offset(result.out, [&](std::int64_t offset) { EXPECT_EQ(load(result.out, offset), 0); });
    for_each_offset(result.lse, [&](std::int64_t offset) { EXPECT_EQ(load(result.lse, offset), -infinity); });
    // With a sink: its logit.
    MergeInputs with_sink = inputs_of(empty, empty, result.out, result.lse);
    const Tensor sink(DType::f32, {2});
    sink.set({0}, 2.5);
    sink.set({1}, -infinity);
    with_sink.sink = sink;
    merge(runtime(), with_sink);
    for_each_offset(result.out, [&](std::int64_t offset) { EXPECT_EQ(load(result.out, offset), 0); });
    EXPECT_EQ(result.lse({0, 0, 1}), 2.5);
    EXPECT_EQ(result.lse({0, 1, 1}), -infinity);
  }
}

TEST_P(MergeTest, ANanInAPartThatCountsReachesItsRowAlone) {
  const Part a = filled({1, 1, 3, 4}, 1, 0), b = filled({1, 1, 3, 4}, 3, 0), result = filled({1, 1, 3, 4}, 0, 0);
  a.out.set({0, 0, 1, 2}, not_a_number);
  b.lse.set({0, 0, 2}, not_a_number);
  merge(runtime(), inputs_of(a, b, result.out, result.lse));
  for (std::int64_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(result.out({0, 0, 0, e}), 2, 1e-6);
    EXPECT_EQ(std::isnan(result.out({0, 0, 1, e})), e == 2);
    EXPECT_TRUE(std::isnan(result.out({0, 0, 2, e})));
  }
  EXPECT_NEAR(result.lse({0, 0, 1}), std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isnan(result.lse({0, 0, 2})));
}

TEST_P(MergeTest, InPlaceAndByAnyStrides) {
  Random random(57);
  const std::vector<std::int64_t> shape = {2, 3, 41, 33}, rows = {2, 3, 41};
  Part a = filled(shape, 0, 0), b = filled(shape, 0, 0);
  for (const Tensor* tensor : {&a.out, &a.lse, &b.out, &b.lse}) fill_normal(*tensor, random);
  const Part plain = filled(shape, not_a_number, not_a_number);
  merge(runtime(), inputs_of(a, b, plain.out, plain.lse));
  for (const bool first : {true, false}) {
    const Part x = {a.out.clone(), a.lse.clone()}, y = {b.out.clone(), b.lse.clone()};
    const Part& own = first ? x : y;
    merge(runtime(2), inputs_of(x, y, own.out, own.lse));
    EXPECT_TRUE(same_bits(plain.out, own.out)) << first_difference(plain.out, own.out);
    EXPECT_TRUE(same_bits(plain.lse, own.lse));
  }
  for (const std::int64_t step : {1, 2}) {
    const Part x = {Tensor::ordered(DType::f32, shape, {0, 2, 1, 3}, 5, step), Tensor::ordered(DType::f32, rows, {2, 0, 1})};
    const Part y = {Tensor::ordered(DType::f32, shape, {3, 2, 1, 0}), Tensor::ordered(DType::f32, rows, {0, 1, 2}, 1, step)};
    const Part result = {Tensor::ordered(DType::f32, shape, {0, 2, 1, 3}, 3, step),
                         Tensor::ordered(DType::f32, rows, {1, 2, 0})};
    copy(a.out, x.out), copy(a.lse, x.lse), copy(b.out, y.out), copy(b.lse, y.lse);
    merge(runtime(2), inputs_of(x, y, result.out, result.lse));
    EXPECT_TRUE(same_bits(plain.out, result.out)) << first_difference(plain.out, result.out);
    EXPECT_TRUE(same_bits(plain.lse, result.lse));
    EXPECT_TRUE(result.out.surroundings_intact() && result.lse.surroundings_intact());
    merge(runtime(), inputs_of(x, y, result.out, TensorView()));  // without lse
    EXPECT_TRUE(same_bits(plain.out, result.out));
  }
}

TEST_P(MergeTest, TheSameBitsForAnyNumberOfThreads) {
  Random random(59);
  const std::vector<std::int64_t> shape = {2, 4, 500, 64};
  Part a = filled(shape, 0, 0), b = filled(shape, 0, 0);
  for (const Tensor* tensor : {&a.out, &a.lse, &b.out, &b.lse}) fill_normal(*tensor, random);
  const Part one = filled(shape, not_a_number, 0), many = filled(shape, not_a_number, 0);
  merge(runtime(1), inputs_of(a, b, one.out, one.lse));
  for (const int threads : {2, 5}) {
    merge(runtime(threads), inputs_of(a, b, many.out, many.lse));
    EXPECT_TRUE(same_bits(one.out, many.out)) << first_difference(one.out, many.out);
    EXPECT_TRUE(same_bits(one.lse, many.lse));
  }
}

TEST_P(MergeTest, SizesOfZero) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0, 2, 3, 4}, {1, 2, 0, 4}, {1, 0, 3, 4}}) {
    const Part a = filled(shape, 0, 0), b = filled(shape, 0, 0), result = filled(shape, 0, 0);
    merge(runtime(2), inputs_of(a, b, result.out, result.lse));
  }
}

TEST(MergeErrors, NameTheTensor) {
  const auto part = [](const std::vector<std::int64_t>& shape) {
    return Part{Tensor(DType::f32, shape), Tensor(DType::f32, {shape[0], shape[1], shape[2]})};
  };
  const Part a = part({1, 2, 3, 4}), b = part({1, 2, 3, 4}), result = part({1, 2, 3, 4}), other = part({1, 2, 5, 4});
  const Runtime& runtime = runtime_on(default_isa());
  MergeInputs good;
  good.out1 = a.out, good.lse1 = a.lse, good.out2 = b.out, good.lse2 = b.lse, good.out = result.out, good.lse = result.lse;
  merge(runtime, good);
  const auto expect_refused = [&](MergeInputs inputs, const std::vector<std::string>& words) {
    try {
      merge(runtime, inputs);
      ADD_FAILURE() << "was accepted: " << words.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
    }
  };
  const auto changed = [&](TensorView MergeInputs::* field, const TensorView& view) {
    MergeInputs inputs = good;
    inputs.*field = view;
    return inputs;
  };
  expect_refused(changed(&MergeInputs::out1, TensorView()), {"out1", "not given"});
  expect_refused(changed(&MergeInputs::out2, other.out), {"out2", "[1, 2, 5, 4]", "[1, 2, 3, 4]"});
  expect_refused(changed(&MergeInputs::lse2, other.lse), {"lse2", "[1, 2, 5]"});
  expect_refused(changed(&MergeInputs::lse1, Tensor(DType::f64, {1, 2, 3})), {"lse1", "f64"});
  expect_refused(changed(&MergeInputs::out, TensorView()), {"out", "not given"});
  expect_refused(changed(&MergeInputs::sink, Tensor(DType::f32, {3})), {"sink", "[3]", "[2]"});
  const Tensor wrong_sink(DType::f32, {2});
  fill(wrong_sink, not_a_number);
  expect_refused(changed(&MergeInputs::sink, wrong_sink), {"sink[0]", "nan"});
  expect_refused(changed(&MergeInputs::out, transposed(a.out, 1, 2)), {"out", "[1, 3, 2, 4]"});
  MergeInputs overlap = good;
  const Tensor memory(DType::f32, {1, 2, 4, 4});
  overlap.out1 = slice(memory, 2, 0, 3);
  overlap.out = slice(memory, 2, 1, 4);
  expect_refused(overlap, {"out overlaps out1"});
  overlap = good;
  overlap.lse = good.lse1;
  merge(runtime, overlap);  // in place is no overlap
  overlap.lse = TensorView(result.out.view().data, DType::f32, {1, 2, 3});
  expect_refused(overlap, {"lse overlaps out"});
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(MergeTest);

}  // namespace
}  // namespace polyhead::testing
