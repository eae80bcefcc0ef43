// Encoder and layer_norm against the float64 oracle: padded batches, norms, masks, bits, errors.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "layer/layer_case.hpp"
#include "polyhead/transformer.hpp"

namespace polyhead::testing {
namespace {

constexpr double tolerance = 3e-5;

void expect_encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, std::int64_t length,
                    const std::vector<std::int64_t>& lengths, Random& random, Isa isa, const std::string& what) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const Tensor x = random_tensor({batch, length, spec.attention.d_model}, random), given = integers(DType::i64, lengths);
  const oracle::Array expected = oracle::encoder(spec, blocks, x, given);
  Tensor first;
  for (const int threads : {1, 2}) {
    Tensor out(DType::f32, {batch, length, spec.attention.d_model});
    Encoder(spec, blocks, runtime_on(isa, threads)).run(x, given, out);
    EXPECT_TRUE(
        array_matches(expected, out, tolerance, tolerance, what + ", " + name(isa) + ", threads " + std::to_string(threads)));
    EXPECT_TRUE(out.surroundings_intact());
    if (threads == 1)
      first = out;
    else
      EXPECT_TRUE(same_bits(first, out)) << what << ": threads change bits, " << first_difference(first, out);
  }
}

using EncoderSweep = EveryIsa;

TEST_P(EncoderSweep, MatchesTheOracle) {
  const std::pair<const char*, Mask> masks[] = {
      {"no mask", Mask::none()},
      {"key lengths", Mask::key_lengths()},
      {"causal", Mask::causal(Causal::top_left)},
      {"window", Mask::window(6, 2)},
      {"causal window", Mask::causal(Causal::bottom_right) & Mask::window(30, 0)},
      {"causal window and kept keys", Mask::causal(Causal::top_left) & Mask::window(10, 0, 3)},
  };
  std::uint64_t seed = 100;
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    for (const auto& [what, mask] : masks) {
      const EncoderBlockSpec spec = encoder_spec(32, 4, 48, norm, mask);
      WeightStore store(++seed);
      const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
      expect_encoder(spec, blocks, 29, {29, 0, 1, 17, 28}, store.random(), isa(), std::string(what) + ", short");
      if (slow()) continue;
      // One sequence of several slices, next to short ones that share a chain.
      expect_encoder(spec, blocks, 430, {430, 3, 200, 193, 0, 192}, store.random(), isa(), std::string(what) + ", long");
    }
  }
}

TEST_P(EncoderSweep, ServesOtherShapes) {
  EncoderBlockSpec odd = encoder_spec(36, 3, 50);
  odd.attention.head_dim = 20;
  odd.attention.value_dim = 8;
  odd.attention.kv_heads = 1;
  odd.attention.scale = 0.2;
  odd.activation = ActivationKind::gelu_tanh;
  EncoderBlockSpec relu = encoder_spec(16, 1, 7);
  relu.activation = ActivationKind::relu;
  EncoderBlockSpec linear = encoder_spec(24, 2, 30, NormPlacement::pre);
  linear.activation = ActivationKind::none;
  std::uint64_t seed = 200;
  for (const EncoderBlockSpec& spec : {odd, relu, linear}) {
    WeightStore store(++seed);
    expect_encoder(spec, encoder_blocks(spec, 3, store), 21, {3, 21, 20}, store.random(), isa(), name(spec.activation));
  }
  // Without biases, gamma and beta.
  WeightStore store(300);
  EncoderBlockWeights bare = encoder_weights(linear, store, false);
  bare.attention_norm_gamma = bare.attention_norm_beta = bare.feed_forward_norm_gamma = bare.feed_forward_norm_beta = {};
  expect_encoder(linear, {bare}, 5, {5, 2}, store.random(), isa(), "bare");
}

// A NaN in one token is in every row of its sequence, which all see it, and in no other sequence, although tokens of all of
// them share the blocks of every product.
TEST_P(EncoderSweep, ANanStaysInItsSequence) {
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    const EncoderBlockSpec spec = encoder_spec(32, 4, 48, norm, Mask::key_lengths());
    WeightStore store(250);
    const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
    const std::vector<std::int64_t> lengths = {7, 29, 0, 1, 12, 29};
    const Tensor given = integers(DType::i32, lengths), x = random_tensor({6, 29, 32}, store.random());
    for (const int threads : {1, 2}) {
      const Encoder encoder(spec, blocks, runtime(threads));
      const Tensor clean(DType::f32, {6, 29, 32}), out(DType::f32, {6, 29, 32});
      encoder.run(x, given, clean);
      for (const std::int64_t victim : {0, 3, 4, 5}) {
        const std::int64_t length = lengths[static_cast<std::size_t>(victim)];
        const Tensor dirty = x.clone();
        dirty.set({victim, length - 1, 5}, std::numeric_limits<double>::quiet_NaN());
        encoder.run(dirty, given, out);
        for (std::int64_t b = 0; b < 6; ++b) {
          if (b != victim) {
            ASSERT_TRUE(same_bits(select(clean, b), select(out, b))) << "sequence " << b << ", NaN in " << victim;
            continue;
          }
          const TensorView rows = slice(select(out, b), 0, 0, length), padding = slice(select(out, b), 0, length, 29);
          for_each_offset(rows, [&](std::int64_t i) { ASSERT_TRUE(std::isnan(load(rows, i))) << "sequence " << b; });
          for_each_offset(padding, [&](std::int64_t i) { ASSERT_EQ(load(padding, i), 0) << "sequence " << b; });
        }
      }
    }
  }
}
POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(EncoderSweep);

