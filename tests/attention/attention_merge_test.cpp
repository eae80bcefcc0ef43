// merge: parts over different keys come together as if they had been computed at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
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

// Every data type with every number.
std::vector<std::pair<DType, double>> types_and(const std::vector<double>& numbers) {
  std::vector<std::pair<DType, double>> all;
  for (const DType dtype : attention_dtypes())
    for (const double number : numbers) all.emplace_back(dtype, number);
  return all;
}

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
  static Part filled(const std::vector<std::int64_t>& shape, double out, double lse, DType dtype = DType::f32) {
    Part part = {Tensor(dtype, shape), Tensor(DType::f32, {shape[0], shape[1], shape[2]})};
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

// Parts of 16 bits: the merge of the numbers that they hold, in f32, rounded once, and what the formula says.
TEST_P(MergeTest, PartsOf16BitsAreRoundedOnce) {
  for (const DType dtype : attention_dtypes()) {
    if (dtype == DType::f32) continue;
    const double step = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11, smallest = dtype == DType::bf16 ? 0.0 : 0x1p-25;
    Random random(61);
    for (const std::int64_t value_dim : {1, 5, 64, 530})
      for (const double size : {1e-3, 1.0, 1e4}) {
        const std::vector<std::int64_t> shape = {2, 2, 37, value_dim};
        const Part a = filled(shape, 0, 0, dtype), b = filled(shape, 0, 0, dtype);
        const Part wide_a = filled(shape, 0, 0), wide_b = filled(shape, 0, 0);
        for (const Tensor* tensor : {&a.out, &b.out}) fill_normal(*tensor, random, size);
        for (const Tensor* tensor : {&a.lse, &b.lse}) fill_normal(*tensor, random);
        copy(a.out, wide_a.out), copy(b.out, wide_b.out);
        const Part narrow = filled(shape, not_a_number, not_a_number, dtype), wide = filled(shape, 0, 0);
        MergeInputs inputs = inputs_of(a, b, narrow.out, narrow.lse);
        MergeInputs wide_inputs = inputs_of({wide_a.out, a.lse}, {wide_b.out, b.lse}, wide.out, wide.lse);
        const Tensor sink(DType::f32, {2});
        fill_normal(sink, random);
        if (size == 1.0) inputs.sink = wide_inputs.sink = sink;
        merge(runtime(2), inputs);
        merge(runtime(), wide_inputs);
        const Tensor rounded(dtype, shape);
        copy(wide.out, rounded);
        EXPECT_TRUE(same_bits(rounded, narrow.out)) << name(dtype) << ": " << first_difference(rounded, narrow.out);
        EXPECT_TRUE(same_bits(wide.lse, narrow.lse));
        EXPECT_TRUE(narrow.out.surroundings_intact());
        for (std::int64_t h = 0; h < 2; ++h)
          for (std::int64_t t = 0; t < shape[2]; ++t) {
            const double x = std::exp(a.lse({1, h, t})), y = std::exp(b.lse({1, h, t}));
            const double sum = x + y + (size == 1.0 ? std::exp(sink({h})) : 0.0);
            for (std::int64_t e = 0; e < value_dim; ++e) {
              const double first = a.out({1, h, t, e}), second = b.out({1, h, t, e});
              const double right = (x * first + y * second) / sum;
              const double largest = std::max(std::fabs(first), std::fabs(second));
              ASSERT_NEAR(narrow.out({1, h, t, e}), right, 1e-6 * largest + step * std::fabs(right) + smallest) << name(dtype);
            }
          }
      }
  }
}

TEST_P(MergeTest, AttentionOf16BitsInParts) {
  std::uint64_t seed = 80;
  for (const DType dtype : attention_dtypes())
    for (const std::int64_t query_length : {1, 40}) {
      Random random(++seed);
      AttentionSpec spec = attention_spec(2, 4, 2, query_length, 90, 16, 24);
      spec.dtype = dtype;
      const AttentionCase test = make_case(spec, random);
      const Part a = part_of(test, 0, 31), b = part_of(test, 31, 90);
      merge(runtime(), inputs_of(a, b, test.out, test.lse));
      const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
      double largest = 0;
      for (const double v : expected.value_magnitude.values) largest = std::max(largest, v);
      // Each part's own bound, its rounding and that of the result.
      const double bound = dtype == DType::bf16 ? 3 * 0x1p-8 : dtype == DType::f16 ? 4 * 0x1p-11 : 4e-6;
      EXPECT_TRUE(array_matches(expected.out, test.out, bound * largest, 0, test.describe()));
      EXPECT_TRUE(lse_matches(expected, test.lse, test.describe()));
    }
}

// What is too large for f16 becomes infinite, denormals stay, ties go to even.
TEST_P(MergeTest, NumbersAtTheEndsOfF16) {
  const std::vector<DType> dtypes = attention_dtypes();
  if (std::find(dtypes.begin(), dtypes.end(), DType::f16) == dtypes.end()) GTEST_SKIP() << "a build without f16";
  const double numbers[] = {65504, -65504, 0x1p-24, -0x1p-24, 3 * 0x1p-24, 0x1p-14, infinity, -infinity, 0.0, 1.0};
  const Part a = filled({1, 1, 2, 10}, 0, 0, DType::f16), b = filled({1, 1, 2, 10}, 0, 0, DType::f16);
  const Part result = filled({1, 1, 2, 10}, not_a_number, not_a_number, DType::f16);
  for (std::int64_t e = 0; e < 10; ++e) {
    a.out.set({0, 0, 0, e}, numbers[e]), b.out.set({0, 0, 0, e}, numbers[e]);
    a.out.set({0, 0, 1, e}, numbers[e]), b.out.set({0, 0, 1, e}, 0);
  }
  merge(runtime(), inputs_of(a, b, result.out, result.lse));
  // Halves of both, and half of one: 2^-25 lies between 0 and 2^-24, three of it between 2^-24 and 2^-23.
  const double halves[] = {32752, -32752, 0, 0, 2 * 0x1p-24, 0x1p-15, infinity, -infinity, 0, 0.5};
  for (std::int64_t e = 0; e < 10; ++e) {
    EXPECT_EQ(result.out({0, 0, 0, e}), numbers[e]) << e;
    EXPECT_EQ(result.out({0, 0, 1, e}), halves[e]) << e;
  }
}

TEST_P(MergeTest, AnEmptyPartCountsForNothingWhateverItHolds) {
  Random random(53);
  for (const auto& [dtype, junk] : types_and({0.0, 7.0, not_a_number, infinity})) {
    const Part full = filled({1, 2, 3, 20}, 0, 0, dtype);
    fill_normal(full.out, random);
    fill_normal(full.lse, random);
    const Part empty = filled({1, 2, 3, 20}, junk, -infinity, dtype),
               result = filled({1, 2, 3, 20}, not_a_number, not_a_number, dtype);
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
  for (const DType dtype : attention_dtypes()) {
    const Part a = filled({1, 1, 3, 4}, 1, 0, dtype), b = filled({1, 1, 3, 4}, 3, 0, dtype),
               result = filled({1, 1, 3, 4}, 0, 0, dtype);
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
}

TEST_P(MergeTest, InPlaceAndByAnyStrides) {
  Random random(57);
  const std::vector<std::int64_t> shape = {2, 3, 41, 33}, rows = {2, 3, 41};
  for (const DType dtype : attention_dtypes()) {
    const Part a = filled(shape, 0, 0, dtype), b = filled(shape, 0, 0, dtype);
    for (const Tensor* tensor : {&a.out, &a.lse, &b.out, &b.lse}) fill_normal(*tensor, random);
    const Part plain = filled(shape, not_a_number, not_a_number, dtype);
    merge(runtime(), inputs_of(a, b, plain.out, plain.lse));
    for (const bool first : {true, false}) {
      const Part x = {a.out.clone(), a.lse.clone()}, y = {b.out.clone(), b.lse.clone()};
      const Part& own = first ? x : y;
      merge(runtime(2), inputs_of(x, y, own.out, own.lse));
      EXPECT_TRUE(same_bits(plain.out, own.out)) << first_difference(plain.out, own.out);
      EXPECT_TRUE(same_bits(plain.lse, own.lse));
    }
    for (const std::int64_t step : {1, 2}) {
      const Part x = {Tensor::ordered(dtype, shape, {0, 2, 1, 3}, 5, step), Tensor::ordered(DType::f32, rows, {2, 0, 1})};
      const Part y = {Tensor::ordered(dtype, shape, {3, 2, 1, 0}), Tensor::ordered(DType::f32, rows, {0, 1, 2}, 1, step)};
      const Part result = {Tensor::ordered(dtype, shape, {0, 2, 1, 3}, 3, step), Tensor::ordered(DType::f32, rows, {1, 2, 0})};
      copy(a.out, x.out), copy(a.lse, x.lse), copy(b.out, y.out), copy(b.lse, y.lse);
      merge(runtime(2), inputs_of(x, y, result.out, result.lse));
      EXPECT_TRUE(same_bits(plain.out, result.out)) << first_difference(plain.out, result.out);
      EXPECT_TRUE(same_bits(plain.lse, result.lse));
      EXPECT_TRUE(result.out.surroundings_intact() && result.lse.surroundings_intact());
      merge(runtime(), inputs_of(x, y, result.out, TensorView()));  // without lse
      EXPECT_TRUE(same_bits(plain.out, result.out));
    }
    // Row-major out beside parts of other strides, and the other way round.
    const Part turned = {Tensor::ordered(dtype, shape, {3, 2, 1, 0}), a.lse}, straight = filled(shape, 0, 0, dtype);
    copy(a.out, turned.out);
    merge(runtime(), inputs_of(turned, b, straight.out, straight.lse));
    EXPECT_TRUE(same_bits(plain.out, straight.out)) << first_difference(plain.out, straight.out);
    merge(runtime(), inputs_of(turned, b, turned.out, straight.lse));
    EXPECT_TRUE(same_bits(plain.out, turned.out)) << first_difference(plain.out, turned.out);
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
  expect_refused(changed(&MergeInputs::out1, Tensor(DType::f64, {1, 2, 3, 4})), {"out1 is f64", "expected f32"});
  for (const DType dtype : attention_dtypes()) {
    if (dtype == DType::f32) continue;
    const Tensor narrow(dtype, {1, 2, 3, 4});
    expect_refused(changed(&MergeInputs::out1, narrow), {"out2 is f32", std::string("expected ") + name(dtype)});
    expect_refused(changed(&MergeInputs::out2, narrow), {std::string("out2 is ") + name(dtype), "expected f32"});
    expect_refused(changed(&MergeInputs::out, narrow), {std::string("out is ") + name(dtype), "expected f32"});
    const Tensor narrow_lse(dtype, {1, 2, 3});
    expect_refused(changed(&MergeInputs::lse1, narrow_lse), {std::string("lse1 is ") + name(dtype), "expected f32"});
    MergeInputs all = good;
    all.out1 = all.out2 = all.out = narrow;
    merge(runtime, all);
  }
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

POLYHEAD_INSTANTIATE_EVERY_ISA(MergeTest);

}  // namespace
}  // namespace polyhead::testing
