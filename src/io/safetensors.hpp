// Reading safetensors files: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
//
// Nothing in the file is believed: the header must fit the file, every tensor's byte range must be what its shape and data type
// say, and the ranges together must cover the data exactly once. Whatever is wrong is an Error(io_error) that names the file,
// and where it makes sense the tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/array.hpp"
#include "io/file.hpp"

namespace polyhead::io {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses and checks a header against the number of data bytes that follow it. `path` is for messages.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

class SafetensorsFile {
 public:
  static constexpr std::uint64_t max_header_bytes = 100'000'000;

  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const noexcept { return file_.path(); }
  const std::map<std::string, SafetensorsEntry>& tensors() const noexcept { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  bool contains(const std::string& name) const { return header_.tensors.count(name) != 0; }

  // The tensor in its own data type. Errors: io_error (no such tensor, the file cannot be read), unsupported (a data type that
  // this library does not compute with).
  Array read(const std::string& name);
  // F32, F16 and BF16 tensors as f32, exactly. Errors: as read; unsupported for other data types.
  Array read_f32(const std::string& name);

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  InputFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace polyhead::io
