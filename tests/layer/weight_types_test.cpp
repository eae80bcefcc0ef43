// Layers that keep their weights in fewer bits have the bits of f32 layers with weights that the oracle has rounded. Matrices
// may come in 16 bits.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "layer/layer_case.hpp"
#include "support/rounded_weights.hpp"

namespace polyhead::testing {
namespace {

// New tensors made of a layer's matrices.
class Replaced {
 public:
  using Change = std::function<Tensor(const TensorView&)>;
  explicit Replaced(Change change) : change_(std::move(change)) {}

  void apply(MultiHeadAttentionWeights& weights) {
    for (TensorView* matrix : {&weights.query, &weights.key, &weights.value, &weights.output}) replace(*matrix);
  }
  void apply(EncoderBlockWeights& weights) {
    apply(weights.attention);
    replace(weights.feed_forward_in);
    replace(weights.feed_forward_out);
  }

 private:
  void replace(TensorView& matrix) {
    tensors_.push_back(change_(matrix));
    matrix = tensors_.back().view();
  }

  Change change_;
  std::deque<Tensor> tensors_;
};

Tensor rounded(WeightType type, const TensorView& matrix) {
  std::vector<float> weights;
  for_each_offset(matrix, [&](std::int64_t offset) { weights.push_back(static_cast<float>(load(matrix, offset))); });
  const std::vector<float> after = rounded_weights(type, weights, matrix.shape[0], matrix.shape[1]);
  Tensor result(DType::f32, {matrix.shape[0], matrix.shape[1]});
  std::size_t next = 0;
  fill(result, [&] { return static_cast<double>(after[next++]); });
  return result;
}

Tensor in_type(DType dtype, const TensorView& matrix) {
  Tensor result(dtype, {matrix.shape[0], matrix.shape[1]});
  copy(matrix, result);
  return result;
}

// Those whose products are f32 products.
std::vector<WeightType> rounded_types() {
  std::vector<WeightType> types;
  for (const WeightType type : dispatch::weight_types()) {
    if (!rounds_rows(type)) types.push_back(type);
  }
  return types;
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : isas_with_own_kernels(DType::f32)) {
    if (isa != Isa::amx) all.push_back(isa);  // amx multiplies f32 weights in pieces
  }
  return all;
}

Tensor run(const MultiHeadAttentionSpec& spec, const MultiHeadAttentionWeights& weights, const Tensor& x, Isa isa,
           int threads) {
  Tensor out(DType::f32, {x.view().shape[0], x.view().shape[1], spec.d_model});
  MultiHeadAttentionInputs inputs;
  inputs.query = x;
  inputs.out = out;
  MultiHeadAttention(spec, weights, runtime_on(isa, threads)).run(inputs);
  return out;
}

// The root of the mean square of errors, as a part of that of the exact numbers; both tensors are laid out alike.
[[maybe_unused]] double rms_share(const Tensor& result, const Tensor& exact) {
  double squares = 0, errors = 0;
  for_each_offset(exact, [&](std::int64_t offset) {
    const double value = testing::load(exact, offset), error = testing::load(result, offset) - value;
    squares += value * value;
    errors += error * error;
  });
  return std::sqrt(errors / squares);
}

TEST(WeightTypes, AttentionLayerHasTheBitsOfRoundedWeights) {
  WeightStore store(41);
  MultiHeadAttentionSpec spec = attention_layer_spec(70, 4);
  spec.kv_heads = 2;
  spec.head_dim = 18;
  spec.value_dim = 21;
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  for (const Isa isa : isas()) {
    for (const WeightType type : rounded_types()) {
      Replaced replaced([&](const TensorView& matrix) { return rounded(type, matrix); });
      MultiHeadAttentionWeights plain = weights;
      replaced.apply(plain);
      for (const std::int64_t length : {1, 5, 130}) {
        const Tensor x = random_tensor({2, length, 70}, store.random());
        for (const int threads : {1, 2}) {
          MultiHeadAttentionSpec kept = spec;
          kept.weights = type;
          EXPECT_TRUE(same_bits(run(kept, weights, x, isa, threads), run(spec, plain, x, isa, 1)))
              << name(isa) << " " << name(type) << " length " << length << " threads " << threads;
        }
      }
    }
  }
}

TEST(WeightTypes, EncoderHasTheBitsOfRoundedWeights) {
  WeightStore store(42);
  const EncoderBlockSpec spec = encoder_spec(48, 3, 900);  // more than one block of k in the feed-forward network
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
  for (const Isa isa : isas()) {
    for (const WeightType type : rounded_types()) {
      Replaced replaced([&](const TensorView& matrix) { return rounded(type, matrix); });
      std::vector<EncoderBlockWeights> plain = blocks;
      for (EncoderBlockWeights& block : plain) replaced.apply(block);
      EncoderBlockSpec kept = spec;
      kept.attention.weights = type;
      const Encoder encoder(kept, blocks, runtime_on(isa, 2)), expected(spec, plain, runtime_on(isa, 1));
      for (const std::int64_t length : {1, 40, 200}) {
        const Tensor x = random_tensor({2, length, 48}, store.random());
        Tensor out(DType::f32, {2, length, 48}), other(DType::f32, {2, length, 48});
        encoder.run(x, {}, out);
        expected.run(x, {}, other);
        EXPECT_TRUE(same_bits(out, other)) << name(isa) << " " << name(type) << " length " << length;
      }
    }
  }
}

#if defined(POLYHEAD_HAVE_I8)
// Rounded rows: near the f32 layer, and the same bits for any threads and any company.
TEST(WeightTypes, RowsRoundedToInt8) {
  WeightStore store(45);
  EncoderBlockSpec spec = encoder_spec(48, 3, 200);
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
  for (const Isa isa : available_isas()) {
    EncoderBlockSpec kept = spec;
    kept.attention.weights = WeightType::int8_dynamic;
    const Encoder encoder(kept, blocks, runtime_on(isa, 2)), other(kept, blocks, runtime_on(isa, 1)),
        plain(spec, blocks, runtime_on(isa, 1));
    const Tensor x = random_tensor({2, 130, 48}, store.random());
    Tensor out(DType::f32, {2, 130, 48}), again(DType::f32, {1, 130, 48}), exact(DType::f32, {2, 130, 48});
    encoder.run(x, {}, out);
    other.run(slice(x, 0, 1, 2), {}, again);
    EXPECT_TRUE(same_bits(slice(out, 0, 1, 2), again)) << name(isa);
    plain.run(x, {}, exact);
    const double share = rms_share(out, exact);
    EXPECT_TRUE(share > 1e-4 && share < 0.03) << name(isa) << ": rms error " << share;
  }
}
#endif

#if defined(POLYHEAD_HAVE_BF16)
// Rounded rows: near the f32 layer, further from it than rounded weights alone, and the same bits for any threads and any
// company.
TEST(WeightTypes, RowsRoundedToBf16) {
  WeightStore store(46);
  EncoderBlockSpec spec = encoder_spec(48, 3, 200);
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
  for (const Isa isa : available_isas()) {
    EncoderBlockSpec kept = spec;
    kept.attention.weights = WeightType::bf16_dynamic;
    const Encoder encoder(kept, blocks, runtime_on(isa, 2)), other(kept, blocks, runtime_on(isa, 1)),
        plain(spec, blocks, runtime_on(isa, 1));
    kept.attention.weights = WeightType::bf16;
    const Encoder of_weights(kept, blocks, runtime_on(isa, 1));
    const Tensor x = random_tensor({2, 130, 48}, store.random());
    Tensor out(DType::f32, {2, 130, 48}), again(DType::f32, {1, 130, 48}), exact(DType::f32, {2, 130, 48}),
        widened(DType::f32, {2, 130, 48});
    encoder.run(x, {}, out);
    other.run(slice(x, 0, 1, 2), {}, again);
    EXPECT_TRUE(same_bits(slice(out, 0, 1, 2), again)) << name(isa);
    plain.run(x, {}, exact);
    of_weights.run(x, {}, widened);
    const double share = rms_share(out, exact), of_weights_alone = rms_share(widened, exact);
    EXPECT_TRUE(share > 1.1 * of_weights_alone && share < 2 * of_weights_alone && share < 0.01)
        << name(isa) << ": rms error " << share << ", of rounded weights alone " << of_weights_alone;
  }
}

// A layer's first products round x, so that an x of bf16 numbers is the same to it; rounded weights alone tell the two apart.
TEST(WeightTypes, InputsThatAreBf16LoseNothing) {
  WeightStore store(47);
  MultiHeadAttentionSpec spec = attention_layer_spec(36, 3);
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  for (const Isa isa : available_isas()) {
    for (const std::int64_t length : {1, 7, 90}) {
      const Tensor x = random_tensor({1, length, 36}, store.random());
      Tensor narrow(DType::bf16, {1, length, 36}), rounded(DType::f32, {1, length, 36});
      copy(x, narrow);
      copy(narrow, rounded);
      spec.weights = WeightType::bf16_dynamic;
      EXPECT_TRUE(same_bits(run(spec, weights, x, isa, 1), run(spec, weights, rounded, isa, 2))) << name(isa) << " " << length;
      spec.weights = WeightType::bf16;
      EXPECT_FALSE(same_bits(run(spec, weights, x, isa, 1), run(spec, weights, rounded, isa, 1))) << name(isa) << " " << length;
    }
  }
}
#endif

TEST(WeightTypes, MatricesOf16BitsAreTakenAsTheyCome) {
  WeightStore store(43);
  const MultiHeadAttentionSpec spec = attention_layer_spec(36, 3);
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  const Tensor x = random_tensor({1, 7, 36}, store.random());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Replaced narrowed([&](const TensorView& matrix) { return in_type(dtype, matrix); });
    MultiHeadAttentionWeights given = weights;
    narrowed.apply(given);
    Replaced widened([&](const TensorView& matrix) { return in_type(DType::f32, matrix); });
    MultiHeadAttentionWeights plain = given;
    widened.apply(plain);
    given.query = transposed(given.query, 0, 1);  // any strides
    plain.query = transposed(plain.query, 0, 1);
    EXPECT_TRUE(same_bits(run(spec, given, x, default_isa(), 1), run(spec, plain, x, default_isa(), 1))) << name(dtype);
  }
}

TEST(WeightTypes, ErrorsNameTheField) {
  WeightStore store(44);
  MultiHeadAttentionSpec spec = attention_layer_spec(8, 2);
  MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  const Runtime runtime = runtime_on(default_isa(), 1);
  spec.weights = static_cast<WeightType>(7);
  POLYHEAD_EXPECT_ERROR(
      ErrorCode::invalid_argument,
      "MultiHeadAttentionSpec.weights is 7, expected a WeightType (f32, bf16, f16, int8, int4, int8_dynamic or bf16_dynamic)",
      MultiHeadAttention(spec, weights, runtime));
  spec.weights = WeightType::f32;
  const Tensor integers_instead(DType::i32, {8, 8});
  weights.output = integers_instead;
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "MultiHeadAttentionWeights.output",
                        MultiHeadAttention(spec, weights, runtime));
}

}  // namespace
}  // namespace polyhead::testing
