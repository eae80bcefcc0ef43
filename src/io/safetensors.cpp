#include "io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

struct FileDType {
  const char* name;
  std::uint64_t bytes;
  std::optional<DType> ours;
};

// The format's whole-byte data types. Those without one of ours can be listed, but not read.
constexpr std::optional<DType> none = std::nullopt;
const FileDType file_dtypes[] = {
    {"F64", 8, DType::f64}, {"F32", 4, DType::f32}, {"F16", 2, DType::f16}, {"BF16", 2, DType::bf16},    {"I64", 8, DType::i64},
    {"I32", 4, DType::i32}, {"I8", 1, DType::i8},   {"U8", 1, DType::u8},   {"BOOL", 1, DType::boolean}, {"I16", 2, none},
    {"U16", 2, none},       {"U32", 4, none},       {"U64", 8, none},       {"F8_E5M2", 1, none},        {"F8_E4M3", 1, none},
};

const FileDType* find_dtype(const std::string& name) {
  for (const FileDType& dtype : file_dtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

// Accepts exactly the header's grammar, event by event:
//     { "__metadata__": {string: string ...}, name: {"dtype": string, "shape": [n ...], "data_offsets": [begin, end]} ... }
// A document tree would merge repeated names silently and build whatever nesting it is given.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafetensorsHeader* header) : header_(header) {}

  const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::document:
        state_ = State::names;
        return true;
      case State::tensor_value:
        state_ = State::fields;
        return true;
      case State::metadata_value:
        state_ = State::metadata;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::names:
        state_ = State::end;
        return true;
      case State::metadata:
        state_ = State::names;
        return true;
      case State::fields:
        if (!has_dtype_ || !has_shape_ || !has_offsets_) {
          return refuse(std::string("lacks ") + (!has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets"));
        }
        header_->tensors.emplace(name_, std::move(entry_));
        state_ = State::names;
        return true;
      default:
        return unexpected("the end of an object");
    }
  }

  bool key(std::string& text) override {
    if (state_ == State::names) return tensor_name(text);
    if (state_ == State::fields) return field_name(text);
    if (state_ == State::metadata) {
      if (!header_->metadata.emplace(text, "").second) return refuse("names the key '" + text + "' twice");
      metadata_key_ = text;
      state_ = State::metadata_text;
      return true;
    }
    return unexpected("a name");
  }

  bool string(std::string& text) override {
    if (state_ == State::metadata_text) {
      header_->metadata[metadata_key_] = text;
      state_ = State::metadata;
      return true;
    }
    if (state_ == State::dtype) {
      entry_.dtype = text;
      has_dtype_ = true;
      state_ = State::fields;
      return true;
    }
    return unexpected("a string");
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape)
      state_ = State::shape_items;
    else if (state_ == State::offsets)
      state_ = State::offset_items;
    else
      return unexpected("an array");
    return true;
  }

  bool end_array() override {
    if (state_ == State::shape_items) {
      has_shape_ = true;
    } else if (state_ == State::offset_items) {
      if (offset_count_ != 2) return refuse("has " + std::to_string(offset_count_) + " data_offsets, 2 were expected");
      has_offsets_ = true;
    } else {
      return unexpected("the end of an array");
    }
    state_ = State::fields;
    return true;
  }

  bool number_unsigned(std::uint64_t number) override {
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return refuse("has a number above 2^63 - 1");
    if (state_ == State::shape_items) {
      if (entry_.shape.size() == TensorView::max_rank) {
        return refuse("has more than " + std::to_string(TensorView::max_rank) + " dimensions");
      }
      entry_.shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (state_ == State::offset_items) {
      if (offset_count_ == 2) return refuse("has more than 2 data_offsets");
      (offset_count_ == 0 ? entry_.begin : entry_.end) = number;
      ++offset_count_;
      return true;
    }
    return unexpected("a number");
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return unexpected("a fraction or a number above 2^64"); }
  bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    error_ = "header is not valid JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  enum class State {
    document,
    names,
    tensor_value,
    fields,
    dtype,
    shape,
    shape_items,
    offsets,
    offset_items,
    metadata_value,
    metadata,
    metadata_text,
    end
  };

  bool tensor_name(const std::string& text) {
    if (text == "__metadata__") {
      if (has_metadata_) return refuse_header("has __metadata__ twice");
      has_metadata_ = true;
      name_ = text;
      state_ = State::metadata_value;
      return true;
    }
    if (header_->tensors.count(text) != 0) return refuse_header("names the tensor '" + text + "' twice");
    name_ = text;
    entry_ = {};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offset_count_ = 0;
    state_ = State::tensor_value;
    return true;
  }

  bool field_name(const std::string& text) {
    const bool repeated =
        (text == "dtype" && has_dtype_) || (text == "shape" && has_shape_) || (text == "data_offsets" && has_offsets_);
    if (repeated) return refuse("has the field " + text + " twice");
    if (text == "dtype")
      state_ = State::dtype;
    else if (text == "shape")
      state_ = State::shape;
    else if (text == "data_offsets")
      state_ = State::offsets;
    else
      return refuse("has the unknown field '" + text + "'");
    return true;
  }

  bool refuse(const std::string& what) {
    error_ = "tensor '" + name_ + "' " + what;
    return false;
  }
  bool refuse_header(const std::string& what) {
    error_ = "header " + what;
    return false;
  }
  bool unexpected(const char* what) {
    error_ = std::string("header has ") + what + " where the format has none" +
             (name_.empty() ? "" : ", at or after '" + name_ + "'");
    return false;
  }

  SafetensorsHeader* header_;
  State state_ = State::document;
  std::string name_, metadata_key_, error_;
  SafetensorsEntry entry_;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

void check_entry(const std::string& name, const SafetensorsEntry& entry, std::uint64_t data_bytes, const std::string& path) {
  const std::string what = "tensor '" + name + "' ";
  const FileDType* dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) fail(path, what + "has the unknown dtype '" + entry.dtype + "'");
  // Zero sizes don't excuse the others: the product of what is not zero must fit, too.
  std::uint64_t span = dtype->bytes;
  bool is_empty = false;
  for (const std::int64_t size : entry.shape) {
    is_empty = is_empty || size == 0;
    if (!multiply(span, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &span)) {
      fail(path, what + "has a shape whose size in bytes does not fit 63 bits");
    }
  }
  if (is_empty) span = 0;
  if (entry.begin > entry.end) {
    fail(path, what + "begins at byte " + std::to_string(entry.begin) + " and ends before, at " + std::to_string(entry.end));
  }
  if (entry.end > data_bytes) {
    fail(path, what + "ends at byte " + std::to_string(entry.end) + " of " + std::to_string(data_bytes) + " bytes of data");
  }
  if (entry.end - entry.begin != span) {
    fail(path,
         what + "has " + std::to_string(entry.end - entry.begin) + " bytes, its shape and dtype need " + std::to_string(span));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path) {
  if (json.empty() || json.front() != '{') fail(path, "header does not begin with '{'");
  SafetensorsHeader header;
  HeaderReader reader(&header);
  bool accepted = false;
  try {
    accepted = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  } catch (const nlohmann::json::exception& exception) {
    fail(path, std::string("header could not be parsed: ") + exception.what());
  }
  if (!accepted) fail(path, reader.error().empty() ? "header could not be parsed" : reader.error());

  using Named = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Named*> in_order;
  for (const Named& named : header.tensors) {
    check_entry(named.first, named.second, data_bytes, path);
    in_order.push_back(&named);
  }
  // With every range known to be inside the data, the sorted ranges must follow each other without a gap or an overlap.
  std::sort(in_order.begin(), in_order.end(), [](const Named* a, const Named* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t expected = 0;
  for (const Named* named : in_order) {
    const std::uint64_t begin = named->second.begin;
    if (begin != expected) {
      fail(path, "tensor '" + named->first + "' begins at byte " + std::to_string(begin) + " of the data, " +
                     (begin < expected ? "inside another tensor" : "after a gap") + "; " + std::to_string(expected) +
                     " was expected");
    }
    expected = named->second.end;
  }
  if (expected != data_bytes) {
    fail(path, "has " + std::to_string(data_bytes) + " bytes of data, its tensors cover " + std::to_string(expected));
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  if (file_.size() < 8) file_.fail("is too short for a safetensors file");
  unsigned char bytes[8];
  file_.read(0, bytes, sizeof bytes);
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = (header_bytes << 8) | bytes[i];
  if (header_bytes > file_.size() - 8) {
    file_.fail("says its header has " + std::to_string(header_bytes) + " bytes, the file has " + std::to_string(file_.size()));
  }
  if (header_bytes > max_header_bytes) {
    file_.fail("has a header of " + std::to_string(header_bytes) + " bytes, at most " + std::to_string(max_header_bytes) +
               " are accepted");
  }
  data_begin_ = 8 + header_bytes;
  header_ =
      parse_safetensors_header(file_.read_text(8, static_cast<std::size_t>(header_bytes)), file_.size() - data_begin_, path);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) file_.fail("has no tensor '" + name + "'");
  return found->second;
}

Array SafetensorsFile::read(const std::string& name) {
  const SafetensorsEntry& tensor = entry(name);
  const FileDType* dtype = find_dtype(tensor.dtype);
  if (!dtype->ours) throw Error(ErrorCode::unsupported, path() + ": tensor '" + name + "' has the dtype " + tensor.dtype);
  Array array(*dtype->ours, tensor.shape);
  if (array.size_in_bytes() != 0) file_.read(data_begin_ + tensor.begin, array.data(), array.size_in_bytes());
  return array;
}

Array SafetensorsFile::read_f32(const std::string& name) {
  Array source = read(name);
  const DType dtype = source.view().dtype;
  if (dtype == DType::f32) return source;
  if (dtype != DType::f16 && dtype != DType::bf16) {
    throw Error(ErrorCode::unsupported,
                path() + ": tensor '" + name + "' has the dtype " + entry(name).dtype + ", F32, F16 or BF16 was expected");
  }
  Array converted(DType::f32, entry(name).shape);
  const std::size_t count = source.size_in_bytes() / 2;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, source.data() + 2 * i, sizeof bits);
    const float value = dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    std::memcpy(converted.data() + 4 * i, &value, sizeof value);
  }
  return converted;
}

}  // namespace polyhead::io
