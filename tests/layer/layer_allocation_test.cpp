// In steady state a layer allocates nothing: once every shape family has been seen, runs of any of them do without malloc.
#include <gtest/gtest.h>

#include <exception>
#include <vector>

#include "layer/layer_case.hpp"
#include "support/malloc_count.hpp"

namespace polyhead::testing {
namespace {

constexpr std::int64_t hidden = 32;

struct Shape {
  std::int64_t batch, length;
};
const Shape shapes[] = {{1, 1}, {3, 50}, {2, 410}, {17, 9}, {1, 128}};

class AllocationTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!malloc_counting) GTEST_SKIP() << "allocations cannot be counted in this build";
  }
  const Runtime& runtime() const { return runtime_on(default_isa(), GetParam()); }

  // Runs every shape until all are warm, then counts.
  template <typename Run>
  static void expect_no_allocation(const Run& run) {
    Random random(1);
    std::vector<Tensor> inputs, outputs, lengths;
    for (const Shape& shape : shapes) {
      inputs.push_back(random_tensor({shape.batch, shape.length, hidden}, random));
      outputs.push_back(Tensor(DType::f32, {shape.batch, shape.length, hidden}));
      lengths.push_back(Tensor(DType::i64, {shape.batch}));
      fill(lengths.back(), [&] { return static_cast<double>(random.integer(1, shape.length)); });
    }
    const auto round = [&] {
      for (std::size_t i = 0; i < inputs.size(); ++i) run(inputs[i], lengths[i], outputs[i]);
    };
    // Worker threads make their own caches when they first meet a task; a few rounds let all of them.
    for (int i = 0; i < 30; ++i) round();
    const std::uint64_t before = allocations;
    for (int i = 0; i < 10; ++i) round();
    EXPECT_EQ(allocations - before, 0u);
  }
};

TEST_P(AllocationTest, Encoder) {
  const EncoderBlockSpec spec = encoder_spec(hidden, 4, 64);
  WeightStore store(1);
  const Encoder encoder(spec, encoder_blocks(spec, 2, store), runtime());
  expect_no_allocation(
      [&](const TensorView& x, const TensorView& lengths, const TensorView& out) { encoder.run(x, lengths, out); });
}

TEST_P(AllocationTest, MultiHeadAttention) {
  const MultiHeadAttentionSpec spec = attention_layer_spec(hidden, 4, Mask::key_lengths());
  WeightStore store(2);
  const MultiHeadAttention layer(spec, attention_layer_weights(spec, store), runtime());
  expect_no_allocation([&](const TensorView& x, const TensorView& lengths, const TensorView& out) {
    MultiHeadAttentionInputs inputs;
    inputs.query = x;
    inputs.key_lengths = lengths;
    inputs.out = out;
    layer.run(inputs);
  });
}

// Each allocation of making a layer and of a run fails in turn: an error comes out, nothing is left behind, the next is right.
template <typename Make>
void expect_failures_are_errors(const Make& make) {
  Random random(3);
  const Tensor x = random_tensor({3, 50, hidden}, random), out(DType::f32, {3, 50, hidden}), right(DType::f32, {3, 50, hidden});
  make()(x, right);
  // Of the calling thread's allocations the nth fails; true when there were as many.
  const auto failing = [&](int nth, const auto& call) {
    fail_allocation_in = nth;
    try {
      call();
    } catch (const Error& error) {
      fail_allocation_in = 0;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      return true;
    } catch (const std::exception& error) {
      fail_allocation_in = 0;
      ADD_FAILURE() << "allocation " << nth << ": " << error.what() << " instead of Error";
      return true;
    }
    const bool reached = fail_allocation_in == 0;
    fail_allocation_in = 0;
    return reached;
  };
  int nth = 1;
  for (; failing(nth, [&] { make(); }); ++nth) ASSERT_LT(nth, 20000);
  EXPECT_GT(nth, 1) << "making a layer allocates";
  nth = 1;
  for (bool reached = true; reached; ++nth) {
    ASSERT_LT(nth, 20000);
    const auto layer = make();
    reached = failing(nth, [&] { layer(x, out); });
    fill(out, 7.0);
    layer(x, out);
    ASSERT_TRUE(same_bits(right, out)) << "after failing allocation " << nth;
  }
  EXPECT_GT(nth, 2) << "a first run allocates";
}

TEST_P(AllocationTest, FailuresInAnEncoderAreErrors) {
  const EncoderBlockSpec spec = encoder_spec(hidden, 4, 64);
  WeightStore store(4);
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
  const Runtime& on = runtime();
  expect_failures_are_errors([&] {
    return [encoder = Encoder(spec, blocks, on)](const TensorView& x, const TensorView& out) { encoder.run(x, {}, out); };
  });
}

TEST_P(AllocationTest, FailuresInMultiHeadAttentionAreErrors) {
  const MultiHeadAttentionSpec spec = attention_layer_spec(hidden, 4);
  WeightStore store(5);
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  const Runtime& on = runtime();
  expect_failures_are_errors([&] {
    return [layer = MultiHeadAttention(spec, weights, on)](const TensorView& x, const TensorView& out) {
      MultiHeadAttentionInputs inputs;
      inputs.query = x;
      inputs.out = out;
      layer.run(inputs);
    };
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, AllocationTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace polyhead::testing
