// Where operands may lie: any strides, any alignment, shared and repeated memory; and what must not overlap.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

class LayoutTest : public EveryIsaAndDType {
 protected:
  // Names of the four rank-4 operands, and access to them.
  static Tensor& operand(AttentionCase& test, int which) {
    Tensor* const all[] = {&test.query, &test.key, &test.value, &test.out};
    return *all[which];
  }
  static std::string operand_name(int which) {
    const char* const names[] = {"query", "key", "value", "out"};
    return names[which];
  }
  static void* element_of(const Tensor& tensor, std::int64_t index) {
    return static_cast<char*>(tensor.view().data) + index * size_in_bytes(tensor.view().dtype);
  }
  static std::vector<std::int64_t> shape_of(const TensorView& view) {
    return {view.shape.begin(), view.shape.begin() + view.rank};
  }

  // Replaces one operand by a copy of it in `layout` and compares bits with the contiguous run.
  void expect_same_with(const AttentionCase& test, int which, const Tensor& layout, const std::string& what) const {
    const Tensor right = run_fresh(test, runtime());
    AttentionCase other = test;
    copy(operand(other, which), layout);
    operand(other, which) = layout;
    for (const int threads : {1, 2}) {
      if (which == 3) fill(layout, 7.0);
      AttentionPlan(other.spec, runtime(threads)).run(other.inputs());
      EXPECT_TRUE(same_bits(right, other.out))
          << operand_name(which) << " " << what << ": " << first_difference(right, other.out) << "; "
          << layout.view().describe() << "; " << test.describe() << ", " << name(isa());
      EXPECT_TRUE(layout.surroundings_intact())
          << operand_name(which) << " " << what << ", " << test.describe() << ", " << name(isa());
    }
  }

  std::vector<AttentionCase> cases() const {
    Random random(61);
    std::vector<AttentionCase> all;
    for (const std::int64_t query_length : {1, 3, 21}) {
      all.push_back(make_case(attention_spec(2, 4, 2, query_length, 37, 12, 20), random));
      all.push_back(make_case(attention_spec(3, 3, 3, query_length, 19, 8, 8, Mask::causal(Causal::bottom_right)), random));
      all.push_back(make_case(attention_spec(1, 2, 1, query_length, 70, 1, 1, Mask::key_lengths()), random));
      all.push_back(make_case(attention_spec(2, 2, 2, query_length, 66, 33, 16), random));
    }
    // Sizes at which nothing is padded: no copy on the way hides strides that are not looked at.
    if (!slow()) all.push_back(make_case(attention_spec(1, 2, 1, 48, 128, 32, 32), random));
    return all;
  }
};

TEST_P(LayoutTest, EveryOperandInEveryOrderOfDimensions) {
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3}, {0, 2, 1, 3}, {2, 0, 1, 3}, {1, 0, 2, 3}, {2, 1, 0, 3},
                                                {0, 1, 3, 2}, {3, 2, 1, 0}, {0, 3, 1, 2}, {3, 0, 1, 2}};
  for (const AttentionCase& test : cases())
    for (int which = 0; which < 4; ++which)
      for (const auto& order : orders)
        for (const std::int64_t padding : {0, 1, 5}) {
          AttentionCase any = test;
          const std::vector<std::int64_t> shape = shape_of(operand(any, which));
          expect_same_with(test, which, Tensor::ordered(dtype(), shape, order, padding), "ordered");
        }
}

TEST_P(LayoutTest, EveryOperandWithElementsApart) {
  for (const AttentionCase& test : cases())
    for (int which = 0; which < 4; ++which)
      for (const std::int64_t apart : {2, 3}) {
        AttentionCase any = test;
        const std::vector<std::int64_t> shape = shape_of(operand(any, which));
        expect_same_with(test, which, Tensor::ordered(dtype(), shape, {0, 1, 2, 3}, 0, apart),
                         "with a last stride of " + std::to_string(apart));
        expect_same_with(test, which, Tensor::ordered(dtype(), shape, {0, 2, 1, 3}, 1, apart), "interleaved");
      }
}

