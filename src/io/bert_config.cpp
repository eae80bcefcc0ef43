#include "io/bert_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/file.hpp"
#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

constexpr std::uint64_t max_bytes = 16 << 20;
constexpr int max_nesting = 64;
constexpr std::int64_t max_size = 1 << 28;  // of any one dimension: far above any model, far below any overflow

bool nests_too_deeply(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_nesting) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// json's own dump() would add a tenth to the smallest library.
std::string shown(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return std::to_string(value.get<std::uint64_t>());
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  if (value.is_number_float()) return std::to_string(value.get<double>());
  return std::string("of type ") + value.type_name();
}

class Fields {
 public:
  explicit Fields(const std::string& path) : path_(path) {
    InputFile file(path);
    if (file.size() > max_bytes) file.fail("has " + std::to_string(file.size()) + " bytes, too many for a model configuration");
    const std::string text = file.read_text(0, static_cast<std::size_t>(file.size()));
    if (nests_too_deeply(text)) file.fail("nests more than " + std::to_string(max_nesting) + " levels deep");
    json_ = nlohmann::json::parse(text, nullptr, false);
    if (!json_.is_object()) file.fail("is not a JSON object");
  }

  bool has(const char* field) const { return json_.contains(field) && !json_[field].is_null(); }
  const nlohmann::json& operator[](const char* field) const { return json_.at(field); }

  std::int64_t size(const char* field) const {
    if (!has(field)) fail(path_, std::string("has no ") + field);
    const nlohmann::json& value = json_[field];
    const bool is_valid = value.is_number_integer() &&
                          (!value.is_number_unsigned() || value.get<std::uint64_t>() <= max_size) &&
                          value.get<std::int64_t>() >= 1 && value.get<std::int64_t>() <= max_size;
    if (!is_valid) fail(path_, std::string(field) + " is " + shown(value) + ", a whole number from 1 was expected");
    return value.get<std::int64_t>();
  }
  std::string text(const char* field, const char* otherwise) const {
    if (!has(field)) return otherwise;
    if (!json_[field].is_string()) fail(path_, std::string(field) + " is not a string");
    return json_[field].get<std::string>();
  }
  bool truth(const char* field) const {
    if (!has(field)) return false;
    if (!json_[field].is_boolean()) fail(path_, std::string(field) + " is neither true nor false");
    return json_[field].get<bool>();
  }

 private:
  std::string path_;
  nlohmann::json json_;
};

void require_bert(const Fields& fields, const std::string& path) {
  const auto unsupported = [&](const std::string& what) { throw Error(ErrorCode::unsupported, path + ": " + what); };
  if (fields.has("model_type")) {
    const std::string type = fields.text("model_type", "");
    if (type != "bert") unsupported("model_type is '" + type + "', 'bert' was expected");
  } else {
    // Old configurations have no model_type; the class name tells.
    const bool is_named = fields.has("architectures") && fields["architectures"].is_array() &&
                          !fields["architectures"].empty() && fields["architectures"][0].is_string();
    const std::string architecture = is_named ? fields["architectures"][0].get<std::string>() : "";
    if (architecture.rfind("Bert", 0) != 0) {
      unsupported("has no model_type, and architectures names '" + architecture + "', a Bert class was expected");
    }
  }
  const std::string positions = fields.text("position_embedding_type", "absolute");
  if (positions != "absolute") unsupported("position_embedding_type is '" + positions + "', 'absolute' was expected");
  for (const char* field : {"is_decoder", "add_cross_attention"}) {
    if (fields.truth(field)) unsupported(std::string(field) + " is true, an encoder was expected");
  }
}

}  // namespace

BertConfig read_bert_config(const std::string& path) {
  const Fields fields(path);
  require_bert(fields, path);
  BertConfig config;
  config.vocabulary_size = fields.size("vocab_size");
  config.hidden_size = fields.size("hidden_size");
  config.layers = fields.size("num_hidden_layers");
  config.heads = fields.size("num_attention_heads");
  config.intermediate_size = fields.size("intermediate_size");
  config.max_positions = fields.size("max_position_embeddings");
  config.token_types = fields.has("type_vocab_size") ? fields.size("type_vocab_size") : 2;
  if (config.hidden_size % config.heads != 0) {
    fail(path, "hidden_size is " + std::to_string(config.hidden_size) + ", a multiple of num_attention_heads (" +
                   std::to_string(config.heads) + ") was expected");
  }
  const std::string activation = fields.text("hidden_act", "gelu");
  try {
    config.activation = activation_from_name(activation);
  } catch (const Error& error) {
    throw Error(ErrorCode::unsupported, path + ": hidden_act: " + error.what());
  }
  if (fields.has("layer_norm_eps")) {
    const nlohmann::json& epsilon = fields["layer_norm_eps"];
    if (!epsilon.is_number() || !(epsilon.get<double>() >= 0) || !std::isfinite(epsilon.get<double>())) {
      fail(path, "layer_norm_eps is not a number of at least 0");
    }
    config.norm_epsilon = epsilon.get<double>();
  }
  return config;
}

}  // namespace polyhead::io
