// MultiHeadAttention against the float64 oracle: sizes, sources, masks, strides, threads, errors.
#include "polyhead/multi_head_attention.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "layer/layer_case.hpp"

namespace polyhead::testing {
namespace {

constexpr double tolerance = 2e-5;

struct Case {
  MultiHeadAttentionSpec spec;
  std::int64_t batch = 1, query_length = 1, key_length = 1;
  bool cross = false, separate_values = false, biases = true;
  std::string what;
};

class Layer {
 public:
  Layer(const Case& test, std::uint64_t seed) : test_(test), store_(seed) {
    const MultiHeadAttentionSpec& spec = test.spec;
    weights_ = attention_layer_weights(spec, store_, test.biases);
    Random& random = store_.random();
    query_ = random_tensor({test.batch, test.query_length, spec.d_model}, random);
    out_ = Tensor(DType::f32, {test.batch, test.query_length, spec.d_model});
    inputs_.query = query_;
    inputs_.out = out_;
    const std::int64_t keys = test.cross ? test.key_length : test.query_length;
    if (test.cross) {
      key_ = random_tensor({test.batch, keys, spec.key_input_dim ? spec.key_input_dim : spec.d_model}, random);
      inputs_.key = key_;
    }
    if (test.separate_values) {
      value_ = random_tensor({test.batch, keys, spec.value_input_dim ? spec.value_input_dim : spec.d_model}, random);
      inputs_.value = value_;
    }
    const Mask& mask = spec.mask;
    if (mask.has_key_lengths) {
      lengths_ = Tensor(DType::i32, {test.batch});
      fill(lengths_, [&] { return static_cast<double>(random.integer(0, keys)); });
      inputs_.key_lengths = lengths_;
    }
    if (mask.has_offsets) {
      offsets_ = Tensor(DType::i64, {test.batch});
      fill(offsets_, [&] { return static_cast<double>(random.integer(-2, keys)); });
      inputs_.offsets = offsets_;
    }
    if (mask.has_boolean) {
      boolean_ = Tensor(DType::boolean, {test.batch, 1, test.query_length, keys});
      fill(boolean_, [&] { return random.chance(0.7) ? 1.0 : 0.0; });
      inputs_.boolean_mask = boolean_;
    }
    if (mask.has_bias) {
      bias_ = Tensor(DType::f32, {spec.heads, test.query_length, keys});
      fill(bias_, [&] { return random.chance(0.1) ? -std::numeric_limits<double>::infinity() : random.normal(); });
      inputs_.bias = bias_;
    }
  }

  MultiHeadAttentionInputs& inputs() { return inputs_; }
  const MultiHeadAttentionWeights& weights() const { return weights_; }
  const Tensor& out() const { return out_; }
  oracle::Array expected() const { return oracle::multi_head_attention(test_.spec, weights_, inputs_); }

  ::testing::AssertionResult check(const Runtime& runtime) {
    fill(out_, std::numeric_limits<double>::quiet_NaN());
    MultiHeadAttention(test_.spec, weights_, runtime).run(inputs_);
    const std::string what = test_.what + ", " + name(runtime.isa()) + ", threads " + std::to_string(runtime.threads());
    if (!out_.surroundings_intact()) return ::testing::AssertionFailure() << what << ": wrote outside out";
    return array_matches(expected(), out_, tolerance, tolerance, what);
  }

 private:
  Case test_;
  WeightStore store_;
  MultiHeadAttentionWeights weights_;
  Tensor query_, key_, value_, out_, lengths_, offsets_, boolean_, bias_;
  MultiHeadAttentionInputs inputs_;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& what, MultiHeadAttentionSpec spec, std::int64_t batch, std::int64_t query_length,
                       std::int64_t key_length = 0, bool cross = false, bool separate = false, bool biases = true) {
    all.push_back({spec, batch, query_length, key_length, cross, separate, biases, what});
  };
  add("one token", attention_layer_spec(32, 4), 1, 1);
  add("plain", attention_layer_spec(64, 4), 2, 37);
  add("no biases", attention_layer_spec(48, 3), 3, 20, 0, false, false, false);
  add("several blocks", attention_layer_spec(32, 2), 2, 421);
  add("many short items", attention_layer_spec(32, 4), 67, 7);
  add("two blocks of items", attention_layer_spec(24, 2), 4, 96);

