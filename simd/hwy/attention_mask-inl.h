// What excludes keys from rows, and what is added to scores: structural limits, boolean mask, bias, and the changes of
// score_change-inl.h before them. Works on one tile of scores [key][row] (lane = row), between the score and the weight step.
//
// Exclusion is a select of -inf, never an addition, so that neither a NaN score nor an extreme bias at an excluded key counts.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_block-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/score_change-inl.h"
#include "simd/hwy/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// Where an operand over [row, key] varies. `keys`: one value a key serves all rows (a key-padding mask), read by broadcast.
enum class Varies : int { absent, keys, rows };

// Everything that the pass over one tile reads. Keys are counted from the start of the key block.
struct TileMask {
  bool structural = false;
  std::int32_t first_begin = 0;  // the visible range of the tile's first query is [first_begin, first_end)
  std::int32_t first_end = 0;
  std::int32_t kept_end = 0;                   // keys before it are seen whatever first_begin says
  const std::int32_t* query_offset = nullptr;  // [row]: t of the row minus t of the tile's first row
  Varies boolean = Varies::absent;
  const std::int32_t* excluded_keys = nullptr;  // [key]: -1 excluded, 0 allowed              (Varies::keys)
  const std::int32_t* allowed_bytes = nullptr;  // [key / 4][row]: four keys' bytes, 0 excluded (Varies::rows)
  Varies bias = Varies::absent;
  const float* bias_keys = nullptr;  // key i at bias_keys + i * bias_key_stride bytes (Varies::keys)
  std::ptrdiff_t bias_key_stride = 0;
  const float* bias_rows = nullptr;  // [key][row]                                    (Varies::rows)
  TileChange change;

  // Whether anything is done to scores but excluding some.
  bool WantsScaledScores() const { return bias != Varies::absent || change.Wanted(); }
  bool Changes() const { return structural || boolean != Varies::absent || bias != Varies::absent || change.Wanted(); }
};

template <bool kStructural, Varies kBoolean, Varies kBias>
static HWY_NOINLINE void ApplyMaskAs(const TileMask& mask, float* HWY_RESTRICT scores, size_t width, size_t begin, size_t end,
                                     float* HWY_RESTRICT max) {
  const FloatTag df;
  const IntTag di;
  const size_t lanes = hn::Lanes(df);
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Ints no_bits = hn::Zero(di);
  for (size_t column = 0; column < width; column += lanes) {
    Floats m = hn::Load(df, max + column);
    Ints visible_begin = no_bits, visible_end = no_bits;
    if (kStructural) {
      const Ints offset = hn::Load(di, mask.query_offset + column);
      visible_begin = hn::Add(offset, hn::Set(di, mask.first_begin));
      visible_end = hn::Add(offset, hn::Set(di, mask.first_end));
    }
    for (size_t key = begin; key < end; ++key) {
      float* HWY_RESTRICT at = scores + key * width + column;
      Floats s = hn::Load(df, at);
      if (kBias != Varies::absent) {
        const Floats bias = kBias == Varies::keys
                                ? hn::Set(df, *Offset(mask.bias_keys, static_cast<std::ptrdiff_t>(key) * mask.bias_key_stride))
                                : hn::Load(df, mask.bias_rows + key * width + column);
        s = AddBias(df, s, bias);
      }
      if (kBoolean == Varies::keys) {
        const Ints excluded = hn::Set(di, mask.excluded_keys[key]);
        s = hn::IfThenElse(hn::MaskFromVec(hn::BitCast(df, excluded)), minus_infinity, s);
      }
      if (kBoolean == Varies::rows) {
        const Ints bytes = hn::Load(di, mask.allowed_bytes + (key / 4) * width + column);
        const Ints byte = hn::And(bytes, hn::Set(di, static_cast<std::int32_t>(std::uint32_t{0xFF} << (8 * (key % 4)))));
        s = hn::IfThenElse(hn::RebindMask(df, hn::Eq(byte, no_bits)), minus_infinity, s);
      }
      if (kStructural) {
        const Ints position = hn::Set(di, static_cast<std::int32_t>(key));
        s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(visible_end, position)), s, minus_infinity);
        s = hn::IfThenElse(hn::RebindMask(df, hn::Gt(visible_begin, position)), minus_infinity, s);
      }
      hn::Store(s, df, at);
      m = MaxDroppingNaN(df, s, m);
    }
    hn::Store(m, df, max + column);
  }
}

template <bool kStructural, Varies kBoolean>
static inline void ApplyMaskWithBias(const TileMask& mask, float* scores, size_t width, size_t begin, size_t end, float* max) {
  switch (mask.bias) {
    case Varies::absent:
      return ApplyMaskAs<kStructural, kBoolean, Varies::absent>(mask, scores, width, begin, end, max);
    case Varies::keys:
      return ApplyMaskAs<kStructural, kBoolean, Varies::keys>(mask, scores, width, begin, end, max);
    case Varies::rows:
      return ApplyMaskAs<kStructural, kBoolean, Varies::rows>(mask, scores, width, begin, end, max);
  }
}