// A sequence gives the same bits alone, in a batch, and under any padding; what lies in the padding is not read.
TEST(Encoder, PaddingAndBatchNeverShow) {
  for (const Mask& mask : {Mask::key_lengths(), Mask::causal(Causal::top_left)}) {
    const EncoderBlockSpec spec = encoder_spec(48, 4, 96, NormPlacement::post, mask);
    WeightStore store(400);
    const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 2, store);
    for (const int threads : {1, 2}) {
      const Encoder encoder(spec, blocks, runtime_on(default_isa(), threads));
      const std::vector<std::int64_t> lengths = {1, 12, 400, 0, 64, 63, 192, 193, 7, 5, 3, 2, 100, 130, 8, 9, 11};
      const auto batch = static_cast<std::int64_t>(lengths.size());
      Tensor x = random_tensor({batch, 420, 48}, store.random()), out(DType::f32, {batch, 420, 48});
      for (std::int64_t b = 0; b < batch; ++b) {
        fill(slice(select(x, b), 0, lengths[static_cast<std::size_t>(b)], 420), std::numeric_limits<double>::quiet_NaN());
      }
      encoder.run(x, integers(DType::i32, lengths), out);
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::int64_t length = lengths[static_cast<std::size_t>(b)];
        Tensor alone(DType::f32, {1, length, 48});
        encoder.run(slice(slice(x, 0, b, b + 1), 1, 0, length), {}, alone);
        const TensorView inside = slice(slice(out, 0, b, b + 1), 1, 0, length);
        EXPECT_TRUE(same_bits(inside, alone)) << "length " << length << ": " << first_difference(inside, alone);
        const TensorView padding = slice(slice(out, 0, b, b + 1), 1, length, 420);
        Tensor zeros(DType::f32, {1, 420 - length, 48});
        fill(zeros, 0.0);
        EXPECT_TRUE(same_bits(padding, zeros)) << "length " << length;
      }
    }
  }
}

TEST(Encoder, ServesChangingShapesAndStrides) {
  const EncoderBlockSpec spec = encoder_spec(16, 2, 24);
  WeightStore store(500);
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(spec, 1, store);
  for (const int threads : {1, 2}) {
    const Encoder encoder(spec, blocks, runtime_on(default_isa(), threads));
    for (int round = 0; round < 40; ++round) {
      Random& random = store.random();
      const std::int64_t batch = random.integer(0, 30), length = random.integer(0, round % 4 == 0 ? 500 : 40);
      const std::vector<int> order = random.choice<std::vector<int>>({{0, 1, 2}, {1, 0, 2}, {2, 0, 1}});
      Tensor x = Tensor::ordered(DType::f32, {batch, length, 16}, order, 1), out = x.clone();
      fill_normal(x, random);
      Tensor lengths(DType::i32, {batch, 1});
      fill(lengths, [&] { return static_cast<double>(random.integer(0, length)); });
      encoder.run(x, lengths, out);
      EXPECT_TRUE(array_matches(oracle::encoder(spec, blocks, x, lengths), out, tolerance, tolerance,
                                "batch " + std::to_string(batch) + ", length " + std::to_string(length)));
      EXPECT_TRUE(out.surroundings_intact());
    }
  }
}