TEST_P(LayoutTest, EveryOperandBackwardsInEachDimension) {
  for (const AttentionCase& test : cases())
    for (int which = 0; which < 4; ++which)
      for (int dimension = 0; dimension < 4; ++dimension) {
        AttentionCase any = test;
        const Tensor forward(dtype(), shape_of(operand(any, which)));
        expect_same_with(test, which, forward.viewed(reversed(forward, dimension)),
                         "backwards in " + std::to_string(dimension));
      }
}

TEST_P(LayoutTest, StridesOfDimensionsOfSizeOneMeanNothing) {
  Random random(67);
  const std::int64_t junk[] = {0, -1, 999999937, -(std::int64_t{1} << 61), (std::int64_t{1} << 62)};
  for (const std::int64_t query_length : {1, 5}) {
    const AttentionCase test = make_case(attention_spec(1, 1, 1, query_length, 1, 1, 1), random);
    for (int which = 0; which < 4; ++which)
      for (const std::int64_t stride : junk) {
        AttentionCase any = test;
        const Tensor owner(dtype(), shape_of(operand(any, which)));
        TensorView view = owner;
        for (int i = 0; i < 4; ++i)
          if (view.shape[static_cast<std::size_t>(i)] == 1) view.strides[static_cast<std::size_t>(i)] = stride;
        expect_same_with(test, which, owner.viewed(view), "with junk strides");
      }
  }
}

TEST_P(LayoutTest, InputsRepeatedByAStrideOfZero) {
  Random random(71);
  for (const std::int64_t query_length : {1, 4, 20})
    for (int which = 0; which < 3; ++which)
      for (int dimension = 0; dimension < 4; ++dimension) {
        AttentionCase test = make_case(attention_spec(3, 4, 2, query_length, 23, 8, 8), random);
        Tensor& tensor = operand(test, which);
        std::vector<std::int64_t> shape = shape_of(tensor);
        const std::int64_t size = shape[static_cast<std::size_t>(dimension)];
        shape[static_cast<std::size_t>(dimension)] = 1;
        const Tensor once(dtype(), shape);
        fill_normal(once, random);
        tensor = once.viewed(expanded(once, dimension, size));
        EXPECT_TRUE(run_and_compare(test, runtime(), operand_name(which) + " repeated in " + std::to_string(dimension)));
      }
}

TEST_P(LayoutTest, SlicesOfALargerTensor) {
  Random random(73);
  for (const std::int64_t query_length : {1, 9}) {
    AttentionCase test = make_case(attention_spec(2, 2, 2, query_length, 30, 8, 8), random);
    for (int which = 0; which < 4; ++which) {
      std::vector<std::int64_t> shape = shape_of(operand(test, which)), larger = shape;
      for (std::int64_t& size : larger) size += 3;
      const Tensor whole(dtype(), larger);
      TensorView part = whole;
      for (int i = 0; i < 4; ++i) part = slice(part, i, 1 + i % 2, 1 + i % 2 + shape[static_cast<std::size_t>(i)]);
      expect_same_with(test, which, whole.viewed(part), "sliced");
    }
  }
}

TEST_P(LayoutTest, QueryKeyAndValueFromOneProjection) {
  // [batch, length, 3, heads, dim], what one matrix product for all three leaves.
  Random random(79);
  for (const std::int64_t length : {1, 5, 40}) {
    AttentionCase test = make_case(attention_spec(2, 4, 4, length, length, 16, 16), random);
    const Tensor joint(dtype(), {2, length, 3, 4, 16});
    fill_normal(joint, random);
    const auto part = [&](std::int64_t which) {
      TensorView view = TensorView::blhd(element_of(joint, which * 64), dtype(), 2, length, 4, 16);
      view.strides = {length * 192, 16, 192, 1};
      return joint.viewed(view);
    };
    test.query = part(0);
    test.key = part(1);
    test.value = part(2);
    const Tensor out(dtype(), {2, length, 4, 16});
    test.out = out.viewed(TensorView::blhd(element_of(out, 0), dtype(), 2, length, 4, 16));
    EXPECT_TRUE(run_and_compare(test, runtime()));
  }
}

TEST_P(LayoutTest, InputsMayAliasEachOther) {
  Random random(83);
  for (const std::int64_t length : {1, 6, 50}) {
    AttentionCase test = make_case(attention_spec(2, 2, 2, length, length, 16, 16), random);
    test.key = test.query;
    test.value = test.query;
    EXPECT_TRUE(run_and_compare(test, runtime(2)));
  }
}