  MultiHeadAttentionSpec grouped = attention_layer_spec(60, 6);
  grouped.kv_heads = 2;
  add("grouped heads", grouped, 2, 33);
  MultiHeadAttentionSpec odd = attention_layer_spec(40, 3);
  odd.head_dim = 20;
  odd.value_dim = 28;
  odd.scale = 0.3;
  add("heads * value_dim is not d_model", odd, 2, 45);
  MultiHeadAttentionSpec widths = attention_layer_spec(32, 4);
  widths.key_input_dim = 24;
  widths.value_input_dim = 56;
  add("key and value widths", widths, 2, 19, 41, true, true);
  add("cross, short query", attention_layer_spec(64, 4), 3, 2, 130, true);
  add("cross, one query, long keys", attention_layer_spec(32, 2), 1, 1, 4500, true);
  add("cross, long query", attention_layer_spec(32, 2), 2, 250, 9, true);
  add("self with other values", attention_layer_spec(32, 2), 2, 30, 0, false, true);
  add("cross, no keys", attention_layer_spec(32, 2), 2, 5, 0, true);

  const std::pair<const char*, Mask> masks[] = {
      {"causal top left", Mask::causal(Causal::top_left)},
      {"causal bottom right", Mask::causal(Causal::bottom_right)},
      {"key lengths", Mask::key_lengths()},
      {"causal and key lengths", Mask::causal(Causal::bottom_right) & Mask::key_lengths()},
      {"causal with offsets", Mask::causal(Causal::offset)},
      {"window", Mask::window(9, 3)},
      {"causal window", Mask::causal(Causal::top_left) & Mask::window(17, 0)},
      {"boolean", Mask::boolean()},
      {"bias", Mask::bias()},
      {"all", Mask::causal(Causal::top_left) & Mask::key_lengths() & Mask::boolean() & Mask::bias() & Mask::window(60, 5)},
  };
  for (const auto& [what, mask] : masks) {
    Mask full = mask;
    if (full.causality == Causal::offset) full.has_offsets = true;
    add(std::string(what) + ", self", attention_layer_spec(32, 2, full), 3, 50);
    add(std::string(what) + ", self, several blocks", attention_layer_spec(32, 2, full), 2, 410);
    add(std::string(what) + ", cross", attention_layer_spec(32, 2, full), 3, 21, 205, true);
  }
  return all;
}

using MultiHeadAttentionSweep = EveryIsa;

TEST_P(MultiHeadAttentionSweep, MatchesTheOracle) {
  std::uint64_t seed = 0;
  for (const Case& test : cases()) {
    ++seed;
    if (slow() && seed % 5 != 0) continue;
    Layer layer(test, seed);
    EXPECT_TRUE(layer.check(runtime(1)));
    const Tensor alone = layer.out().clone();
    EXPECT_TRUE(layer.check(runtime(2)));
    EXPECT_TRUE(same_bits(alone, layer.out()))
        << test.what << ": threads change bits, " << first_difference(alone, layer.out());
  }
}
POLYHEAD_INSTANTIATE_EVERY_ISA(MultiHeadAttentionSweep);

// One object for all shapes, larger and smaller again: what a run leaves in its workspace must not show in the next.
TEST(MultiHeadAttention, ServesChangingShapes) {
  WeightStore store(5);
  MultiHeadAttentionSpec spec = attention_layer_spec(32, 4, Mask::key_lengths());
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store);
  for (const int threads : {1, 2}) {
    const MultiHeadAttention layer(spec, weights, runtime_on(default_isa(), threads));
    for (int round = 0; round < 25; ++round) {
      Random& random = store.random();
      const std::int64_t batch = random.integer(0, 9), length = random.integer(0, 90);
      const Tensor x = random_tensor({batch, length, 32}, random);
      Tensor out(DType::f32, {batch, length, 32}), lengths(DType::i64, {batch});
      fill(lengths, [&] { return static_cast<double>(random.integer(0, length)); });
      MultiHeadAttentionInputs inputs;
      inputs.query = x;
      inputs.out = out;
      inputs.key_lengths = lengths;
      layer.run(inputs);
      EXPECT_TRUE(array_matches(oracle::multi_head_attention(spec, weights, inputs), out, tolerance, tolerance,
                                "batch " + std::to_string(batch) + ", length " + std::to_string(length)));
    }
  }
}

