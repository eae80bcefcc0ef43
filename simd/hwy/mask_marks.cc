// mask_marks: reads a boolean mask once and marks the blocks of keys that it hides or shows whole.
#include "simd/contract/mask_marks.hpp"

#include "simd/contract/attention.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/kernel_name.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kMarkKeys = AttentionArgs::keys_per_mark;

// A byte of 0 among `least` is a hidden key's, a byte other than 0 among `most` a visible one's.
struct Bytes {
  std::uint8_t least = 0xFF, most = 0;

  bool Mixed() const { return least == 0 && most != 0; }
  std::uint8_t Mark() const { return static_cast<std::uint8_t>((most != 0 ? keys_seen : 0) | (least != 0 ? keys_all : 0)); }
};

static HWY_INLINE void ReadKeys(const std::uint8_t* row, std::ptrdiff_t key_stride, std::int64_t keys, Bytes& bytes) {
  for (std::int64_t key = 0; key < keys; ++key) {
    const std::uint8_t byte = *Offset(row, key * key_stride);
    bytes.least = HWY_MIN(bytes.least, byte);
    bytes.most |= byte;
  }
}

// Rows of 64 neighbouring bytes.
static HWY_INLINE void ReadWholeRows(const std::uint8_t* HWY_RESTRICT row, std::ptrdiff_t stride, std::int64_t rows,
                                     Bytes& bytes) {
  const hn::CappedTag<std::uint8_t, static_cast<size_t>(kMarkKeys)> d;
  const size_t lanes = hn::Lanes(d);
  auto least = hn::Set(d, bytes.least), most = hn::Set(d, bytes.most);
  for (std::int64_t i = 0; i < rows; ++i, row = Offset(row, stride)) {
    for (size_t key = 0; key < static_cast<size_t>(kMarkKeys); key += lanes) {
      const auto v = hn::LoadU(d, row + key);
      least = hn::Min(least, v);
      most = hn::Or(most, v);
    }
  }
  const auto zero = hn::Zero(d);
  bytes.least = hn::AllFalse(d, hn::Eq(least, zero)) ? 0xFF : 0;
  bytes.most = hn::AllTrue(d, hn::Eq(most, zero)) ? 0 : 0xFF;
}

// The keys [begin, end) of one block, for every query and head. One row tells most blocks of mixed masks for what they are.
static HWY_INLINE std::uint8_t MarkOf(const MaskMarksArgs& args, std::int64_t begin, std::int64_t end) {
  Bytes bytes;
  const std::int64_t rows = args.query_end - args.query_begin;
  for (std::int64_t g = 0; g < args.heads; ++g) {
    const std::uint8_t* row =
        Offset(args.mask, args.query_begin * args.stride + g * args.head_stride + begin * args.key_stride);
    if (args.key_stride == 1 && end - begin == kMarkKeys) {
      ReadWholeRows(row, args.stride, 1, bytes);
      if (rows == 1) continue;
      if (bytes.Mixed()) return bytes.Mark();
      ReadWholeRows(Offset(row, args.stride), args.stride, rows - 1, bytes);
    } else {
      const std::int64_t keys = args.key_stride == 0 ? 1 : end - begin;
      for (std::int64_t i = 0; i < rows && !bytes.Mixed(); ++i)
        ReadKeys(Offset(row, i * args.stride), args.key_stride, keys, bytes);
    }
    if (bytes.Mixed()) break;
  }
  return bytes.Mark();
}

static void MarkMask(const MaskMarksArgs& args) {
  if (args.query_begin >= args.query_end || args.heads <= 0) return;
  for (std::int64_t key = args.key_begin; key < args.key_end;) {
    const std::int64_t mark = key / kMarkKeys, end = HWY_MIN(args.key_end, (mark + 1) * kMarkKeys);
    const std::uint8_t now = MarkOf(args, key, end), before = args.marks[mark];
    args.marks[mark] = static_cast<std::uint8_t>(((now | before) & keys_seen) | (now & before & keys_all));
    key = end;
  }
}

}  // namespace

extern const MaskMarksKernel mask_marks;
const MaskMarksKernel mask_marks = {POLYHEAD_KERNEL_NAME("mask_marks"), &MarkMask};

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
