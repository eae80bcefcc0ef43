// BertEncoder on a small model folder that the test writes: against the oracle, and what loading refuses.
#include "polyhead/bert.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "dispatch/kernel_table.hpp"
#include "layer/layer_case.hpp"
#include "support/rounded_weights.hpp"

namespace polyhead::testing {
namespace {

constexpr std::int64_t hidden = 24, heads = 3, between = 40, words = 50, positions = 230, types = 2, layers = 2;

// The default, but for amx, which multiplies f32 weights in pieces.
Isa best_vector_isa() {
  return default_isa() == Isa::amx ? Isa::avx512 : default_isa();
}

class BertTest : public ::testing::Test {
 protected:
  BertTest() : folder_(std::filesystem::temp_directory_path() / ("polyhead_bert_" + std::to_string(::getpid()))), store_(900) {
    std::filesystem::create_directories(folder_);
    config_.vocabulary_size = words;
    config_.hidden_size = hidden;
    config_.layers = layers;
    config_.heads = heads;
    config_.intermediate_size = between;
    config_.max_positions = positions;
    config_.token_types = types;
    weights_.word_embeddings = add("embeddings.word_embeddings.weight", store_.matrix(words, hidden));
    weights_.position_embeddings = add("embeddings.position_embeddings.weight", store_.matrix(positions, hidden));
    weights_.token_type_embeddings = add("embeddings.token_type_embeddings.weight", store_.matrix(types, hidden));
    weights_.norm_gamma = add("embeddings.LayerNorm.weight", store_.vector(hidden, 0.2, 1));
    weights_.norm_beta = add("embeddings.LayerNorm.bias", store_.vector(hidden));
    EncoderBlockSpec spec = encoder_spec(hidden, heads, between);
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string prefix = "encoder.layer." + std::to_string(i) + ".";
      const EncoderBlockWeights block = encoder_weights(spec, store_);
      add(prefix + "attention.self.query.weight", block.attention.query);
      add(prefix + "attention.self.query.bias", block.attention.query_bias);
      add(prefix + "attention.self.key.weight", block.attention.key);
      add(prefix + "attention.self.key.bias", block.attention.key_bias);
      add(prefix + "attention.self.value.weight", block.attention.value);
      add(prefix + "attention.self.value.bias", block.attention.value_bias);
      add(prefix + "attention.output.dense.weight", block.attention.output);
      add(prefix + "attention.output.dense.bias", block.attention.output_bias);
      add(prefix + "attention.output.LayerNorm.weight", block.attention_norm_gamma);
      add(prefix + "attention.output.LayerNorm.bias", block.attention_norm_beta);
      add(prefix + "intermediate.dense.weight", block.feed_forward_in);
      add(prefix + "intermediate.dense.bias", block.feed_forward_in_bias);
      add(prefix + "output.dense.weight", block.feed_forward_out);
      add(prefix + "output.dense.bias", block.feed_forward_out_bias);
      add(prefix + "output.LayerNorm.weight", block.feed_forward_norm_gamma);
      add(prefix + "output.LayerNorm.bias", block.feed_forward_norm_beta);
      weights_.blocks.push_back(block);
    }
    write_config();
    write_weights();
  }
  ~BertTest() override { std::filesystem::remove_all(folder_); }

  const TensorView& add(const std::string& tensor, const TensorView& view) { return tensors_[tensor] = view; }

  void write_config(const std::string& field = "", const std::string& value = "") {
    std::map<std::string, std::string> fields = {{"model_type", "\"bert\""},
                                                 {"vocab_size", std::to_string(words)},
                                                 {"hidden_size", std::to_string(hidden)},
                                                 {"num_hidden_layers", std::to_string(layers)},
                                                 {"num_attention_heads", std::to_string(heads)},
                                                 {"intermediate_size", std::to_string(between)},
                                                 {"max_position_embeddings", std::to_string(positions)},
                                                 {"type_vocab_size", std::to_string(types)},
                                                 {"hidden_act", "\"gelu\""},
                                                 {"layer_norm_eps", "1e-12"}};
    if (!field.empty()) fields[field] = value;
    std::ofstream stream(folder_ / "config.json");
    stream << "{";
    const char* comma = "";
    for (const auto& [key, text] : fields) {
      stream << comma << "\"" << key << "\": " << text;
      comma = ", ";
    }
    stream << "}";
  }

