// In steady state a layer allocates nothing: once every shape family has been seen, runs of any of them do without malloc.
#include <gtest/gtest.h>

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

INSTANTIATE_TEST_SUITE_P(Threads, AllocationTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace polyhead::testing
