// Writing a file that is either complete or not there.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace polyhead::io {

// Written beside its place, under its name and ".partial"; finish() moves it there, and replaces what was there. Without
// finish() nothing is left behind.
class OutputFile {
 public:
  // Errors: io_error, as for all calls.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void finish();

 private:
  std::string path_, partial_;
  std::ofstream stream_;
  bool finished_ = false;
};

}  // namespace polyhead::io
