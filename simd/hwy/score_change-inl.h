// What happens to scores before masks exclude any: softcap * tanh(score / softcap), then the caller's own function, then
// ALiBi's slope * distance taken off. Scores are in log2 units, and softcap and slopes with them; but until the caller's
// function has seen them they are in natural-log units. Passes of their own over scores that lie in the first-level cache:
// plans without them run what they ran before.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/contract/score_mod.hpp"
#include "simd/hwy/compat.h"
#include "simd/hwy/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// The softcap of a call.
struct Softcap {
  float cap = 0.0f;  // 0: none
  float reciprocal = 0.0f;

  Softcap() = default;
  // For scores of `unit`: kLog2E, or 1.0 where they are in natural-log units.
  Softcap(double softcap, double unit) {
    if (softcap == 0.0) return;
    // Kept so far from the ends of the range that its reciprocal is a normal number too.
    constexpr double kFar = 0x1p120;
    const double in_units = softcap * unit;
    const double bounded = in_units > kFar ? kFar : in_units < 1.0 / kFar ? 1.0 / kFar : in_units;
    cap = static_cast<float>(bounded);
    reciprocal = static_cast<float>(1.0 / bounded);
  }
};

// cap * tanh(score / cap) with a relative error of at most 3 * 2^-24; NaN stays NaN, infinities give +-cap.
//
// With u = |score / cap|: below 1 score * (1 + u^2 P(u^2)), a minimax polynomial of degree 6 (4.6e-9), which needs no cap and
// so leaves small scores as they are however large the cap is; from there on cap - 2 cap e / (1 + e), e = exp(-2 u). With a
// border of 0.625 and degree 4 the second form's error there was 4.3 * 2^-24, more than the error bound has for a score.
constexpr float kTanhCoefficients[] = {-0.3333329543135741f,   0.13332344563429493f,   -0.05387980213102989f,
                                       0.021486655920046366f,  -0.007946104028950716f, 0.0023013628641383056f,
                                       -0.0003584515120231174f};
constexpr float kTanhNear = 1.0f;

HWY_INLINE Floats CapScore(FloatTag df, Floats score, Floats cap, Floats reciprocal) {
  const Floats u = hn::Abs(hn::Mul(score, reciprocal));
  const Floats z = hn::Mul(u, u);
  Floats p = hn::Set(df, kTanhCoefficients[6]);
  POLYHEAD_UNROLL for (int i = 5; i >= 0; --i) p = hn::MulAdd(p, z, hn::Set(df, kTanhCoefficients[i]));
  const Floats near = hn::MulAdd(hn::Mul(score, z), p, score);
  const auto is_near = hn::Lt(u, hn::Set(df, kTanhNear));
  if (HWY_LIKELY(hn::AllTrue(df, is_near))) return near;
  const Floats e = Exp2OfDifference(df, hn::Mul(u, hn::Set(df, static_cast<float>(-2.0 * kLog2E))), hn::Zero(df));
  const Floats rest = hn::Div(e, hn::Add(hn::Set(df, 1.0f), e));
  const Floats far = hn::NegMulAdd(hn::Add(cap, cap), rest, cap);
  return hn::IfThenElse(is_near, near, hn::CopySign(far, score));
}

// score - slope * distance. However far that is, it excludes no key; a score of -inf still does.
HWY_INLINE Floats TakeDistance(FloatTag df, Floats score, Floats slope, Floats distance) {
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Floats changed = MaxKeepingNaN(df, hn::Set(df, kLowestFloat), hn::NegMulAdd(slope, distance, score));
  return hn::IfThenElse(hn::Eq(score, minus_infinity), score, changed);
}

// score + bias in the units of scores; a bias of -inf excludes. A finite bias stays arithmetic even where its product or sum
// leaves the range below; it makes no -inf finite.
HWY_INLINE Floats AddBias(FloatTag df, Floats score, Floats bias) {
  const Floats minus_infinity = hn::Set(df, kMinusInfinity);
  const Floats sum = hn::MulAdd(bias, hn::Set(df, static_cast<float>(kLog2E)), score);
  const Floats biased = hn::IfThenElse(hn::Eq(score, minus_infinity), sum, MaxKeepingNaN(df, hn::Set(df, kLowestFloat), sum));
  return hn::IfThenElse(hn::Eq(bias, minus_infinity), minus_infinity, biased);
}

// Where query t stands among the keys counted from `first_key`. Rounded from an exact integer, so that a row's bits do not
// depend on its neighbours.
inline float PositionOf(const AttentionF32Args& args, std::int64_t t, std::int64_t first_key) {
  return static_cast<float>(t + args.alibi_offset - first_key);
}

// The unit that a call's scores are computed in.
inline double UnitOfScores(const AttentionF32Args& args) {
  return args.score_mod ? 1.0 : kLog2E;
}
inline float ScaleOfScores(const AttentionF32Args& args) {
  return ScaleInUnits(args.scale, UnitOfScores(args));
}

// From natural-log to log2 units. What is finite stays so, NaN and infinities stay what they are.
HWY_INLINE Floats InLog2Units(FloatTag df, Floats score) {
  const Floats lowest = hn::Set(df, kLowestFloat), highest = hn::Set(df, -kLowestFloat);
  const Floats product = hn::Mul(score, hn::Set(df, static_cast<float>(kLog2E)));
  const auto is_finite = hn::Le(hn::Abs(score), highest);
  return hn::IfThenElse(is_finite, hn::Min(hn::Max(product, lowest), highest), score);
}

