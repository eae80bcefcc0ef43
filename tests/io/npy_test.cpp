// .npy files: round trips over types and strides, files as NumPy writes them, and what is refused.
#include "io/npy.hpp"

#include <gtest/gtest.h>

#include <unistd.h>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

class NpyTest : public ::testing::Test {
 protected:
  NpyTest()
      : path_((std::filesystem::temp_directory_path() / ("polyhead_npy_" + std::to_string(::getpid()) + ".npy")).string()) {}
  ~NpyTest() override { std::filesystem::remove(path_); }

  static std::string file_of(int version, const std::string& header, const std::string& data) {
    std::string bytes("\x93NUMPY", 6);
    bytes += static_cast<char>(version);
    bytes += '\0';
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> (8 * i));
    return bytes + header + data;
  }
  void write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::pair<ErrorCode, std::string> refusal(const std::string& bytes) {
    write(bytes);
    try {
      read_npy(path_);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
      return {error.code(), error.what()};
    }
    return {ErrorCode::ok, ""};
  }
  void expect_refusal(const std::string& bytes, ErrorCode code, const std::string& part) {
    const auto [found, message] = refusal(bytes);
    EXPECT_EQ(found, code) << message;
    EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
  }

  std::string path_;
};

TEST_F(NpyTest, RoundTripsEveryType) {
  for (const DType dtype : {DType::f32, DType::f16, DType::f64, DType::i8, DType::u8, DType::i32, DType::i64, DType::boolean}) {
    const auto element = static_cast<std::size_t>(size_in_bytes(dtype));
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {3}, {0}, {2, 3}, {2, 0, 3}, {1, 2, 1, 3, 1, 2, 1, 2}}) {
      Array array(dtype, shape);
      for (std::size_t i = 0; i < array.size_in_bytes(); ++i) array.data()[i] = static_cast<std::byte>(i * 37 % 251);
      write_npy(path_, array.view());
      EXPECT_EQ((std::filesystem::file_size(path_) - array.size_in_bytes()) % 64, 0u);
      const Array again = read_npy(path_);
      ASSERT_EQ(again.view().dtype, dtype);
      ASSERT_EQ(again.view().rank, static_cast<int>(shape.size()));
      for (std::size_t i = 0; i < shape.size(); ++i) EXPECT_EQ(again.view().shape[i], shape[i]);
      ASSERT_EQ(again.size_in_bytes(), array.size_in_bytes()) << name(dtype) << " of " << element;
      EXPECT_EQ(std::memcmp(again.data(), array.data(), array.size_in_bytes()), 0) << name(dtype);
    }
  }
}

TEST_F(NpyTest, WritesStridedViewsInCOrder) {
  const std::vector<std::int32_t> values = {0, 1, 2, 3, 4, 5};
  TensorView transposed(values.data(), DType::i32, {2, 3});
  std::swap(transposed.shape[0], transposed.shape[1]);
  std::swap(transposed.strides[0], transposed.strides[1]);
  write_npy(path_, transposed);
  const Array array = read_npy(path_);
  const auto* read = static_cast<const std::int32_t*>(array.view().data);
  EXPECT_EQ(std::vector<std::int32_t>(read, read + 6), (std::vector<std::int32_t>{0, 3, 1, 4, 2, 5}));

  TensorView reversed(values.data() + 5, DType::i32, {6});
  reversed.strides[0] = -1;
  write_npy(path_, reversed);
  EXPECT_EQ(static_cast<const std::int32_t*>(read_npy(path_).view().data)[0], 5);
}