TEST_P(LayoutTest, AnyAlignmentOfEveryPointer) {
  Random random(89);
  for (const std::int64_t query_length : {1, 18}) {
    AttentionCase test = make_case(attention_spec(1, 2, 1, query_length, 35, 16, 16, Mask::bias() & Mask::boolean()), random);
    test.bias = converted(test.bias, dtype());
    const Tensor right = run_fresh(test, runtime());
    const std::int64_t places = 64 / size_in_bytes(dtype());
    for (std::int64_t shift = 0; shift < places; ++shift) {  // every place in 64 bytes
      AttentionCase moved = test;
      const auto at = [&](const Tensor& from, std::int64_t misalignment) {
        std::vector<std::int64_t> shape = shape_of(from), strides(shape.size());
        std::int64_t stride = 1;
        for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
        Tensor to(from.view().dtype, shape, strides, misalignment);
        copy(from, to);
        return to;
      };
      moved.query = at(test.query, shift);
      moved.key = at(test.key, (shift * 3 + 1) % places);
      moved.value = at(test.value, (shift * 5 + 2) % places);
      moved.out = at(test.out, (shift * 7 + 3) % places);
      moved.lse = at(test.lse, (shift * 9 + 4) % 16);
      moved.bias = at(test.bias, (shift * 11 + 5) % (64 / size_in_bytes(test.bias.view().dtype)));
      moved.boolean_mask = at(test.boolean_mask, (shift * 4 + shift % 4) % 64);
      AttentionPlan(moved.spec, runtime()).run(moved.inputs_with_lse());
      EXPECT_TRUE(same_bits(right, moved.out)) << "shift " << shift << ", " << name(isa());
      EXPECT_TRUE(moved.out.surroundings_intact() && moved.lse.surroundings_intact());
    }
  }
}

TEST_P(LayoutTest, LseOfAnyStrides) {
  Random random(97);
  for (const std::int64_t query_length : {1, 5, 33}) {
    AttentionCase test = make_case(attention_spec(2, 4, 2, query_length, 40, 8, 8), random);
    const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options());
    for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {0, 2, 1}, {2, 1, 0}})
      for (const std::int64_t apart : {1, 3}) {
        const Tensor lse = Tensor::ordered(DType::f32, {2, 4, query_length}, order, 1, apart);
        test.lse = lse;
        for (const int turned : {-1, 0, 2}) {
          if (turned >= 0) test.lse = lse.viewed(reversed(lse, turned));
          AttentionPlan(test.spec, runtime()).run(test.inputs_with_lse());
          EXPECT_TRUE(lse_matches(expected, test.lse, test.lse.view().describe()));
          EXPECT_TRUE(lse.surroundings_intact());
        }
      }
  }
}

TEST_P(LayoutTest, AnOutputThatOverlapsAnInputIsRefused) {
  Random random(101);
  AttentionCase test = make_case(attention_spec(2, 2, 2, 6, 6, 8, 8, Mask::bias()), random);
  const AttentionPlan plan(test.spec, runtime());
  const auto expect_refused = [&](const AttentionInputs& inputs, const std::string& what) {
    try {
      plan.run(inputs);
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << what;
      EXPECT_NE(std::string(error.what()).find("out"), std::string::npos) << what << ": " << error.what();
    }
  };
  const Tensor query_before = test.query.clone();
  for (const char* which : {"query", "key", "value"}) {
    AttentionInputs inputs = test.inputs();
    TensorView& input = which[0] == 'q' ? inputs.query : which[0] == 'k' ? inputs.key : inputs.value;
    inputs.out = input;
    expect_refused(inputs, std::string("out over ") + which);
  }
  EXPECT_TRUE(same_bits(query_before, test.query));
  AttentionInputs one_element = test.inputs();
  const Tensor joint(dtype(), {2 * 192 - 1});
  one_element.query = TensorView(element_of(joint, 0), dtype(), {2, 2, 6, 8});
  one_element.out = TensorView(element_of(joint, 191), dtype(), {2, 2, 6, 8});
  expect_refused(one_element, "one element in common");
  AttentionInputs behind = test.inputs();
  behind.query = reversed(one_element.out, 0);
  behind.out = one_element.query;
  expect_refused(behind, "one element in common with a view that counts backwards");

  AttentionInputs lse_in_out = test.inputs();
  lse_in_out.lse = TensorView(element_of(test.out, 6), DType::f32, {2, 2, 6});
  expect_refused(lse_in_out, "lse inside out");
  AttentionInputs lse_in_key = test.inputs();
  lse_in_key.lse = TensorView(element_of(test.key, 0), DType::f32, {2, 2, 6});
  try {
    plan.run(lse_in_key);
    ADD_FAILURE() << "lse over key was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lse"), std::string::npos) << error.what();
  }
  AttentionInputs over_bias = test.inputs();
  const Tensor shared(DType::f32, {192});
  over_bias.out = TensorView(shared.f32(), dtype(), {2, 2, 6, 8});
  for (const DType bias_dtype : bias_dtypes) {
    over_bias.bias = TensorView(shared.f32() + 48, bias_dtype, {2, 2, 6, 6});
    expect_refused(over_bias, "out over bias");
  }
  // An output that stores several elements in one place.
  AttentionInputs repeated = test.inputs();
  repeated.out.strides[0] = 0;
  expect_refused(repeated, "out with a stride of 0");
}