// Offsets 0, 1, 2 .. of a tile's keys, and offsets for what doesn't vary.
constexpr size_t kMostLinesOrLanes = 256;
struct OffsetTable {
  std::int32_t offsets[kMostLinesOrLanes];
  constexpr explicit OffsetTable(std::int32_t step) : offsets() {
    for (size_t i = 0; i < kMostLinesOrLanes; ++i) offsets[i] = static_cast<std::int32_t>(i) * step;
  }
};
static constexpr OffsetTable kAscending(1), kAllZero(0);

// The change of a tile of scores [key][row]: lane = row.
struct TileChange {
  Softcap softcap;
  const float* slopes = nullptr;           // [row]; nullptr: no ALiBi
  const float* positions = nullptr;        // [row], among the keys of the key block
  const ScoreMod* mod = nullptr;           // nullptr: no function of the caller's
  const ScoreModTile* mod_tile = nullptr;  // what it is told, but for the scores

  bool Wanted() const { return softcap.cap != 0.0f || slopes != nullptr || mod != nullptr; }
};

// kFromNatural: scores come in natural-log units, and the softcap has been taken.
template <bool kSoftcap, bool kAlibi, bool kFromNatural = false>
static HWY_NOINLINE void ChangeTileAs(const TileChange& change, float* HWY_RESTRICT scores, size_t width, size_t begin,
                                      size_t end) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  const Floats cap = hn::Set(df, change.softcap.cap), reciprocal = hn::Set(df, change.softcap.reciprocal);
  for (size_t column = 0; column < width; column += lanes) {
    Floats slope = hn::Zero(df), position = slope;
    if (kAlibi) {
      slope = hn::Load(df, change.slopes + column);
      position = hn::Load(df, change.positions + column);
    }
    for (size_t key = begin; key < end; ++key) {
      float* HWY_RESTRICT at = scores + key * width + column;
      Floats s = hn::Load(df, at);
      if (kSoftcap) s = CapScore(df, s, cap, reciprocal);
      if (kFromNatural) s = InLog2Units(df, s);
      if (kAlibi) {
        s = TakeDistance(df, s, slope, hn::Abs(hn::Sub(position, hn::Set(df, static_cast<float>(static_cast<int>(key))))));
      }
      hn::Store(s, df, at);
    }
  }
}

static HWY_NOINLINE void ChangeTileByCaller(const TileChange& change, float* scores, size_t width, size_t begin, size_t end) {
  if (change.softcap.cap != 0.0f) ChangeTileAs<true, false>(change, scores, width, begin, end);
  ScoreModTile tile = *change.mod_tile;
  tile.scores = scores + begin * width;
  change.mod->change(change.mod->context, tile);
  if (change.slopes) return ChangeTileAs<false, true, true>(change, scores, width, begin, end);
  ChangeTileAs<false, false, true>(change, scores, width, begin, end);
}

// Changes scores[begin, end)[width] in place.
static inline void ChangeTile(const TileChange& change, float* scores, size_t width, size_t begin, size_t end) {
  if (HWY_UNLIKELY(change.mod != nullptr)) return ChangeTileByCaller(change, scores, width, begin, end);
  if (!change.slopes) return ChangeTileAs<true, false>(change, scores, width, begin, end);
  if (change.softcap.cap == 0.0f) return ChangeTileAs<false, true>(change, scores, width, begin, end);
  ChangeTileAs<true, true>(change, scores, width, begin, end);
}

// The change of one row's scores: lane = key.
struct RowChange {
  Softcap softcap;
  bool alibi = false;
  float slope = 0.0f, position = 0.0f;
};

template <bool kSoftcap, bool kAlibi, bool kFromNatural = false>
static HWY_NOINLINE void ChangeRowAs(const RowChange& change, float* HWY_RESTRICT scores, size_t begin, size_t end) {
  const FloatTag df;
  const Floats cap = hn::Set(df, change.softcap.cap), reciprocal = hn::Set(df, change.softcap.reciprocal);
  const Floats slope = hn::Set(df, change.slope), position = hn::Set(df, change.position), first = hn::Iota(df, 0);
  for (size_t i = begin; i < end; i += hn::Lanes(df)) {
    Floats s = hn::Load(df, scores + i);
    if (kSoftcap) s = CapScore(df, s, cap, reciprocal);
    if (kFromNatural) s = InLog2Units(df, s);
    if (kAlibi) {
      const Floats key = hn::Add(first, hn::Set(df, static_cast<float>(static_cast<int>(i))));
      s = TakeDistance(df, s, slope, hn::Abs(hn::Sub(position, key)));
    }
    hn::Store(s, df, scores + i);
  }
}

// Changes scores[begin, end), whole vectors, in place.
static inline void ChangeRow(const RowChange& change, float* scores, size_t begin, size_t end) {
  if (!change.alibi) return ChangeRowAs<true, false>(change, scores, begin, end);
  if (change.softcap.cap == 0.0f) return ChangeRowAs<false, true>(change, scores, begin, end);
  ChangeRowAs<true, true>(change, scores, begin, end);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