  void write_weights(const std::string& prefix = "") {
    std::string header = "{", data;
    for (const auto& [tensor, view] : tensors_) {
      if (header.size() > 1) header += ",";
      header += "\"" + prefix + tensor + "\":{\"dtype\":\"F32\",\"shape\":[";
      for (int i = 0; i < view.rank; ++i) header += (i ? "," : "") + std::to_string(view.shape[static_cast<std::size_t>(i)]);
      const std::size_t bytes = static_cast<std::size_t>(view.element_count()) * 4;
      header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + bytes) + "]}";
      data.append(static_cast<const char*>(view.data), bytes);
    }
    header += "}";
    const std::uint64_t length = header.size();
    std::ofstream stream(folder_ / "model.safetensors", std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&length), 8);
    stream << header;
    stream.write(data.data(), static_cast<std::streamsize>(data.size()));
  }

  Tensor random_ids(DType dtype, std::int64_t batch, std::int64_t length) {
    Tensor ids(dtype, {batch, length});
    fill(ids, [&] { return static_cast<double>(store_.random().integer(0, words - 1)); });
    return ids;
  }
  BertEncoder load(int threads = 1, Isa isa = default_isa()) {
    return BertEncoder::load(folder_.string(), runtime_on(isa, threads));
  }

  std::filesystem::path folder_;
  WeightStore store_;
  BertConfig config_;
  oracle::BertWeights weights_;
  std::map<std::string, TensorView> tensors_;
};

TEST_F(BertTest, MatchesTheOracle) {
  for (const std::string prefix : {"", "bert."}) {
    write_weights(prefix);
    for (const Isa isa : available_isas()) {
      for (const int threads : {1, 2}) {
        const BertEncoder encoder = load(threads, isa);
        EXPECT_EQ(encoder.config().hidden_size, hidden);
        for (const DType dtype : {DType::i32, DType::i64}) {
          const Tensor ids = random_ids(dtype, 5, 217), lengths = integers(dtype, {217, 0, 13, 1, 100});
          Tensor out(DType::f32, {5, 217, hidden});
          encoder.token_embeddings(ids, lengths, out);
          EXPECT_TRUE(
              array_matches(oracle::bert_token_embeddings(config_, weights_, ids, lengths), out, 2e-5, 2e-5, name(isa)));
          Tensor pooled = Tensor::ordered(DType::f32, {5, hidden}, {1, 0}, 1);
          for (const bool normalise : {true, false}) {
            encoder.encode(ids, lengths, pooled, normalise);
            EXPECT_TRUE(
                array_matches(oracle::bert_encode(config_, weights_, ids, lengths, normalise), pooled, 1e-5, 1e-5, name(isa)));
          }
          EXPECT_TRUE(pooled.surroundings_intact());
        }
      }
    }
  }
}

TEST_F(BertTest, WeightsInFewerBitsHaveTheBitsOfRoundedWeights) {
  const Tensor ids = random_ids(DType::i64, 2, 60), lengths = integers(DType::i64, {60, 7});
  const std::map<std::string, TensorView> original = tensors_;
  for (const WeightType type : dispatch::weight_types()) {
    if (rounds_rows(type)) continue;
    BertOptions options;
    options.weights = type;
    tensors_ = original;
    write_weights();
    const Runtime runtime = runtime_on(best_vector_isa());
    const BertEncoder encoder = BertEncoder::load(folder_.string(), runtime, options);
    std::deque<Tensor> replaced;
    for (auto& [tensor, view] : tensors_) {
      if (view.rank != 2 || tensor.rfind("encoder.", 0) != 0) continue;
      const auto* values = static_cast<const float*>(view.data);
      const std::vector<float> rounded =
          rounded_weights(type, std::vector<float>(values, values + view.element_count()), view.shape[0], view.shape[1]);
      replaced.emplace_back(DType::f32, Tensor::Sizes{view.shape[0], view.shape[1]});
      std::size_t next = 0;
      fill(replaced.back(), [&] { return static_cast<double>(rounded[next++]); });
      view = replaced.back().view();
    }
    write_weights();
    Tensor out(DType::f32, {2, hidden}), expected(DType::f32, {2, hidden});
    encoder.encode(ids, lengths, out);
    BertEncoder::load(folder_.string(), runtime).encode(ids, lengths, expected);
    EXPECT_TRUE(same_bits(out, expected)) << name(type);
  }
  BertOptions wrong;
  wrong.weights = static_cast<WeightType>(9);
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "BertOptions.weights is 9",
                        BertEncoder::load(folder_.string(), runtime_on(default_isa()), wrong));
}

