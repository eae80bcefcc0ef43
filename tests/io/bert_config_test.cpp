// config.json of BERT-family models: names are mapped one by one, what we don't implement is refused by name.
#include "io/bert_config.hpp"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>

#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

class BertConfigTest : public ::testing::Test {
 protected:
  BertConfigTest()
      : path_((std::filesystem::temp_directory_path() / ("polyhead_config_" + std::to_string(::getpid()) + ".json")).string()) {
  }
  ~BertConfigTest() override { std::filesystem::remove(path_); }

  BertConfig read(const std::string& text) {
    std::ofstream(path_, std::ios::trunc) << text;
    return read_bert_config(path_);
  }
  static std::string config(const std::string& more = "", const std::string& hidden = "384") {
    return R"({"model_type":"bert","vocab_size":100,"hidden_size":)" + hidden +
           R"(,"num_hidden_layers":6,"num_attention_heads":12,"intermediate_size":1536,"max_position_embeddings":512)" + more +
           "}";
  }
  void expect_refusal(const std::string& text, ErrorCode code, const std::string& part) {
    try {
      read(text);
      FAIL() << "accepted " << text.substr(0, 200);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
    }
  }

  std::string path_;
};

TEST_F(BertConfigTest, ReadsTheFields) {
  const BertConfig read_back = read(config(R"(,"type_vocab_size":3,"hidden_act":"gelu_new","layer_norm_eps":1e-5)"));
  EXPECT_EQ(read_back.vocabulary_size, 100);
  EXPECT_EQ(read_back.hidden_size, 384);
  EXPECT_EQ(read_back.layers, 6);
  EXPECT_EQ(read_back.heads, 12);
  EXPECT_EQ(read_back.intermediate_size, 1536);
  EXPECT_EQ(read_back.max_positions, 512);
  EXPECT_EQ(read_back.token_types, 3);
  EXPECT_EQ(read_back.activation, ActivationKind::gelu_tanh);
  EXPECT_EQ(read_back.norm_epsilon, 1e-5);
  EXPECT_EQ(read(config()).norm_epsilon, 1e-12);
}

TEST_F(BertConfigTest, MapsActivationNamesOneByOne) {
  const std::pair<const char*, ActivationKind> known[] = {{"relu", ActivationKind::relu},
                                                          {"gelu", ActivationKind::gelu_erf},
                                                          {"gelu_new", ActivationKind::gelu_tanh},
                                                          {"gelu_fast", ActivationKind::gelu_tanh},
                                                          {"gelu_pytorch_tanh", ActivationKind::gelu_tanh}};
  for (const auto& [text, kind] : known)
    EXPECT_EQ(read(config(std::string(R"(,"hidden_act":")") + text + "\"")).activation, kind) << text;
  for (const char* unknown : {"silu", "GELU", "gelu_10", ""}) {
    expect_refusal(config(std::string(R"(,"hidden_act":")") + unknown + "\""), ErrorCode::unsupported, "hidden_act");
  }
}

TEST_F(BertConfigTest, RefusesOtherModels) {
  expect_refusal(R"({"model_type":"roberta"})", ErrorCode::unsupported, "model_type is 'roberta'");
  expect_refusal(R"({"architectures":["GPT2Model"]})", ErrorCode::unsupported, "GPT2Model");
  expect_refusal("{}", ErrorCode::unsupported, "model_type");
  expect_refusal(config(R"(,"position_embedding_type":"relative_key")"), ErrorCode::unsupported, "position_embedding_type");
  expect_refusal(config(R"(,"is_decoder":true)"), ErrorCode::unsupported, "is_decoder");
}

// What is inside other fields is no field of the model's, whatever it is called; of a field that is there twice the last
// counts.
TEST_F(BertConfigTest, LooksAtTheOutermostFieldsAlone) {
  const BertConfig read_back = read(config(
      R"(,"task":{"hidden_size":7,"layers":[1,{"vocab_size":9}]},"hidden_act":"relu","hidden_act":"gelu","pad":[["x"]])"));
  EXPECT_EQ(read_back.hidden_size, 384);
  EXPECT_EQ(read_back.vocabulary_size, 100);
  EXPECT_EQ(read_back.activation, ActivationKind::gelu_erf);
  const std::string sizes =
      R"(,"vocab_size":100,"hidden_size":384,"num_hidden_layers":6,"num_attention_heads":12,"intermediate_size":1536,)"
      R"("max_position_embeddings":512})";
  EXPECT_EQ(read(R"({"architectures":["BertModel","GPT2Model"])" + sizes).heads, 12);
  expect_refusal(R"({"architectures":[["BertModel"]])" + sizes, ErrorCode::unsupported, "architectures");
  expect_refusal(R"({"architectures":[7,"BertModel"])" + sizes, ErrorCode::unsupported, "architectures");
  expect_refusal(R"({"architectures":"BertModel")" + sizes, ErrorCode::unsupported, "architectures");
}

TEST_F(BertConfigTest, RefusesBrokenFiles) {
  expect_refusal("7", ErrorCode::io_error, "not a JSON object");
  expect_refusal(config() + "}", ErrorCode::io_error, "not a JSON object");
  expect_refusal(config(R"(,"deep":)" + std::string(70, '[') + std::string(70, ']')), ErrorCode::io_error, "levels deep");
  expect_refusal("", ErrorCode::io_error, "not a JSON object");
  expect_refusal("[1]", ErrorCode::io_error, "not a JSON object");
  expect_refusal("{\"model_type\":", ErrorCode::io_error, "not a JSON object");
  expect_refusal(std::string(100'000, '['), ErrorCode::io_error, "levels deep");
  expect_refusal(R"({"model_type":"bert"})", ErrorCode::io_error, "vocab_size");
  for (const char* bad :
       {"0", "-384", "384.5", "\"384\"", "99999999999999999999", "18446744073709551615", "null", "true", "[384]"}) {
    expect_refusal(config("", bad), ErrorCode::io_error, "hidden_size");
  }
  expect_refusal(config("", "385"), ErrorCode::io_error, "num_attention_heads");
  expect_refusal(config(R"(,"layer_norm_eps":-1)"), ErrorCode::io_error, "layer_norm_eps");
  expect_refusal(config(R"(,"hidden_act":7)"), ErrorCode::io_error, "hidden_act");
  EXPECT_THROW(read_bert_config("/nonexistent/config.json"), Error);
}

}  // namespace
}  // namespace polyhead::io
