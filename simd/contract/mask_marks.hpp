// What a mask kernel promises: it reads a boolean mask once and leaves a mark for each block of keys. See attention.hpp for
// what marks mean, and for the rules that every kernel keeps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyhead::simd {

// A mark is two bits. They are to be joined: a bit of keys_seen in one of them says that some of all their keys may be visible,
// keys_all in each of them that all are. A mark of no keys at all is keys_all, which joining leaves as it is.
constexpr std::uint8_t keys_seen = 1;  // the mask shows some key of the block; without it none
constexpr std::uint8_t keys_all = 2;   // the mask hides no key of the block

// Some queries and heads that see the keys [key_begin, key_end). Strides are in bytes and may be 0 or negative.
struct MaskMarksArgs {
  const std::uint8_t* mask = nullptr;  // byte at + t * stride + g * head_stride + s * key_stride; 0 hides
  std::ptrdiff_t stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t key_stride = 0;
  std::int64_t query_begin = 0, query_end = 0;
  std::int64_t heads = 1;
  std::int64_t key_begin = 0, key_end = 0;
  // One for every 64 keys (AttentionArgs::keys_per_mark), counted from key 0: what the keys come to is joined to the marks that
  // are there. Others are not touched.
  std::uint8_t* marks = nullptr;
};

struct MaskMarksKernel {
  const char* name;
  void (*run)(const MaskMarksArgs& args);
};

}  // namespace polyhead::simd