TEST_F(BertTest, PaddingAndBatchNeverShow) {
  const BertEncoder encoder = load(2);
  const std::vector<std::int64_t> lengths = {12, 200, 1, 77, 30, 31, 33, 90};
  Tensor ids = random_ids(DType::i64, 8, 210), out(DType::f32, {8, hidden});
  for (std::int64_t b = 0; b < 8; ++b)
    fill(slice(select(ids, b), 0, lengths[static_cast<std::size_t>(b)], 210), -7);  // never read
  encoder.encode(ids, integers(DType::i64, lengths), out);
  for (std::int64_t b = 0; b < 8; ++b) {
    Tensor alone(DType::f32, {1, hidden});
    encoder.encode(slice(slice(ids, 0, b, b + 1), 1, 0, lengths[static_cast<std::size_t>(b)]), {}, alone);
    EXPECT_TRUE(same_bits(slice(out, 0, b, b + 1), alone)) << "sequence " << b;
  }
}

TEST_F(BertTest, EmptySequencesGiveZeros) {
  const BertEncoder encoder = load();
  const Tensor ids = random_ids(DType::i64, 2, 3);
  Tensor out(DType::f32, {2, hidden}), zeros(DType::f32, {2, hidden});
  fill(zeros, 0.0);
  encoder.encode(ids, integers(DType::i64, {0, 0}), out);
  EXPECT_TRUE(same_bits(out, zeros));
  encoder.encode(random_ids(DType::i64, 0, 3), {}, Tensor(DType::f32, {0, hidden}));
  encoder.encode(random_ids(DType::i64, 2, 0), {}, out);
  EXPECT_TRUE(same_bits(out, zeros));
}

TEST_F(BertTest, ErrorsNameTheArgument) {
  const BertEncoder encoder = load();
  const Tensor out(DType::f32, {2, hidden});
  Tensor ids = random_ids(DType::i64, 2, 6);
  for (const double bad : {-1.0, static_cast<double>(words), 1e15}) {
    ids.set({1, 4}, bad);
    POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "token_ids[1, 4]", encoder.encode(ids, {}, out));
    encoder.encode(ids, integers(DType::i64, {6, 4}), out);  // in the padding it is no word
  }
  ids = random_ids(DType::i64, 2, 6);
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "lengths[0]", encoder.encode(ids, integers(DType::i64, {7, 1}), out));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "max_positions",
                        encoder.encode(random_ids(DType::i32, 2, positions + 1), {}, out));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "token_ids", encoder.encode(out, {}, out));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "out", encoder.encode(ids, {}, Tensor(DType::f32, {2, hidden + 1})));
  POLYHEAD_EXPECT_ERROR(ErrorCode::invalid_argument, "out", encoder.token_embeddings(ids, {}, out));
}

TEST_F(BertTest, LoadingErrorsNameFileAndField) {
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "config.json", BertEncoder::load("/nonexistent", runtime_on(default_isa())));
  write_config("hidden_act", "\"silu\"");
  POLYHEAD_EXPECT_ERROR(ErrorCode::unsupported, "hidden_act", load());
  write_config("num_hidden_layers", "3");
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "encoder.layer.2.", load());
  write_config("intermediate_size", "41");
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "intermediate.dense.weight", load());
  write_config("vocab_size", "51");
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "word_embeddings", load());
  write_config();
  std::filesystem::resize_file(folder_ / "model.safetensors", 2000);
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "model.safetensors", load());
  std::filesystem::remove(folder_ / "model.safetensors");
  POLYHEAD_EXPECT_ERROR(ErrorCode::io_error, "model.safetensors: no such file", load());
}

}  // namespace
}  // namespace polyhead::testing
