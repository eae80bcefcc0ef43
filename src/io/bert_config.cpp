#include "io/bert_config.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/file.hpp"
#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

constexpr std::uint64_t max_bytes = 16 << 20;
constexpr int max_nesting = 64;
constexpr std::int64_t max_size = 1 << 28;  // of any one dimension: far above any model, far below any overflow

// One field of the outermost object.
struct Field {
  enum class Type { null, boolean, whole, fraction, text, list, object };
  Type type = Type::null;
  bool truth = false;
  std::int64_t whole = 0;
  double number = 0;  // of whole numbers and fractions
  std::string text;   // of texts; of a list, its first item if that is one
  std::string shown;  // in messages
};

// Keeps the outermost object's fields, event by event; what is further in is read and passed over. A document tree would weigh
// a tenth of the smallest library.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool is_object() const { return is_object_; }
  bool nests_too_deeply() const { return depth_ > max_nesting; }
  std::map<std::string, Field>& fields() { return fields_; }

  bool start_object(std::size_t) override {
    if (depth_ == 0) is_object_ = true;
    return start(Field::Type::object, "an object");
  }
  bool start_array(std::size_t) override { return start(Field::Type::list, "a list"); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& name) override {
    if (depth_ == 1) field_ = &(fields_[name] = Field());
    return true;
  }
  bool null() override { return put({Field::Type::null, false, 0, 0, "", "null"}); }
  bool boolean(bool truth) override { return put({Field::Type::boolean, truth, 0, 0, "", truth ? "true" : "false"}); }
  bool number_integer(std::int64_t number) override {
    return put({Field::Type::whole, false, number, static_cast<double>(number), "", std::to_string(number)});
  }
  bool number_unsigned(std::uint64_t number) override {
    if (number <= static_cast<std::uint64_t>(INT64_MAX)) return number_integer(static_cast<std::int64_t>(number));
    return number_float(static_cast<double>(number), std::to_string(number));
  }
  bool number_float(double number, const std::string& text) override {
    return put({Field::Type::fraction, false, 0, number, "", text});
  }
  bool string(std::string& text) override { return put({Field::Type::text, false, 0, 0, text, "'" + text + "'"}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return is_object_ = false; }

 private:
  bool start(Field::Type type, const char* shown) {
    if (depth_ == 1) put({type, false, 0, 0, "", shown});
    before_first_item_ = depth_ == 1;
    return ++depth_ <= max_nesting;
  }
  bool end() {
    --depth_;
    return true;
  }
  bool put(Field field) {
    if (depth_ == 1 && field_) *field_ = std::move(field);
    if (depth_ == 2 && before_first_item_ && field_ && field_->type == Field::Type::list) field_->text = field.text;
    before_first_item_ = false;
    return true;
  }

  std::map<std::string, Field> fields_;
  Field* field_ = nullptr;  // whose value comes next, or whose list is being read
  int depth_ = 0;
  bool is_object_ = false, before_first_item_ = false;
};

class Fields {
 public:
  explicit Fields(const std::string& path) : path_(path) {
    InputFile file(path);
    if (file.size() > max_bytes) file.fail("has " + std::to_string(file.size()) + " bytes, too many for a model configuration");
    const std::string text = file.read_text(0, static_cast<std::size_t>(file.size()));
    FieldReader reader;
    nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &reader);
    if (reader.nests_too_deeply()) file.fail("nests more than " + std::to_string(max_nesting) + " levels deep");
    if (!reader.is_object()) file.fail("is not a JSON object");
    fields_ = std::move(reader.fields());
  }

  // Null where there is no such field, or its value is null.
  const Field* find(const char* name) const {
    const auto found = fields_.find(name);
    return found == fields_.end() || found->second.type == Field::Type::null ? nullptr : &found->second;
  }

  std::int64_t size(const char* name) const {
    const Field* field = find(name);
    if (!field) fail(path_, std::string("has no ") + name);
    if (field->type != Field::Type::whole || field->whole < 1 || field->whole > max_size) {
      fail(path_, std::string(name) + " is " + field->shown + ", a whole number from 1 was expected");
    }
    return field->whole;
  }
  std::string text(const char* name, const char* otherwise) const {
    const Field* field = find(name);
    if (!field) return otherwise;
    if (field->type != Field::Type::text) fail(path_, std::string(name) + " is not a string");
    return field->text;
  }
  bool truth(const char* name) const {
    const Field* field = find(name);
    if (!field) return false;
    if (field->type != Field::Type::boolean) fail(path_, std::string(name) + " is neither true nor false");
    return field->truth;
  }

 private:
  std::string path_;
  std::map<std::string, Field> fields_;
};

void require_bert(const Fields& fields, const std::string& path) {
  const auto unsupported = [&](const std::string& what) { throw Error(ErrorCode::unsupported, path + ": " + what); };
  if (fields.find("model_type")) {
    const std::string type = fields.text("model_type", "");
    if (type != "bert") unsupported("model_type is '" + type + "', 'bert' was expected");
  } else {
    // Old configurations have no model_type; the class name tells.
    const Field* architectures = fields.find("architectures");
    const std::string architecture = architectures && architectures->type == Field::Type::list ? architectures->text : "";
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
  config.token_types = fields.find("type_vocab_size") ? fields.size("type_vocab_size") : 2;
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
  if (const Field* epsilon = fields.find("layer_norm_eps")) {
    const bool is_number = epsilon->type == Field::Type::whole || epsilon->type == Field::Type::fraction;
    if (!is_number || !(epsilon->number >= 0) || !std::isfinite(epsilon->number)) {
      fail(path, "layer_norm_eps is not a number of at least 0");
    }
    config.norm_epsilon = epsilon->number;
  }
  return config;
}

}  // namespace polyhead::io
