// Reading whole ranges of a regular file, with errors that name it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace polyhead::io {

// A regular file of a known size. Not for use by several threads at once. Data is read into the caller's memory, never mapped:
// a file that shrinks while it is open then gives an error and not a fault, and no payload has to be aligned in the file.
class InputFile {
 public:
  // Errors: io_error (absent, not a regular file, not readable).
  explicit InputFile(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }

  // Errors: io_error when [offset, offset + count) is not inside the file or cannot be read.
  void read(std::uint64_t offset, void* destination, std::size_t count);
  std::string read_text(std::uint64_t offset, std::size_t count);

  [[noreturn]] void fail(const std::string& what) const;  // io_error "<path>: <what>"

 private:
  std::string path_;
  std::uint64_t size_ = 0;
  std::ifstream stream_;
};

[[noreturn]] void fail(const std::string& path, const std::string& what);  // io_error "<path>: <what>"

// a * b in result; false when it does not fit 63 bits.
inline bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t* result) {
  constexpr std::uint64_t limit = ~std::uint64_t{0} >> 1;
  if (a > limit || (b != 0 && a > limit / b)) return false;
  *result = a * b;
  return true;
}

}  // namespace polyhead::io
