// MultiHeadAttention against the float64 oracle: sizes, sources, masks, strides, threads, errors.
#include "polyhead/multi_head_attention.hpp"

#include <gtest/gtest.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <atomic>
#include <cmath>
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
      bias_ = Tensor(random.choice({DType::f32, DType::bf16, DType::f16}), {spec.heads, test.query_length, keys});
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
      {"causal window and kept keys", Mask::causal(Causal::bottom_right) & Mask::window(17, 0, 4)},
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

// A NaN in one token reaches the rows that see it, whole, and changes no bit of any other: not of the rows that share a block
// of a projection with it.
TEST_P(MultiHeadAttentionSweep, ANanReachesTheRowsThatSeeIt) {
  for (const std::int64_t length : {1, 5, 50, slow() ? 60 : 230}) {
    Case test;
    test.spec = attention_layer_spec(32, 4, Mask::causal(Causal::top_left));
    test.batch = 3;
    test.query_length = length;
    Layer layer(test, 21);
    for (const int threads : {1, 2}) {
      const MultiHeadAttention attention(test.spec, layer.weights(), runtime(threads));
      attention.run(layer.inputs());
      const Tensor clean = layer.out().clone();
      for (const std::int64_t token : {std::int64_t{0}, length / 2, length - 1}) {
        const Tensor x(DType::f32, {3, length, 32});
        copy(layer.inputs().query, x);
        x.set({1, token, 31}, std::numeric_limits<double>::quiet_NaN());
        MultiHeadAttentionInputs inputs = layer.inputs();
        inputs.query = x;
        attention.run(inputs);
        for (std::int64_t b = 0; b < 3; ++b)
          for (std::int64_t t = 0; t < length; ++t) {
            const TensorView before = select(select(clean, b), t), after = select(select(layer.out(), b), t);
            if (b != 1 || t < token) {
              ASSERT_TRUE(same_bits(before, after)) << "item " << b << " row " << t << ", NaN in token " << token;
            } else {
              for_each_offset(after, [&](std::int64_t i) { ASSERT_TRUE(std::isnan(load(after, i))) << "row " << t; });
            }
          }
      }
    }
  }
}

// Columns of a batch that no query may see, at the end, at the beginning or between others: they are absent, NaN or not, and
// out has a row for every query. At the end they are what key lengths say.
TEST_P(MultiHeadAttentionSweep, HiddenColumnsAreAbsentWhereverTheyStand) {
  const std::pair<std::int64_t, std::int64_t> ranges[] = {{1, 6}, {0, 5}, {2, 4}, {0, 6}};
  for (const std::int64_t scale : {1, 40}) {
    for (const auto& [first, last] : ranges) {
      const std::int64_t begin = first * scale, end = last * scale, keys = 6 * scale;
      Case test;
      test.spec = attention_layer_spec(24, 3, Mask::boolean());
      test.batch = 3;
      test.query_length = 7;
      test.key_length = keys;
      test.cross = true;
      test.what = "columns " + std::to_string(begin) + " to " + std::to_string(end) + " of " + std::to_string(keys);
      Layer layer(test, 22);
      const Tensor columns(DType::boolean, {keys});
      fill(columns, 1.0);
      fill(slice(columns, 0, begin, end), 0.0);
      layer.inputs().boolean_mask = columns;
      ASSERT_TRUE(layer.check(runtime(2)));
      const Tensor clean = layer.out().clone();
      for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        const Tensor dirty(DType::f32, {3, keys, 24});
        copy(layer.inputs().key, dirty);
        fill(slice(dirty, 1, begin, end), poison);
        MultiHeadAttentionInputs inputs = layer.inputs();
        inputs.key = dirty;
        MultiHeadAttention(test.spec, layer.weights(), runtime(2)).run(inputs);
        EXPECT_TRUE(same_bits(clean, layer.out())) << test.what << ": " << first_difference(clean, layer.out());
        if (end != keys) continue;
        MultiHeadAttentionSpec by_lengths = test.spec;
        by_lengths.mask = Mask::key_lengths();
        const Tensor lengths = integers(DType::i64, {begin, begin, begin});
        inputs.boolean_mask = {};
        inputs.key_lengths = lengths;
        MultiHeadAttention(by_lengths, layer.weights(), runtime(2)).run(inputs);
        EXPECT_TRUE(array_matches(oracle::to_array(clean), layer.out(), tolerance, tolerance, test.what + " by key lengths"));
      }
    }
  }
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

