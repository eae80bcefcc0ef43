#include "io/file.hpp"

#include <filesystem>
#include <system_error>

#include "polyhead/error.hpp"

namespace polyhead::io {

void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::io_error, path + ": " + what);
}

InputFile::InputFile(const std::string& path) : path_(path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail("no such file");
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  size_ = std::filesystem::file_size(path, error);
  if (error) fail("its size could not be read (" + error.message() + ")");
  stream_.open(path, std::ios::binary);
  if (!stream_) fail("could not be opened for reading");
}

void InputFile::read(std::uint64_t offset, void* destination, std::size_t count) {
  if (offset > size_ || count > size_ - offset) {
    fail("ends at byte " + std::to_string(size_) + ", bytes " + std::to_string(offset) + " .. " +
         std::to_string(offset + count) + " were expected");
  }
  stream_.clear();
  stream_.seekg(static_cast<std::streamoff>(offset));
  stream_.read(static_cast<char*>(destination), static_cast<std::streamsize>(count));
  if (!stream_ || static_cast<std::size_t>(stream_.gcount()) != count) {
    fail("could not read " + std::to_string(count) + " bytes at byte " + std::to_string(offset));
  }
}

std::string InputFile::read_text(std::uint64_t offset, std::size_t count) {
  if (offset > size_ || count > size_ - offset) fail("is shorter than its header says");
  std::string text(count, '\0');
  read(offset, text.data(), count);
  return text;
}

void InputFile::fail(const std::string& what) const {
  io::fail(path_, what);
}

}  // namespace polyhead::io