TEST(MultiHeadAttention, TakesAnyStrides) {
  Case test;
  test.spec = attention_layer_spec(24, 2);
  test.batch = 3;
  test.query_length = 57;
  test.key_length = 35;
  test.cross = true;
  test.what = "strides";
  for (const int threads : {1, 2}) {
    Layer layer(test, 11);
    const oracle::Array expected = layer.expected();
    const MultiHeadAttention attention(test.spec, layer.weights(), runtime_on(default_isa(), threads));
    const std::vector<std::vector<int>> orders = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {2, 1, 0}};
    for (const std::vector<int>& order : orders) {
      for (const std::int64_t step : {1, 2}) {
        Tensor query = Tensor::ordered(DType::f32, {3, 57, 24}, order, 5, step), out = query.clone();
        Tensor key = Tensor::ordered(DType::f32, {3, 35, 24}, order, 3, step);
        copy(layer.inputs().query, query);
        copy(layer.inputs().key, key);
        MultiHeadAttentionInputs inputs;
        inputs.query = query;
        inputs.key = key;
        inputs.out = out;
        attention.run(inputs);
        EXPECT_TRUE(array_matches(expected, out, tolerance, tolerance, "order and step " + std::to_string(step)));
        EXPECT_TRUE(out.surroundings_intact());
      }
    }
    // Backwards in every dimension, and one batch item repeated by a stride of 0.
    MultiHeadAttentionInputs inputs = layer.inputs();
    Random random(3);
    const Tensor query = random_tensor({1, 57, 24}, random);
    inputs.query = expanded(reversed(reversed(query, 1), 2), 0, 3);
    attention.run(inputs);
    EXPECT_TRUE(array_matches(oracle::multi_head_attention(test.spec, layer.weights(), inputs), layer.out(), tolerance,
                              tolerance, "reversed and repeated"));
  }
}

// Weights are copied at construction: theirs may have any strides and go away afterwards.
TEST(MultiHeadAttention, CopiesItsWeights) {
  Case test;
  test.spec = attention_layer_spec(24, 2);
  test.batch = 2;
  test.query_length = 9;
  Layer layer(test, 12);
  const oracle::Array expected = layer.expected();
  std::optional<MultiHeadAttention> attention;
  {
    Tensor query = Tensor::ordered(DType::f32, {24, 24}, {1, 0}, 3, 2), bias(DType::f32, {24}, {3});
    copy(layer.weights().query, query);
    copy(layer.weights().query_bias, bias);
    MultiHeadAttentionWeights weights = layer.weights();
    weights.query = query;
    weights.query_bias = bias;
    attention.emplace(test.spec, weights, runtime_on(default_isa()));
    fill(query, std::numeric_limits<double>::quiet_NaN());
    fill(bias, std::numeric_limits<double>::quiet_NaN());
  }
  attention->run(layer.inputs());
  EXPECT_TRUE(array_matches(expected, layer.out(), tolerance, tolerance, "strided weights"));
}

// What lies beyond a key length is not read: NaN there changes no bit.
TEST(MultiHeadAttention, PaddingNeverShows) {
  Case test;
  test.spec = attention_layer_spec(32, 2, Mask::key_lengths());
  test.batch = 4;
  test.query_length = 6;
  test.key_length = 200;
  test.cross = true;
  Layer layer(test, 13);
  const MultiHeadAttention attention(test.spec, layer.weights(), runtime_on(default_isa(), 2));
  attention.run(layer.inputs());
  const Tensor clean = layer.out().clone();
  for (std::int64_t b = 0; b < test.batch; ++b) {
    const auto length = static_cast<std::int64_t>(load(layer.inputs().key_lengths, b));
    fill(slice(select(layer.inputs().key, b), 0, length, test.key_length), std::numeric_limits<double>::quiet_NaN());
  }
  attention.run(layer.inputs());
  EXPECT_TRUE(same_bits(clean, layer.out())) << first_difference(clean, layer.out());
}

// An item gives the bits it gives alone: the order of summation is a function of its own shape.
TEST(MultiHeadAttention, BatchDoesNotChangeBits) {
  for (const std::int64_t length : {1, 5, 40, 230}) {
    Case test;
    test.spec = attention_layer_spec(48, 4);
    test.batch = 5;
    test.query_length = length;
    Layer layer(test, 14);
    const MultiHeadAttention attention(test.spec, layer.weights(), runtime_on(default_isa(), 2));
    attention.run(layer.inputs());
    for (std::int64_t b = 0; b < test.batch; ++b) {
      Tensor out(DType::f32, {1, length, 48});
      MultiHeadAttentionInputs inputs;
      inputs.query = slice(layer.inputs().query, 0, b, b + 1);
      inputs.out = out;
      attention.run(inputs);
      const TensorView whole = slice(layer.out(), 0, b, b + 1);
      EXPECT_TRUE(same_bits(whole, out)) << "length " << length << ": " << first_difference(whole, out);
    }
  }
}