template <bool kStructural>
static inline void ApplyMaskWithBoolean(const TileMask& mask, float* scores, size_t width, size_t begin, size_t end,
                                        float* max) {
  switch (mask.boolean) {
    case Varies::absent:
      return ApplyMaskWithBias<kStructural, Varies::absent>(mask, scores, width, begin, end, max);
    case Varies::keys:
      return ApplyMaskWithBias<kStructural, Varies::keys>(mask, scores, width, begin, end, max);
    case Varies::rows:
      return ApplyMaskWithBias<kStructural, Varies::rows>(mask, scores, width, begin, end, max);
  }
}

// Changes, biases and masks scores[begin, end)[width] in place and raises max[width] to them.
static inline void ApplyMask(const TileMask& mask, float* scores, size_t width, size_t begin, size_t end, float* max) {
  if (mask.change.Wanted()) ChangeTile(mask.change, scores, width, begin, end);
  if (mask.structural && HWY_UNLIKELY(mask.kept_end > static_cast<std::int32_t>(begin))) {
    TileMask kept = mask;
    kept.first_begin = ClampLimit(AttentionF32Args::unbounded_begin);
    const size_t kept_end = HWY_MIN(static_cast<size_t>(mask.kept_end), end);
    ApplyMaskWithBoolean<true>(kept, scores, width, begin, kept_end, max);
    begin = kept_end;
  }
  if (mask.structural) return ApplyMaskWithBoolean<true>(mask, scores, width, begin, end, max);
  return ApplyMaskWithBoolean<false>(mask, scores, width, begin, end, max);
}

// The operand over [row, key] of one tile, widened and brought to [key][row]. `map` gives the rows, already moved to the
// block's first key.
template <class T>
static HWY_NOINLINE void BiasToLanes(const RowMap<const T>& map, std::ptrdiff_t key_stride, std::int64_t first, size_t rows,
                                     size_t width, size_t begin, size_t end, float* HWY_RESTRICT to) {
  if (key_stride == static_cast<std::ptrdiff_t>(sizeof(T))) {
    RowMap<const T> moved = map;
    moved.base += begin;
    return RowsToLanes<false>(moved, first, rows, width, end - begin, 1.0f, to + begin * width);
  }
  for (size_t lane = 0; lane < width; ++lane) {
    const T* row = map.At(first + static_cast<std::int64_t>(HWY_MIN(lane, rows - 1)));
    for (size_t key = begin; key < end; ++key) {
      to[key * width + lane] = ToFloat(*Offset(row, static_cast<std::ptrdiff_t>(key) * key_stride));
    }
  }
}

// Likewise for bytes, four keys to a word; a last incomplete word repeats its last key. `begin` is a multiple of 4.
static HWY_NOINLINE Allowed BooleanToLanes(const RowMap<const std::uint8_t>& map, std::ptrdiff_t key_stride, std::int64_t first,
                                           size_t rows, size_t width, size_t begin, size_t end, std::int32_t* HWY_RESTRICT to) {
  size_t key = begin;
  if (key_stride == 1) {
    const size_t words = (end - begin) / 4;
    const RowMap<const float> moved = {reinterpret_cast<const float*>(map.base + begin), map.stride, map.head_stride,
                                       map.group};
    RowsToLanes<false>(moved, first, rows, width, words, 1.0f, reinterpret_cast<float*>(to + (begin / 4) * width));
    key += 4 * words;
  }
  if (key < end) {
    for (size_t lane = 0; lane < width; ++lane) {
      const std::uint8_t* row = map.At(first + static_cast<std::int64_t>(HWY_MIN(lane, rows - 1)));
      for (size_t four = key; four < end; four += 4) {
        std::uint32_t word = 0;
        for (size_t i = 0; i < 4; ++i) {
          const size_t at = HWY_MIN(four + i, end - 1);
          word |= std::uint32_t{*Offset(row, static_cast<std::ptrdiff_t>(at) * key_stride)} << (8 * i);
        }
        to[(four / 4) * width + lane] = static_cast<std::int32_t>(word);
      }
    }
  }
  const hn::Repartition<std::uint8_t, FloatTag> d8;
  const size_t bytes = hn::Lanes(d8);
  const std::uint8_t* flat = reinterpret_cast<const std::uint8_t*>(to + (begin / 4) * width);
  const size_t total = ((end - begin + 3) / 4) * width * 4;
  auto any = hn::Zero(d8), excluded = hn::Zero(d8);
  for (size_t i = 0; i < total; i += bytes) {
    const auto b = hn::LoadU(d8, flat + i);
    any = hn::Or(any, b);
    excluded = hn::Or(excluded, hn::VecFromMask(d8, hn::Eq(b, hn::Zero(d8))));
  }
  if (hn::AllTrue(d8, hn::Eq(any, hn::Zero(d8)))) return Allowed::none;
  return hn::AllTrue(d8, hn::Eq(excluded, hn::Zero(d8))) ? Allowed::all : Allowed::some;
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