TEST_P(LayoutTest, NeighboursInOneBlockOfMemoryAreNoOverlap) {
  Random random(103);
  AttentionCase test = make_case(attention_spec(1, 2, 2, 6, 6, 8, 8), random);
  const Tensor joint(dtype(), {4 * 96});
  const auto part = [&](std::int64_t i) { return joint.viewed(TensorView(element_of(joint, 96 * i), dtype(), {1, 2, 6, 8})); };
  for (int which = 0; which < 3; ++which) {
    copy(operand(test, which), part(which < 2 ? which : 3));
    operand(test, which) = part(which < 2 ? which : 3);
  }
  test.out = part(2);
  AttentionPlan(test.spec, runtime()).run(test.inputs());
  EXPECT_TRUE(attention_matches(oracle::attention(test.inputs(), test.options()), test.out, "neighbours"));
}

// B * H * T * S = 5.4e9 elements of a bias that is one float, repeated; a window keeps the work small.
TEST_P(LayoutTest, MoreScoresThan32BitsCount) {
  const std::int64_t batch = 8, heads = 8, query_length = 3, key_length = 28 * 1000 * 1000;
  Random random(107);
  AttentionCase test = make_case(attention_spec(batch, heads, heads, query_length, 1, 4, 4), random);
  test.spec.mask = Mask::causal(Causal::bottom_right) & Mask::window(5, 0) & Mask::bias();
  test.spec.key_length = key_length;
  AttentionInputs inputs = test.inputs();
  const Tensor bias(DType::f32, {1, 1, 1, 1});
  fill(bias, 0.25);
  inputs.key = expanded(test.key, 2, key_length);
  inputs.value = expanded(test.value, 2, key_length);
  inputs.bias = bias;
  const std::int64_t sizes[] = {batch, heads, query_length, key_length};
  for (int i = 0; i < 4; ++i) inputs.bias = expanded(inputs.bias, i, sizes[i]);
  AttentionPlan(test.spec, runtime()).run(inputs);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = 0; t < query_length; ++t)
        for (std::int64_t e = 0; e < 4; ++e)
          ASSERT_NEAR(test.out({b, h, t, e}), test.value({b, h, 0, e}), dtype() == DType::f32 ? 1e-5 : 0.0);
}

// Strides of more than 2^32 elements, in address space of which only a few pages are ever touched.
TEST_P(LayoutTest, StridesBeyond32Bits) {
  if (emulated) GTEST_SKIP() << "an emulator keeps a table of all memory that is mapped: 20 GiB of it here";
  const std::int64_t far = (std::int64_t{1} << 32) + 48;
  Random random(109);
  for (const int dimension : {0, 1, 2})
    for (const int which : {0, 1, 2, 3}) {
      for (const std::int64_t stride : {far, -far}) {
        AttentionCase test = make_case(attention_spec(2, 2, 2, 2, 2, 8, 8), random);
        const Tensor right = run_fresh(test, runtime());
        const std::size_t bytes = static_cast<std::size_t>(far + 4096) * 4;
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of 17 GB";
        TensorView view = operand(test, which);
        view.data = static_cast<char*>(memory) + (stride < 0 ? far : 0) * size_in_bytes(dtype());
        view.strides[static_cast<std::size_t>(dimension)] = stride;
        if (which == 3) {
          fill(view, 7.0);
        } else {
          copy(operand(test, which), view);
        }
        operand(test, which) = operand(test, which).viewed(view);
        AttentionPlan(test.spec, runtime()).run(test.inputs());
        EXPECT_TRUE(same_bits(right, test.out)) << operand_name(which) << ", dimension " << dimension << ", stride " << stride;
        munmap(memory, bytes);
      }
    }
}