TEST(Encoder, RunsConcurrentlyAndAfterACancel) {
  const EncoderBlockSpec spec = encoder_spec(32, 4, 64);
  WeightStore store(600);
  const Encoder encoder(spec, encoder_blocks(spec, 2, store), runtime_on(default_isa(), 2));
  std::vector<Tensor> inputs, results;  // a shape of its own for each thread
  for (std::int64_t i = 0; i < 6; ++i) {
    inputs.push_back(random_tensor({6 - i, 100 - 17 * i, 32}, store.random()));
    results.push_back(Tensor(DType::f32, {6 - i, 100 - 17 * i, 32}));
    encoder.run(inputs.back(), {}, results.back());
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const Tensor &x = inputs[static_cast<std::size_t>(i)], &expected = results[static_cast<std::size_t>(i)];
      for (int round = 0; round < 10; ++round) {
        const Tensor out(DType::f32, {6 - i, 100 - 17 * i, 32});
        RunOptions options;
        std::atomic<bool> cancel{i == 0 && round % 2 == 0};
        options.cancel = &cancel;
        try {
          encoder.run(x, {}, out, options);
          if (cancel || !same_bits(expected, out)) ++wrong;
        } catch (const Error& error) {
          if (!cancel || error.code() != ErrorCode::cancelled) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Encoder, ErrorsNameTheField) {
  const Runtime& runtime = runtime_on(default_isa());
  const EncoderBlockSpec good = encoder_spec(16, 2, 24);
  WeightStore store(700);
  const std::vector<EncoderBlockWeights> blocks = encoder_blocks(good, 2, store);
  const auto with_spec = [&](const char* part, const auto& change) {
    EncoderBlockSpec spec = good;
    change(spec);
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, part, Encoder(spec, blocks, runtime));
  };
  with_spec("EncoderBlockSpec.attention.d_model", [](auto& spec) { spec.attention.d_model = 0; });
  with_spec("EncoderBlockSpec.attention.key_input_dim", [](auto& spec) { spec.attention.key_input_dim = 8; });
  with_spec("EncoderBlockSpec.attention.mask", [](auto& spec) { spec.attention.mask = Mask::boolean(); });
  with_spec("EncoderBlockSpec.attention.mask", [](auto& spec) { spec.attention.mask = Mask::bias(); });
  with_spec("EncoderBlockSpec.feed_forward_dim", [](auto& spec) { spec.feed_forward_dim = 0; });
  with_spec("EncoderBlockSpec.norm_epsilon", [](auto& spec) { spec.norm_epsilon = -1; });
  with_spec("EncoderBlockSpec.activation", [](auto& spec) { spec.activation = static_cast<ActivationKind>(9); });
  with_spec("blocks[0].feed_forward_in", [](auto& spec) { spec.feed_forward_dim = 25; });
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "blocks", Encoder(good, {}, runtime));
  std::vector<EncoderBlockWeights> bad = blocks;
  bad[1].attention.key = {};
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "blocks[1].attention.key", Encoder(good, bad, runtime));
  bad = blocks;
  bad[1].feed_forward_norm_beta = bad[1].feed_forward_in_bias;
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "blocks[1].feed_forward_norm_beta", Encoder(good, bad, runtime));

  const Encoder encoder(good, blocks, runtime);
  EXPECT_EQ(encoder.block_count(), 2);
  EXPECT_EQ(encoder.spec().attention.head_dim, 8);
  Random random(1);
  const Tensor x = random_tensor({2, 5, 16}, random);
  const Tensor out(DType::f32, {2, 5, 16}), short_out(DType::f32, {2, 4, 16});
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "x is", encoder.run(slice(x, 2, 0, 15), {}, out));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "out", encoder.run(x, {}, short_out));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "out overlaps x", encoder.run(x, {}, x));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "lengths", encoder.run(x, integers(DType::i32, {1, 2, 3}), out));
  for (const std::int64_t wrong : {-1, 6, 2147483647}) {
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "lengths[1]", encoder.run(x, integers(DType::i32, {5, wrong}), out));
  }
}

TEST(Activation, NamesAndValues) {
  EXPECT_EQ(activation_from_name("gelu"), ActivationKind::gelu_erf);
  EXPECT_EQ(activation_from_name("gelu_new"), ActivationKind::gelu_tanh);
  EXPECT_EQ(activation_from_name("gelu_fast"), ActivationKind::gelu_tanh);
  EXPECT_EQ(activation_from_name("gelu_pytorch_tanh"), ActivationKind::gelu_tanh);
  EXPECT_EQ(activation_from_name("relu"), ActivationKind::relu);
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "'swish'", activation_from_name("swish"));
  EXPECT_STREQ(name(ActivationKind::gelu_tanh), "gelu_tanh");
}

using LayerNormSweep = EveryIsa;

