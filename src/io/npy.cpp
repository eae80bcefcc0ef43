#include "io/npy.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "io/file.hpp"
#include "polyhead/error.hpp"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are read and written in the machine's byte order, which must be little-endian"
#endif

namespace polyhead::io {
namespace {

struct Description {
  const char* text;
  DType dtype;
};
constexpr Description descriptions[] = {
    {"<f4", DType::f32}, {"<f2", DType::f16}, {"<f8", DType::f64}, {"|i1", DType::i8},
    {"|u1", DType::u8},  {"<i4", DType::i32}, {"<i8", DType::i64}, {"|b1", DType::boolean},
};
constexpr std::size_t alignment = 64;  // of the payload in files that are written
constexpr std::size_t max_header_bytes = std::size_t{1} << 20;

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, in any order of keys.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const InputFile& file) : text_(text), file_(file) {}

  void read(std::string* description, bool* fortran_order, std::vector<std::int64_t>* shape) {
    bool has_description = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !has_description) {
        if (peek() == '[' || peek() == '(') {
          throw Error(ErrorCode::unsupported, file_.path() + ": a structured data type, plain numbers were expected");
        }
        *description = quoted();
        has_description = true;
      } else if (key == "fortran_order" && !has_order) {
        *fortran_order = truth();
        has_order = true;
      } else if (key == "shape" && !has_shape) {
        *shape = tuple();
        has_shape = true;
      } else {
        bad("the key '" + key + "' is unknown or repeated");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (peek() != '\0') bad("text follows the closing brace");
    if (!has_description || !has_order || !has_shape) bad("descr, fortran_order and shape were expected");
  }

 private:
  char peek() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) ++position_;
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted) return false;
    ++position_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) bad(std::string("'") + wanted + "' was expected at byte " + std::to_string(position_));
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') bad("a quoted string was expected at byte " + std::to_string(position_));
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) bad("a string does not end");
    const std::string result(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return result;
  }
  bool truth() {
    peek();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    bad("fortran_order is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(number());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }
  std::int64_t number() {
    if (peek() < '0' || peek() > '9') bad("a size was expected at byte " + std::to_string(position_));
    std::uint64_t value = 0;
    for (; position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      const auto digit = static_cast<std::uint64_t>(text_[position_] - '0');
      if (!multiply(value, 10, &value) || value > static_cast<std::uint64_t>(INT64_MAX) - digit)
        bad("a size does not fit 63 bits");
      value += digit;
    }
    return static_cast<std::int64_t>(value);
  }
  [[noreturn]] void bad(const std::string& what) const { file_.fail("malformed .npy header: " + what); }

  std::string_view text_;
  const InputFile& file_;
  std::size_t position_ = 0;
};

std::optional<DType> dtype_of(const std::string& description) {
  for (const Description& known : descriptions) {
    if (description == known.text) return known.dtype;
    // One-byte types have no byte order; NumPy writes '|', '<' says the same.
    if (known.text[0] == '|' && description == std::string("<") + (known.text + 1)) return known.dtype;
  }
  return std::nullopt;
}

}  // namespace

