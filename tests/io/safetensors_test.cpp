// The safetensors reader: what a good file gives, one crafted file per rule that a bad one breaks, and seeded mutations.
#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "polyhead/error.hpp"

namespace polyhead::io {
namespace {

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest()
      : path_((std::filesystem::temp_directory_path() / ("polyhead_safetensors_" + std::to_string(::getpid()) + ".bin"))
                  .string()) {}
  ~SafetensorsTest() override { std::filesystem::remove(path_); }

  static std::string file_of(const std::string& header, const std::string& data) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    return length + header + data;
  }
  static std::string bytes_of(const std::vector<float>& values) {
    std::string bytes(values.size() * 4, '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  void write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // The message of the io_error that opening these bytes gives; empty when there is none.
  std::string refusal(const std::string& bytes) {
    write(bytes);
    try {
      SafetensorsFile file(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io_error);
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos)
          << "the message does not name the file: " << error.what();
      return error.what();
    }
    return "";
  }
  void expect_refusal(const std::string& header, const std::string& data, const std::string& part) {
    const std::string message = refusal(file_of(header, data));
    EXPECT_NE(message.find(part), std::string::npos)
        << "header " << header.substr(0, 300) << "\nmessage '" << message << "' lacks '" << part << "'";
  }

  std::string path_;
};

const char two_tensors[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";

TEST_F(SafetensorsTest, ReadsAGoodFile) {
  write(file_of(two_tensors, bytes_of({1, 2, 3, 4})));
  SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const Array a = file.read_f32("a"), b = file.read("b");
  ASSERT_EQ(a.view().rank, 2);
  EXPECT_EQ(a.view().shape[1], 2);
  EXPECT_EQ(static_cast<const float*>(a.view().data)[1], 2);
  EXPECT_EQ(b.view().dtype, DType::f32);
  EXPECT_EQ(static_cast<const float*>(b.view().data)[0], 3);
}

TEST_F(SafetensorsTest, ReadsPayloadsAtAnyAlignment) {
  for (std::size_t padding = 0; padding < 8; ++padding) {
    write(file_of(two_tensors + std::string(padding, ' '), bytes_of({1, 2, 3, 4})));
    const Array b = SafetensorsFile(path_).read_f32("b");
    EXPECT_EQ(static_cast<const float*>(b.view().data)[1], 4) << "padding " << padding;
  }
}

TEST_F(SafetensorsTest, WidensHalfPrecisionExactly) {
  struct Case {
    std::uint16_t bits;
    float f16, bf16;
  };
  const float inf = HUGE_VALF;
  const Case cases[] = {{0x3c00, 1.0f, 0.0078125f},      {0xc000, -2.0f, -2.0f},
                        {0x7bff, 65504.0f, 1.30722e36f}, {0x0001, 0x1p-24f, 0x1p-133f},
                        {0x8000, -0.0f, -0.0f},          {0x7c00, inf, 0x1p121f},
                        {0x3e00, 1.5f, 0.125f},          {0x83ff, -0x1.ff8p-15f, -0x1.7fp-119f}};
  for (const Case& c : cases) {
    EXPECT_EQ(f16_to_f32(c.bits), c.f16) << std::hex << c.bits;
    EXPECT_EQ(std::signbit(f16_to_f32(c.bits)), std::signbit(c.f16));
  }
  EXPECT_TRUE(std::isnan(f16_to_f32(0x7e01)));
  EXPECT_EQ(bf16_to_f32(0x3f80), 1.0f);
  EXPECT_EQ(bf16_to_f32(0xc040), -3.0f);
  EXPECT_EQ(bf16_to_f32(0x7f80), inf);
  for (const char* dtype : {"F16", "BF16"}) {
    const bool is_half = dtype[0] == 'F';
    write(file_of(std::string(R"({"x":{"dtype":")") + dtype + R"(","shape":[2],"data_offsets":[0,4]}})",
                  is_half ? std::string("\x00\x3e\x00\xc0", 4) : std::string("\xc0\x3f\x00\xc0", 4)));
    const Array x = SafetensorsFile(path_).read_f32("x");
    EXPECT_EQ(static_cast<const float*>(x.view().data)[0], 1.5f);
    EXPECT_EQ(static_cast<const float*>(x.view().data)[1], -2.0f);
  }
}

TEST_F(SafetensorsTest, AcceptsTheEdgesOfTheFormat) {
  EXPECT_EQ(refusal(file_of("{}", "")), "");
  EXPECT_EQ(refusal(file_of(R"({"__metadata__":{}})", "")), "");
  EXPECT_EQ(refusal(file_of(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "abcd")), "");
  EXPECT_EQ(
      refusal(file_of(
          R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"s":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
          "x")),
      "");
  EXPECT_EQ(refusal(file_of(R"({"u":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}})", "abcd")), "");
  write(file_of(R"({"u":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}})", "abcd"));
  try {
    SafetensorsFile(path_).read("u");
    FAIL() << "U16 has no DType";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
  EXPECT_THROW(SafetensorsFile(path_).read("absent"), Error);
}

TEST_F(SafetensorsTest, RefusesBrokenEnvelopes) {
  EXPECT_NE(refusal("").find("too short"), std::string::npos);
  EXPECT_NE(refusal("1234567").find("too short"), std::string::npos);
  EXPECT_NE(refusal(std::string("\x05\0\0\0\0\0\0\0{}", 10)).find("header has 5 bytes"), std::string::npos);
  EXPECT_NE(refusal(std::string(8, '\xff') + "{}").find("18446744073709551615"), std::string::npos);
  EXPECT_NE(refusal(std::string(8, '\0')).find("does not begin"), std::string::npos);
  // A sparse file whose header would fit, but has no sane size.
  write(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));
  std::filesystem::resize_file(path_, 200'000'000);
  try {
    SafetensorsFile file(path_);
    FAIL() << "a header of 100000001 bytes was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at most 100000000"), std::string::npos) << error.what();
  }
  std::filesystem::remove(path_);
  EXPECT_THROW(SafetensorsFile{path_}, Error);
  EXPECT_THROW(SafetensorsFile{std::filesystem::temp_directory_path().string()}, Error);
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  expect_refusal("{", "", "not valid JSON");
  expect_refusal("[]", "", "does not begin");
  expect_refusal(" {}", "", "does not begin");
  expect_refusal("{}x", "", "not valid JSON");
  expect_refusal("{\"\xff\":1}", "", "not valid JSON");
  expect_refusal(R"({"a":1})", "", "a number");
  expect_refusal(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd",
      "'a' twice");
  expect_refusal(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd", "dtype twice");
  expect_refusal(R"({"__metadata__":{},"__metadata__":{}})", "", "__metadata__ twice");
  expect_refusal(R"({"__metadata__":{"k":"1","k":"2"}})", "", "'k' twice");
  expect_refusal(R"({"__metadata__":{"k":1}})", "", "a number");
  expect_refusal(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "abcd", "lacks dtype");
  expect_refusal(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "abcd", "lacks shape");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1]}})", "abcd", "lacks data_offsets");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", "abcd", "unknown field 'x'");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd", "a negative number");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "abcd", "a fraction");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1e30],"data_offsets":[0,4]}})", "abcd", "a fraction");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "abcd", "an array");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "abcd", "1 data_offsets");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "abcd", "more than 2");
  expect_refusal(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", "abcd", "more than 8 dimensions");
  expect_refusal(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "abcd", "unknown dtype 'F33'");
  const std::string deep(100'000, '[');
  expect_refusal(R"({"a":)" + deep, "", "an array");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += R"({"a":)";
  expect_refusal(nested, "", "unknown field 'a'");
}

TEST_F(SafetensorsTest, RefusesBrokenRanges) {
  const auto one = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  expect_refusal(one("F32", "[1000,1000]", "[0,4]"), "abcd", "need 4000000");
  expect_refusal(one("F32", "[1000,1000]", "[0,4000000]"), "abcd", "of 4 bytes of data");
  expect_refusal(one("F64", "[4]", "[0,16]"), std::string(16, 'x'), "need 32");
  expect_refusal(one("F32", "[1]", "[4,0]"), "abcd", "ends before");
  expect_refusal(one("F32", "[1]", "[18446744073709551615,4]"), "abcd", "above 2^63");
  expect_refusal(one("F32", "[4294967296,4294967296]", "[0,4]"), "abcd", "63 bits");
  expect_refusal(one("F32", "[4611686018427387905]", "[0,4]"), "abcd", "63 bits");  // 4 n wraps to 4
  expect_refusal(one("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), "", "63 bits");
  expect_refusal(one("F32", "[1]", "[0,4]"), "abcdefgh", "has 8 bytes of data, its tensors cover 4");
  expect_refusal(one("F32", "[1]", "[4,8]"), "abcdefgh", "after a gap");
  expect_refusal(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
                 "abcd", "inside another tensor");
  expect_refusal(R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[2,6]}})",
                 "abcdef", "inside another tensor");
  expect_refusal(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[2],"data_offsets":[4,6]}})",
                 "abcdef", "after a gap");
  expect_refusal("{}", "x", "tensors cover 0");
}

// Whatever a mutation makes of a file, opening it and reading all of it either works or throws Error; nothing else escapes.
TEST_F(SafetensorsTest, SurvivesMutations) {
  const std::string good = file_of(two_tensors, bytes_of({1, 2, 3, 4}));
  std::mt19937 random(20240229);
  const char alphabet[] = "{}[]\",:0123456789-+.eEFIBSU\\\n \xff";
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    const unsigned edits = 1 + random() % 4;
    for (unsigned edit = 0; edit < edits && !bytes.empty(); ++edit) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 6) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = alphabet[random() % (sizeof alphabet - 1)];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40));
          break;
        case 4:
          bytes.resize(at);
          break;
        default:
          bytes[random() % std::min<std::size_t>(8, bytes.size())] ^= static_cast<char>(1u << (random() % 8));
          break;
      }
    }
    write(bytes);
    try {
      SafetensorsFile file(path_);
      for (const auto& named : file.tensors()) file.read(named.first);
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1500);
  EXPECT_GT(accepted, 10);  // a flipped payload byte is still a good file
}

}  // namespace
}  // namespace polyhead::io
