// Where keys lie in memory: all in one piece, or in pages.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/compat.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// `count` keys of T that follow one another in memory, by the strides of the call.
template <class T>
struct KeyRun {
  const T* key;
  const T* value;
  std::int64_t count;
};

template <class T>
static HWY_NOINLINE KeyRun<T> RunOfPage(const AttentionF32Args& args, std::int64_t first, std::int64_t end) {
  const std::int64_t page = first / args.page_keys, in_page = first - page * args.page_keys;
  const void* const base = args.pages[page - args.first_page];
  const auto at = [&](std::ptrdiff_t place, std::ptrdiff_t stride) {
    return static_cast<const T*>(Offset(base, place + static_cast<std::ptrdiff_t>(in_page) * stride));
  };
  return {at(args.key_in_page, args.key_stride), at(args.value_in_page, args.value_stride),
          HWY_MIN(end - first, args.page_keys - in_page)};
}

// The keys from `first` on, up to the end of its page or to `end`. first < end.
template <class T>
HWY_INLINE KeyRun<T> RunOfKeys(const AttentionF32Args& args, std::int64_t first, std::int64_t end) {
  if (HWY_UNLIKELY(args.pages != nullptr)) return RunOfPage<T>(args, first, end);
  return {Offset(static_cast<const T*>(args.key), static_cast<std::ptrdiff_t>(first) * args.key_stride),
          Offset(static_cast<const T*>(args.value), static_cast<std::ptrdiff_t>(first) * args.value_stride), end - first};
}

// The scales of keys of T, and of their values, from `first` on: as many as RunOfKeys has keys from there.
struct ScaleRun {
  const float* key;
  const float* value;
};

template <class T>
static HWY_NOINLINE ScaleRun ScalesOfKeys(const AttentionF32Args& args, std::int64_t first) {
  if (args.pages == nullptr) return {args.key_scale + first, args.value_scale + first};
  const std::int64_t page = first / args.page_keys, in_page = first - page * args.page_keys;
  const void* const base = args.pages[page - args.first_page];
  return {static_cast<const float*>(Offset(base, args.key_scale_in_page)) + in_page,
          static_cast<const float*>(Offset(base, args.value_scale_in_page)) + in_page};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