// The same of masks, of lse and of what is given a batch item, a head or a query.
TEST_P(LayoutTest, StridesBeyond32BitsOfEverythingElse) {
  if (emulated) GTEST_SKIP() << "an emulator needs memory for every page of the address space that operands span";
  const std::int64_t far = (std::int64_t{1} << 32) + 48;
  Random random(113);
  for (const std::int64_t query_length : {2, 20}) {
    AttentionSpec spec =
        attention_spec(2, 2, 2, query_length, 3, 8, 8,
                       Mask::key_lengths() & Mask::query_lengths() & Mask::causal(Causal::offset) & Mask::offsets() &
                           Mask::prefix() & Mask::segments() & Mask::blocks(1, 2) & Mask::boolean() & Mask::bias());
    spec.has_alibi = spec.has_sink = true;
    AttentionCase test = make_case(spec, random);
    test.query_lengths = integers(DType::i64, {query_length, query_length - 1});
    test.key_lengths = integers(DType::i32, {3, 2});
    test.offsets = integers(DType::i64, {1, -1});
    test.prefix_lengths = integers(DType::i32, {1, 0});
    test.query_segments = Tensor(DType::i32, {2, query_length});
    test.key_segments = Tensor(DType::i64, {2, 3});
    for (const Tensor* segments : {&test.query_segments, &test.key_segments})
      fill(*segments, [&] { return static_cast<double>(random.integer(0, 1)); });
    ASSERT_TRUE(run_and_compare(test, runtime()));
    AttentionPlan(spec, runtime()).run(test.inputs_with_lse());
    const Tensor right = test.out.clone(), right_lse = test.lse.clone();
    Tensor AttentionCase::* const operands[] = {
        &AttentionCase::boolean_mask,   &AttentionCase::bias,          &AttentionCase::lse,
        &AttentionCase::alibi_slopes,   &AttentionCase::sink,          &AttentionCase::key_lengths,
        &AttentionCase::offsets,        &AttentionCase::query_lengths, &AttentionCase::prefix_lengths,
        &AttentionCase::query_segments, &AttentionCase::key_segments,  &AttentionCase::block_mask};
    for (std::size_t which = 0; which < std::size(operands); ++which) {
      const Tensor& original = test.*operands[which];
      for (int dimension = 0; dimension < original.view().rank; ++dimension)
        for (const std::int64_t stride : {far, -far}) {
          const std::int64_t steps = original.view().shape[static_cast<std::size_t>(dimension)] - 1;
          const std::int64_t element = size_in_bytes(original.view().dtype);
          const auto bytes = static_cast<std::size_t>((far * steps + 4096) * element);
          void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
          if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes";
          TensorView view = original;
          view.data = static_cast<char*>(memory) + (stride < 0 ? far * steps : 0) * element;
          view.strides[static_cast<std::size_t>(dimension)] = stride;
          AttentionCase moved = test;
          copy(original, view);
          moved.*operands[which] = original.viewed(view);
          fill(test.out, 7.0);
          AttentionPlan(spec, runtime()).run(moved.inputs_with_lse());
          EXPECT_TRUE(same_bits(right, moved.out))
              << "operand " << which << ", dimension " << dimension << ", stride " << stride;
          EXPECT_TRUE(same_bits(right_lse, moved.lse)) << "operand " << which << ", dimension " << dimension;
          munmap(memory, bytes);
        }
    }
  }
}

POLYHEAD_INSTANTIATE_EVERY_ISA_AND_DTYPE(LayoutTest);

}  // namespace
}  // namespace polyhead::testing