TEST_F(NpyTest, ReadsWhatNumPyWrites) {
  const std::string data = "\x01\x02\x03\x04\x05\x06";
  for (int version = 1; version <= 3; ++version) {
    for (const char* header : {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }   \n",
                               "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<u1\"}"}) {
      write(file_of(version, header, data));
      const Array array = read_npy(path_);
      EXPECT_EQ(array.view().dtype, DType::u8);
      EXPECT_EQ(array.view().strides[0], 3);
      EXPECT_EQ(static_cast<const std::uint8_t*>(array.view().data)[5], 6);
    }
  }
  write(file_of(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n", data));
  const Array fortran = read_npy(path_);
  EXPECT_EQ(fortran.view().strides[0], 1);
  EXPECT_EQ(fortran.view().strides[1], 2);
  write(file_of(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }\n", data));
  EXPECT_EQ(read_npy(path_).view().rank, 1);
}

TEST_F(NpyTest, RefusesWhatIsWrong) {
  const auto header = [](const std::string& descr, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n";
  };
  expect_refusal("", ErrorCode::io_error, "too short");
  expect_refusal("NUMPYNUMPYNUMPY", ErrorCode::io_error, "not an .npy file");
  expect_refusal(file_of(4, header("'<f4'", "(1,)"), "abcd"), ErrorCode::io_error, "version 4");
  expect_refusal(file_of(1, header("'>f4'", "(1,)"), "abcd"), ErrorCode::unsupported, "'>f4'");
  expect_refusal(file_of(1, header("'<c8'", "(1,)"), "abcdefgh"), ErrorCode::unsupported, "'<c8'");
  expect_refusal(file_of(1, header("[('x', '<f4')]", "(1,)"), "abcd"), ErrorCode::unsupported, "structured");
  expect_refusal(file_of(1, header("'|u1'", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "a"), ErrorCode::unsupported, "9 dimensions");
  expect_refusal(file_of(1, header("'<f4'", "(2,)"), "abcd"), ErrorCode::io_error, "needs 8");
  expect_refusal(file_of(1, header("'<f4'", "(1,)"), "abcdefgh"), ErrorCode::io_error, "has 8 bytes of data");
  expect_refusal(file_of(1, header("'<f4'", "(4611686018427387905,)"), "abcd"), ErrorCode::io_error, "63 bits");
  expect_refusal(file_of(1, header("'<f4'", "(99999999999999999999,)"), "abcd"), ErrorCode::io_error, "63 bits");
  expect_refusal(file_of(1, header("'<f4'", "(-1,)"), "abcd"), ErrorCode::io_error, "a size was expected");
  expect_refusal(file_of(1, header("'<f4'", "1"), "abcd"), ErrorCode::io_error, "'('");
  expect_refusal(file_of(1, "{'descr': '<f4', 'shape': (1,), }", "abcd"), ErrorCode::io_error, "were expected");
  expect_refusal(file_of(1, "{'descr': '<f4', 'descr': '<f4', }", "abcd"), ErrorCode::io_error, "repeated");
  expect_refusal(file_of(1, "{'descr': '<f4', 'fortran_order': Maybe}", "abcd"), ErrorCode::io_error, "neither True nor False");
  expect_refusal(file_of(1, "{'descr': '<f4", "abcd"), ErrorCode::io_error, "does not end");
  expect_refusal(file_of(1, header("'<f4'", "(1,)") + "x", "abcd"), ErrorCode::io_error, "follows the closing brace");
  expect_refusal(file_of(2, "", "").substr(0, 8) + std::string(4, '\xff'), ErrorCode::io_error, "header of 4294967295");
  const TensorView bf16(path_.data(), DType::bf16, {1});
  EXPECT_THROW(write_npy(path_, bf16), Error);
  EXPECT_THROW(write_npy("/nonexistent/folder/x.npy", TensorView(path_.data(), DType::u8, {1})), Error);
  EXPECT_THROW(read_npy("/nonexistent/folder/x.npy"), Error);
}

TEST_F(NpyTest, SurvivesMutations) {
  const std::string good = file_of(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", std::string(24, 'x'));
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    for (unsigned edit = 0; edit < 1 + random() % 3; ++edit) {
      const std::size_t at = random() % bytes.size();
      if (random() % 4 == 0)
        bytes.resize(at + 1);
      else if (random() % 3 == 0)
        bytes.erase(at == 0 ? 1 : at, 1);
      else
        bytes[at] = static_cast<char>(random());
    }
    write(bytes);
    try {
      read_npy(path_);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace polyhead::io