Array read_npy(const std::string& path) {
  InputFile file(path);
  if (file.size() < 10) file.fail("is too short for an .npy file");
  unsigned char preamble[12] = {};
  file.read(0, preamble, 10);
  if (std::memcmp(preamble, "\x93NUMPY", 6) != 0) file.fail("is not an .npy file");
  const int version = preamble[6];
  if (version < 1 || version > 3)
    file.fail("has the .npy format version " + std::to_string(version) + ", 1 to 3 were expected");
  std::uint64_t header_begin = 10;
  std::size_t header_bytes = static_cast<std::size_t>(preamble[8]) | static_cast<std::size_t>(preamble[9]) << 8;
  if (version >= 2) {
    header_begin = 12;
    file.read(0, preamble, 12);
    header_bytes |= static_cast<std::size_t>(preamble[10]) << 16 | static_cast<std::size_t>(preamble[11]) << 24;
  }
  if (header_bytes > max_header_bytes) file.fail("has an .npy header of " + std::to_string(header_bytes) + " bytes");
  const std::string text = file.read_text(header_begin, header_bytes);

  std::string description;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  HeaderReader(text, file).read(&description, &fortran_order, &shape);

  const std::optional<DType> dtype = dtype_of(description);
  if (!dtype) {
    throw Error(ErrorCode::unsupported, path + ": has the data type '" + description +
                                            "', little-endian f2, f4, f8, i1, i4, i8, u1 or b1 was expected");
  }
  if (shape.size() > static_cast<std::size_t>(TensorView::max_rank)) {
    throw Error(ErrorCode::unsupported, path + ": has " + std::to_string(shape.size()) + " dimensions, at most " +
                                            std::to_string(TensorView::max_rank) + " are supported");
  }
  // The size is settled against the file before any memory is asked for.
  std::uint64_t span = static_cast<std::uint64_t>(size_in_bytes(*dtype));
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (!multiply(span, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &span)) {
      file.fail("has a shape whose size in bytes does not fit 63 bits");
    }
  }
  if (is_empty) span = 0;
  const std::uint64_t available = file.size() - header_begin - header_bytes;
  if (span != available) {
    file.fail("has " + std::to_string(available) + " bytes of data, its shape needs " + std::to_string(span));
  }
  Array array(*dtype, shape, fortran_order);
  if (span != 0) file.read(header_begin + header_bytes, array.data(), array.size_in_bytes());
  return array;
}

void write_npy(const std::string& path, const TensorView& tensor) {
  const auto known = std::find_if(std::begin(descriptions), std::end(descriptions),
                                  [&](const Description& description) { return description.dtype == tensor.dtype; });
  if (known == std::end(descriptions)) {
    throw Error(ErrorCode::unsupported, path + ": .npy files cannot hold " + std::string(name(tensor.dtype)));
  }
  std::string header = std::string("{'descr': '") + known->text + "', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < tensor.rank; ++i) {
    header += std::to_string(tensor.shape[static_cast<std::size_t>(i)]) + (tensor.rank == 1      ? ","
                                                                           : i + 1 < tensor.rank ? ", "
                                                                                                 : "");
  }
  header += "), }";
  header.append(alignment - 1 - (10 + header.size()) % alignment, ' ');  // at most a few hundred bytes: version 1 always does
  header += '\n';

  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  if (!stream) fail(path, "could not be opened for writing");
  const char preamble[10] = {
      '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  stream.write(preamble, sizeof preamble);
  stream.write(header.data(), static_cast<std::streamsize>(header.size()));

  // Row by row, through a buffer where the last dimension is not contiguous.
  const std::int64_t element = size_in_bytes(tensor.dtype);
  const int last = tensor.rank - 1;
  const std::int64_t row_length = tensor.rank == 0 ? 1 : tensor.shape[static_cast<std::size_t>(last)];
  const std::int64_t row_stride = tensor.rank == 0 ? 1 : tensor.strides[static_cast<std::size_t>(last)];
  const std::int64_t rows = row_length == 0 ? 0 : tensor.element_count() / row_length;
  std::vector<char> buffer(static_cast<std::size_t>(row_length * element));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t rest = row, offset = 0;
    for (int i = last - 1; i >= 0; --i) {
      const std::int64_t size = tensor.shape[static_cast<std::size_t>(i)];
      offset += rest % size * tensor.strides[static_cast<std::size_t>(i)];
      rest /= size;
    }
    const char* source = static_cast<const char*>(tensor.data) + offset * element;
    if (row_stride == 1 || row_length == 1) {
      stream.write(source, static_cast<std::streamsize>(buffer.size()));
      continue;
    }
    for (std::int64_t i = 0; i < row_length; ++i) {
      std::memcpy(buffer.data() + i * element, source + i * row_stride * element, static_cast<std::size_t>(element));
    }
    stream.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  }
  stream.close();
  if (!stream) fail(path, "could not be written");
}

}  // namespace polyhead::io
