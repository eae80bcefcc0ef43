// What kernels ask about one key block before they compute with it: limits relative to it, its keys' mask and bias, the state
// of its V.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/key_run-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// A limit relative to a key block fits 32 bits once it is clamped: rows of a tile and keys of a block are far fewer than 2^30.
inline std::int32_t ClampLimit(std::int64_t limit) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  return static_cast<std::int32_t>(limit < -kFar ? -kFar : limit > kFar ? kFar : limit);
}

// The marks of a call that has some, as they stand to queries [t_first, t_last].
class MarksOfRows {
 public:
  MarksOfRows(const AttentionF32Args& args, std::int64_t t_first, std::int64_t t_last) : stride_(args.mark_stride) {
    constexpr std::int64_t kQueries = AttentionF32Args::queries_per_mark;
    marks_ = args.key_marks;
    if (stride_ == 0) return;
    marks_ = Offset(marks_, t_first / kQueries * stride_);
    rows_ = t_last / kQueries - t_first / kQueries + 1;
  }

  // Of the keys from `mark` * keys_per_mark on that a mark stands for.
  std::uint8_t At(std::int64_t mark) const {
    const std::uint8_t* at = marks_ + mark;
    std::uint8_t any = *at, all = *at;
    for (std::int64_t row = 1; row < rows_; ++row) {
      at = Offset(at, stride_);
      any |= *at;
      all &= *at;
    }
    return Joined(any, all);
  }

  // Of the keys [key, end), and of what shares marks with them.
  std::uint8_t Of(std::int64_t key, std::int64_t end) const {
    std::uint8_t any = 0, all = keys_all;
    for (std::int64_t mark = key / kKeys; mark * kKeys < end; ++mark) {
      const std::uint8_t now = At(mark);
      any |= now;
      all &= now;
    }
    return Joined(any, all);
  }

  // Takes keys that none of the queries sees off both ends of [begin, end), which count from `key`, a multiple of
  // keys_per_mark.
  void Narrow(std::int64_t key, std::int64_t& begin, std::int64_t& end) const {
    const std::int64_t first = key / kKeys;
    while (begin < end && !(At(first + begin / kKeys) & keys_seen)) begin = (begin / kKeys + 1) * kKeys;
    while (begin < end && !(At(first + (end - 1) / kKeys) & keys_seen)) end = (end - 1) / kKeys * kKeys;
  }

 private:
  static constexpr std::int64_t kKeys = AttentionF32Args::keys_per_mark;
  static std::uint8_t Joined(std::uint8_t any, std::uint8_t all) {
    return static_cast<std::uint8_t>((any & keys_seen) | (all & keys_all));
  }

  const std::uint8_t* marks_;
  std::ptrdiff_t stride_;
  std::int64_t rows_ = 1;
};

// Which of the keys [begin, end) queries [t_first, t_last] of a call see, and the first key >= `key` of a block that they do.
inline SeenKeys SeenOf(const AttentionF32Args& args, std::int64_t t_first, std::int64_t t_last, std::int64_t begin,
                       std::int64_t end) {
  return seen_keys(t_first, t_last, begin, end, args.visible_begin, args.visible_end, args.kept_end);
}
inline std::int64_t NextSeenBlock(const AttentionF32Args& args, std::int64_t t_first, std::int64_t key,
                                  std::int64_t block_keys) {
  return next_seen_block(t_first, key, block_keys, args.visible_begin, args.kept_end);
}

enum class Allowed : std::uint8_t { none, all, some };

// excluded[i] = -1 where key i's byte is 0, else 0.
static HWY_NOINLINE Allowed ReadKeyMask(const std::uint8_t* mask, std::ptrdiff_t key_stride, size_t keys,
                                        std::int32_t* HWY_RESTRICT excluded) {
  std::int32_t any = 0, all = -1;
  if (key_stride == 1) {
    for (size_t i = 0; i < keys; ++i) {
      excluded[i] = mask[i] == 0 ? -1 : 0;
      any |= excluded[i];
      all &= excluded[i];
    }
  } else {
    for (size_t i = 0; i < keys; ++i) {
      excluded[i] = *Offset(mask, static_cast<std::ptrdiff_t>(i) * key_stride) == 0 ? -1 : 0;
      any |= excluded[i];
      all &= excluded[i];
    }
  }
  return all != 0 ? Allowed::none : any == 0 ? Allowed::all : Allowed::some;
}

// to[i] = the bias of key i, widened.
template <class T>
static HWY_NOINLINE void WidenKeyBias(const T* HWY_RESTRICT bias, std::ptrdiff_t key_stride, size_t keys,
                                      float* HWY_RESTRICT to) {
  size_t i = 0;
  if (key_stride == static_cast<std::ptrdiff_t>(sizeof(T))) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    for (; i + lanes <= keys; i += lanes) hn::StoreU(LoadElements(df, bias + i), df, to + i);
  }
  for (; i < keys; ++i) to[i] = ToFloat(*Offset(bias, static_cast<std::ptrdiff_t>(i) * key_stride));
}

// True when `rows` rows of `columns` values hold a NaN or an infinity.
template <class T>
static HWY_NOINLINE bool HoldsNonFinite(const T* HWY_RESTRICT values, std::ptrdiff_t stride, size_t rows, size_t columns) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df);
  const Ints magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  const std::int32_t first_non_finite = 0x7F800000;
  Ints max = hn::Zero(di);
  std::int32_t max_of_rest = 0;
  for (size_t row = 0; row < rows; ++row, values = Offset(values, stride)) {
    size_t column = 0;
    for (; column + lanes <= columns; column += lanes) {
      max = hn::Max(max, hn::And(magnitude_bits, hn::BitCast(di, LoadElements(df, values + column))));
    }
    for (; column < columns; ++column) {
      const float value = ToFloat(values[column]);
      std::int32_t bits;
      __builtin_memcpy(&bits, &value, sizeof(bits));
      bits &= 0x7FFFFFFF;
      max_of_rest = HWY_MAX(max_of_rest, bits);
    }
  }
  if (max_of_rest >= first_non_finite) return true;
  return !hn::AllFalse(di, hn::Gt(max, hn::Set(di, first_non_finite - 1)));
}

// Of the values of keys [first, end), which are of T: with scales, of these.
template <class T>
static bool HoldsNonFinite(const AttentionF32Args& args, std::int64_t first, std::int64_t end) {
  while (first < end) {
    const KeyRun<T> run = RunOfKeys<T>(args, first, end);
    if constexpr (kScaled<T>) {
      if (HoldsNonFinite(ScalesOfKeys<T>(args, first).value, 0, 1, static_cast<size_t>(run.count))) return true;
    } else if (HoldsNonFinite(run.value, args.value_stride, static_cast<size_t>(run.count),
                              static_cast<size_t>(args.value_dim))) {
      return true;
    }
    first += run.count;
  }
  return false;
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