// One object, a shape of its own for each thread.
TEST(MultiHeadAttention, RunsConcurrently) {
  struct Caller {
    Tensor x, right, out;
  };
  const MultiHeadAttentionSpec spec = attention_layer_spec(32, 4, Mask::causal(Causal::top_left));
  WeightStore store(15);
  const MultiHeadAttention attention(spec, attention_layer_weights(spec, store), runtime_on(default_isa(), 2));
  const auto run = [&](const Caller& caller, const Tensor& out) {
    MultiHeadAttentionInputs inputs;
    inputs.query = caller.x;
    inputs.out = out;
    attention.run(inputs);
  };
  std::vector<Caller> callers;
  for (std::int64_t i = 0; i < 16; ++i) {
    const std::int64_t batch = 1 + i % 4, length = 1 + i * i % 73;
    callers.push_back({random_tensor({batch, length, 32}, store.random()), Tensor(DType::f32, {batch, length, 32}),
                       Tensor(DType::f32, {batch, length, 32})});
    run(callers.back(), callers.back().right);
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (const Caller& caller : callers) {
    threads.emplace_back([&] {
      for (int round = 0; round < 25; ++round) {
        fill(caller.out, 7.0);
        run(caller, caller.out);
        if (!same_bits(caller.right, caller.out)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Every place in 64 bytes that an element can have, of inputs, weights and out.
TEST_P(MultiHeadAttentionSweep, AnyAlignment) {
  const auto at = [](const TensorView& from, std::int64_t shift) {
    Tensor::Sizes shape(from.shape.begin(), from.shape.begin() + from.rank), strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
    Tensor to(DType::f32, shape, strides, shift);
    copy(from, to);
    return to;
  };
  Case test;
  test.spec = attention_layer_spec(32, 2);
  test.batch = 2;
  test.query_length = 21;
  test.key_length = 35;
  test.cross = true;
  Layer layer(test, 23);
  ASSERT_TRUE(layer.check(runtime()));
  const Tensor right = layer.out().clone();
  for (std::int64_t shift = 0; shift < 16; ++shift) {
    MultiHeadAttentionWeights weights = layer.weights();
    TensorView* const views[] = {&weights.query,      &weights.key,      &weights.value,      &weights.output,
                                 &weights.query_bias, &weights.key_bias, &weights.value_bias, &weights.output_bias};
    std::vector<Tensor> owners;
    for (TensorView* const view : views) {
      owners.push_back(at(*view, (shift + 3 * static_cast<std::int64_t>(owners.size())) % 16));
      *view = owners.back();
    }
    MultiHeadAttentionInputs inputs = layer.inputs();
    const Tensor query = at(inputs.query, shift), key = at(inputs.key, (5 * shift + 1) % 16),
                 out = at(inputs.out, (7 * shift + 2) % 16);
    inputs.query = query, inputs.key = key, inputs.out = out;
    fill(out, 7.0);
    MultiHeadAttention(test.spec, weights, runtime()).run(inputs);
    EXPECT_TRUE(same_bits(right, out)) << "shift " << shift << ": " << first_difference(right, out);
    EXPECT_TRUE(out.surroundings_intact());
  }
}

#if defined(__linux__)
// Address space of which only a few pages are ever touched.
TEST_P(MultiHeadAttentionSweep, StridesBeyond32Bits) {
  if (emulated) GTEST_SKIP() << "an emulator keeps a table of all memory that is mapped: 20 GiB of it here";
  constexpr std::int64_t far = (std::int64_t{1} << 32) + 48;
  Case test;
  test.spec = attention_layer_spec(16, 2);
  test.batch = 2;
  test.query_length = 3;
  test.key_length = 3;
  test.cross = true;
  Layer layer(test, 24);
  ASSERT_TRUE(layer.check(runtime()));
  const Tensor right = layer.out().clone();
  const MultiHeadAttention attention(test.spec, layer.weights(), runtime());
  for (int which = 0; which < 3; ++which)
    for (const int dimension : {0, 1, 2})
      for (const std::int64_t stride : {far, -far}) {
        MultiHeadAttentionInputs inputs = layer.inputs();
        TensorView& operand = which == 0 ? inputs.query : which == 1 ? inputs.key : inputs.out;
        const std::int64_t steps = operand.shape[static_cast<std::size_t>(dimension)] - 1;
        const auto bytes = static_cast<std::size_t>(far * steps + 4096) * sizeof(float);
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of " << bytes << " bytes";
        TensorView view = operand;
        view.data = static_cast<float*>(memory) + (stride < 0 ? far * steps : 0);
        view.strides[static_cast<std::size_t>(dimension)] = stride;
        copy(operand, view);
        operand = view;
        attention.run(inputs);
        EXPECT_TRUE(same_bits(right, inputs.out))
            << "operand " << which << ", dimension " << dimension << ", stride " << stride;
        munmap(memory, bytes);
      }
}
#endif

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

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(MultiHeadAttentionSweep);

}  // namespace
}  // namespace polyhead::testing