TEST(MultiHeadAttention, RunsConcurrently) {
  Case test;
  test.spec = attention_layer_spec(32, 4, Mask::causal(Causal::top_left));
  test.batch = 3;
  test.query_length = 60;
  test.what = "concurrent";
  Layer layer(test, 15);
  const MultiHeadAttention attention(test.spec, layer.weights(), runtime_on(default_isa(), 2));
  attention.run(layer.inputs());
  const Tensor expected = layer.out().clone();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        Tensor out(DType::f32, {3, 60, 32});
        MultiHeadAttentionInputs inputs = layer.inputs();
        inputs.out = out;
        attention.run(inputs);
        if (!same_bits(expected, out)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(MultiHeadAttention, CanBeCancelled) {
  Case test;
  test.spec = attention_layer_spec(32, 4);
  test.batch = 2;
  test.query_length = 10;
  Layer layer(test, 16);
  for (const int threads : {1, 2}) {
    const MultiHeadAttention attention(test.spec, layer.weights(), runtime_on(default_isa(), threads));
    std::atomic<bool> cancel{true};
    RunOptions options;
    options.cancel = &cancel;
    POLYHEAD_EXPECT_ERROR(ErrorCode::cancelled, "cancel", attention.run(layer.inputs(), options));
    cancel = false;
    attention.run(layer.inputs(), options);
    EXPECT_TRUE(array_matches(layer.expected(), layer.out(), tolerance, tolerance, "after a cancel"));
  }
}

TEST(MultiHeadAttention, ErrorsNameTheField) {
  const Runtime& runtime = runtime_on(default_isa());
  WeightStore store(17);
  const MultiHeadAttentionSpec good = attention_layer_spec(32, 4);
  const MultiHeadAttentionWeights weights = attention_layer_weights(good, store);
  const auto with_spec = [&](const char* part, const auto& change) {
    MultiHeadAttentionSpec spec = good;
    change(spec);
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, part, MultiHeadAttention(spec, weights, runtime));
  };
  with_spec("d_model", [](auto& spec) { spec.d_model = 0; });
  with_spec("heads", [](auto& spec) { spec.heads = 0; });
  with_spec("heads", [](auto& spec) { spec.heads = 5; });
  with_spec("kv_heads", [](auto& spec) { spec.kv_heads = 3; });
  with_spec("head_dim", [](auto& spec) { spec.head_dim = -1; });
  with_spec("heads * head_dim", [](auto& spec) { spec.head_dim = std::int64_t{1} << 27; });
  with_spec("scale", [](auto& spec) { spec.scale = std::numeric_limits<double>::infinity(); });
  with_spec("window_left", [](auto& spec) { spec.mask.window_left = -2; });
  with_spec("MultiHeadAttentionWeights.key", [](auto& spec) { spec.key_input_dim = 16; });
  const auto with_weights = [&](const char* part, const auto& change) {
    MultiHeadAttentionWeights bad = weights;
    change(bad);
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, part, MultiHeadAttention(good, bad, runtime));
  };
  with_weights("MultiHeadAttentionWeights.query ", [](auto& bad) { bad.query = {}; });
  with_weights("MultiHeadAttentionWeights.output ", [](auto& bad) { bad.output = bad.output_bias; });
  with_weights("value_bias", [](auto& bad) { bad.value_bias.shape[0] = 31; });

  const MultiHeadAttention attention(good, weights, runtime);
  Random random(1);
  const Tensor x = random_tensor({2, 5, 32}, random), other = random_tensor({2, 7, 32}, random),
               narrow = random_tensor({2, 5, 31}, random);
  Tensor out(DType::f32, {2, 5, 32}), wrong(DType::f32, {2, 6, 32}), lengths = integers(DType::i32, {1, 2});
  const auto run = [&](const char* part, const TensorView& query, const TensorView& key, const TensorView& value,
                       const TensorView& to, const TensorView& key_lengths = {}) {
    MultiHeadAttentionInputs inputs;
    inputs.query = query;
    inputs.key = key;
    inputs.value = value;
    inputs.out = to;
    inputs.key_lengths = key_lengths;
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, part, attention.run(inputs));
  };
  run("query", {}, {}, {}, out);
  run("query", narrow, {}, {}, out);
  run("key", x, narrow, {}, out);
  run("value", x, other, x, out);
  run("out", x, {}, {}, wrong);
  run("out overlaps query", x, {}, {}, x);
  run("key_lengths", x, {}, {}, out, lengths);

  const MultiHeadAttention with_lengths(attention_layer_spec(32, 4, Mask::key_lengths()), weights, runtime);
  MultiHeadAttentionInputs inputs;
  inputs.query = x;
  inputs.out = out;
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "key_lengths", with_lengths.run(inputs));
  for (const std::int64_t bad : {-1, 6, 2147483647}) {
    const Tensor values = integers(DType::i32, {0, bad});
    inputs.key_lengths = values;
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "key_lengths[1]", with_lengths.run(inputs));
  }
  alignas(64) char memory[64];
  RunOptions options;
  options.workspace = memory;
  inputs.key_lengths = lengths;
  POLYHEAD_EXPECT_ERROR(ErrorCode::unsupported, "workspace", with_lengths.run(inputs, options));
}

}  // namespace
}  // namespace polyhead::testing
