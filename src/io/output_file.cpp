#include "io/output_file.hpp"

#include <filesystem>
#include <system_error>

#include "io/file.hpp"

namespace polyhead::io {

OutputFile::OutputFile(const std::string& path) : path_(path), partial_(path + ".partial") {
  stream_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!stream_) fail(partial_, "could not be opened for writing");
}

OutputFile::~OutputFile() {
  if (finished_) return;
  stream_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!stream_) fail(partial_, "could not be written: " + std::to_string(bytes) + " more bytes did not fit");
}

void OutputFile::finish() {
  stream_.close();
  if (!stream_) fail(partial_, "could not be written to its end");
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) fail(path_, "could not be put in place (" + error.message() + ")");
  finished_ = true;
}

}  // namespace polyhead::io