TEST_P(LayerNormSweep, MatchesTheOracle) {
  Random random(800);
  for (const int threads : {1, 2}) {
    for (const Tensor::Sizes& shape : {Tensor::Sizes{7}, {1, 1}, {3, 5}, {2, 3, 33}, {2, 1, 4, 16}, {0, 4}, {900, 130}}) {
      const std::int64_t dim = shape.back();
      const int rank = static_cast<int>(shape.size());
      const Tensor gamma = random_tensor({dim}, random), beta = random_tensor({dim}, random);
      std::vector<int> order(shape.size());
      for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
      for (const bool is_reversed : {false, true}) {
        Tensor x = is_reversed ? Tensor::ordered(DType::f32, shape, order, 2) : Tensor(DType::f32, shape);
        fill(x, [&] { return 3 + random.normal(); });
        const oracle::Array expected = oracle::layer_norm(oracle::to_array(x), gamma, beta, 1e-5);
        Tensor y = x.clone();
        layer_norm(runtime(threads), x, gamma, beta, 1e-5, y);
        EXPECT_TRUE(array_matches(expected, y, 1e-5, 1e-5, "layer norm"));
        EXPECT_TRUE(y.surroundings_intact());
        layer_norm(runtime(threads), x, {}, {}, 0.1, y);
        EXPECT_TRUE(array_matches(oracle::layer_norm(oracle::to_array(x), {}, {}, 0.1), y, 1e-5, 1e-5, "bare layer norm"));
        layer_norm(runtime(threads), x, gamma, beta, 1e-5, x);
        EXPECT_TRUE(array_matches(expected, x, 1e-5, 1e-5, "layer norm in place"));
      }
    }
  }
}

TEST_P(LayerNormSweep, AnyAlignment) {
  Random random(810);
  for (const std::int64_t dim : {16, 37}) {
    const Tensor x = random_tensor({3, dim}, random), gamma = random_tensor({dim}, random), beta = random_tensor({dim}, random);
    const auto at = [dim](const Tensor& from, std::int64_t shift) {
      const bool row = from.view().rank == 1;
      Tensor to(DType::f32, row ? Tensor::Sizes{dim} : Tensor::Sizes{3, dim}, row ? Tensor::Sizes{1} : Tensor::Sizes{dim, 1},
                shift);
      copy(from, to);
      return to;
    };
    const Tensor right(DType::f32, {3, dim});
    layer_norm(runtime(), x, gamma, beta, 1e-5, right);
    for (std::int64_t shift = 0; shift < 16; ++shift) {
      const Tensor y = at(right, (7 * shift + 3) % 16);
      fill(y, 7.0);
      layer_norm(runtime(), at(x, shift), at(gamma, (3 * shift + 1) % 16), at(beta, (5 * shift + 2) % 16), 1e-5, y);
      EXPECT_TRUE(same_bits(right, y)) << "dim " << dim << " shift " << shift;
      EXPECT_TRUE(y.surroundings_intact());
    }
  }
}

// A row whose numbers include a NaN is NaN, and no other: whichever way sums and maxima are taken.
TEST_P(LayerNormSweep, ANanStaysInItsRow) {
  Random random(820);
  for (const std::int64_t dim : {1, 7, 64, 130}) {
    const Tensor x = random_tensor({5, dim}, random), clean(DType::f32, {5, dim}), y(DType::f32, {5, dim});
    layer_norm(runtime(), x, {}, {}, 1e-5, clean);
    for (const std::int64_t place : {std::int64_t{0}, dim / 2, dim - 1}) {
      const Tensor dirty = x.clone();
      dirty.set({2, place}, std::numeric_limits<double>::quiet_NaN());
      layer_norm(runtime(), dirty, {}, {}, 1e-5, y);
      for (std::int64_t row = 0; row < 5; ++row)
        for (std::int64_t i = 0; i < dim; ++i)
          ASSERT_TRUE(row == 2 ? std::isnan(y({row, i})) : y({row, i}) == clean({row, i})) << "row " << row << " dim " << dim;
    }
  }
}
POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(LayerNormSweep);

TEST(LayerNorm, ErrorsNameTheArgument) {
  const Runtime& runtime = runtime_on(default_isa());
  Random random(1);
  const Tensor x = random_tensor({4, 8}, random), y = random_tensor({4, 8}, random), other = random_tensor({4, 7}, random);
  const Tensor gamma = random_tensor({8}, random), integers_ = integers(DType::i32, {1, 2, 3, 4, 5, 6, 7, 8});
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "y", layer_norm(runtime, x, gamma, {}, 1e-5, other));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "x", layer_norm(runtime, integers_, gamma, {}, 1e-5, y));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "gamma", layer_norm(runtime, x, x, {}, 1e-5, y));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "beta", layer_norm(runtime, x, {}, integers_, 1e-5, y));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "epsilon", layer_norm(runtime, x, {}, {}, -1, y));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "y overlaps x",
                        layer_norm(runtime, slice(x, 0, 0, 3), {}, {}, 1e-5, slice(x, 0, 1, 4)));
}

}  // namespace
}  // namespace polyhead::testing
