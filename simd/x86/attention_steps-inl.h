// What attention on tiles (attention_tiles-inl.h) works on: row blocks, steps of keys, their buffers, and the weights of a step
// in portions that go between tile products.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/attention_block-inl.h"
#include "simd/hwy/attention_f32-inl.h"
#include "simd/hwy/attention_pairs-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/scratch.h"
#include "simd/x86/bf16_pieces-inl.h"
#include "simd/x86/exp2_any-inl.h"
#include "simd/x86/tile_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kBlockRows = kProductColumns;
constexpr size_t kGroupKeys = 32;  // two tiles
constexpr size_t kStepKeys = 64;
constexpr size_t kStepGroups = kStepKeys / kGroupKeys;
constexpr size_t kBlocksAtOnce = 16;

// Where the shift is estimated: what a step's weights of a row may sum up to (2^60 of values and 2^27 steps are left of the
// range), and how far its maximum may lie above its shift in calls that change scores.
constexpr float kLargestSum = 0x1p40f;
constexpr float kRoomAboveShift = 20.0f;
// Shifts beyond this are not for weights of unrounded products: up to here half a unit is 1/2 at most.
constexpr float kLargestShift = 0x1p24f;

// Sizes in tiles.
template <class Operands>
struct PieceSizes {
  static constexpr size_t kPieces = Operands::kPieces;
  size_t depths;       // of a sum over the head size
  size_t value_pairs;  // pairs of tiles of value columns
  PieceSizes(std::int64_t head_dim, std::int64_t value_dim)
      : depths((static_cast<size_t>(head_dim) + kDepth - 1) / kDepth),
        value_pairs((static_cast<size_t>(value_dim) + 31) / 32) {}
  size_t KeyBytes() const { return 2 * depths * kPieceTileBytes<kPieces>; }  // of a group of 32 keys, and of a block's query
  size_t ValueBytes() const { return 2 * value_pairs * kPieceTileBytes<kPieces>; }
  // Keys that are packed at once, a multiple of the kernel's key block.
  size_t ChunkKeys() const {
    const size_t blocks = Operands::kPackedBytes / (KeyBytes() + ValueBytes()) * kGroupKeys / kKeyBlock;
    return HWY_MAX(blocks, size_t{1}) * kKeyBlock;
  }
};

// A row block with what tiles need.
struct PieceBlock : RowBlock {
  unsigned char* pieces;  // Q'
  std::int32_t* apart;    // [32]: -1 for rows that the plain kernel computes
  float* rounded_sum;     // [32]: the denominator of rounded weights, where they are summed
  bool weighed;           // the denominators hold something
  bool unshifted;         // some row has no shift yet: it has seen no key
};

// A row block and a step of keys, on its way through three stages. Steps in turn use two sets of buffers.
struct Step {
  PieceBlock* block;
  std::int64_t key;  // a multiple of kStepKeys, from the call's first key
  size_t group_begin, group_end;
  size_t seen_end;  // keys of the step from there on are seen by no row
  TileMask mask;
  size_t set;
  bool rescales;
};

struct StepBuffers {
  float* scores;           // [64][32]
  unsigned char* weights;  // [2 groups][2 column tiles] PieceTiles
  float* alpha;            // [32]
  MaskTables mask;
};

template <class Operands>
struct TileWorkspace {
  using T = typename Operands::T;
  static constexpr size_t kPieces = Operands::kPieces;
  PieceBlock blocks[kBlocksAtOnce];
  StepBuffers sets[2];
  unsigned char *keys, *values;    // [group] as PackKeys leaves them
  std::uint32_t* out_of_range;     // [group]: a bit a key
  T* gathered;                     // [32][D] and [32][E]: a group's keys and values where pages have them apart
  float* lanes_of_rows;            // [max(D, E)][32]
  std::int32_t* keep;              // [32]
  float *max, *sum, *rounded_sum;  // [32]
  float* nowhere;                  // [32][32]: takes a store that has nothing to store
  void* plain;                     // the plain kernel's scratch

  size_t Place(void* memory, std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
    const PieceSizes<Operands> sizes(head_dim, value_dim);
    Carver carver(memory);
    for (PieceBlock& block : blocks) {
      block.pieces = carver.Take<unsigned char>(sizes.KeyBytes());
      block.sums = carver.Take<float>(sizes.value_pairs * 32 * kBlockRows);
      block.shift = carver.Take<float>(kBlockRows);
      block.denominator = carver.Take<float>(kBlockRows);
      block.query_offset = carver.Take<std::int32_t>(kBlockRows);
      block.apart = carver.Take<std::int32_t>(kBlockRows);
      block.rounded_sum = carver.Take<float>(kBlockRows);
    }
    for (StepBuffers& set : sets) {
      set.scores = carver.Take<float>(kStepKeys * kBlockRows);
      set.weights = carver.Take<unsigned char>(kStepGroups * 2 * kPieceTileBytes<kPieces>);
      set.alpha = carver.Take<float>(kBlockRows);
      set.mask.Place(carver, kStepKeys, kBlockRows);
    }
    const size_t key_groups = (static_cast<size_t>(key_count) + kGroupKeys - 1) / kGroupKeys;
    const size_t groups = HWY_MIN(sizes.ChunkKeys() / kGroupKeys, key_groups);
    keys = carver.Take<unsigned char>(groups * sizes.KeyBytes());
    values = carver.Take<unsigned char>(groups * sizes.ValueBytes());
    out_of_range = carver.Take<std::uint32_t>(groups);
    gathered = carver.Take<T>(static_cast<size_t>(head_dim + value_dim) * kGroupKeys);
    lanes_of_rows = carver.Take<float>(static_cast<size_t>(HWY_MAX(head_dim, value_dim)) * kBlockRows);
    keep = carver.Take<std::int32_t>(kBlockRows);
    max = carver.Take<float>(kBlockRows);
    sum = carver.Take<float>(kBlockRows);
    rounded_sum = carver.Take<float>(kBlockRows);
    nowhere = carver.Take<float>(32 * kBlockRows);
    const size_t plain_bytes = AttentionScratchBytes<TileLimits, T>(head_dim, value_dim, key_count);
    plain = carver.Take<unsigned char>(plain_bytes);
    return carver.used();
  }
};

// The weights of one step, in portions of two keys by one vector of rows.
template <size_t kPieces>
class WeightStream {
 public:
  WeightStream() = default;
  WeightStream(const Step& step, const StepBuffers& set, float* sum)
      : scores_(set.scores),
        weights_(set.weights),
        shift_(step.block->shift),
        sum_(sum),
        next_(step.group_begin * kPortionsOfGroup),
        end_(step.group_end * kPortionsOfGroup) {}

  HWY_INLINE bool Left() const { return next_ < end_; }
  HWY_INLINE void Next() {
    if (!Left()) return;
    const FloatTag df;
    const size_t group = next_ / kPortionsOfGroup, pair = next_ % kPortionsOfGroup / kColumns;
    const size_t column = next_ % kColumns * kFloatLanes;
    ++next_;
    const float* at = scores_ + (group * kGroupKeys + pair) * kBlockRows + column;
    const Floats shift = hn::Load(df, shift_ + column);
    const Floats a = Exp2OfDifference(df, hn::Load(df, at), shift);
    const Floats b = Exp2OfDifference(df, hn::Load(df, at + kTileRows * kBlockRows), shift);
    hn::Store(hn::Add(hn::Load(df, sum_ + column), hn::Add(a, b)), df, sum_ + column);
    unsigned char* tile = weights_ + (group * 2 + column / kTileRows) * kPieceTileBytes<kPieces>;
    StorePairs(SplitIntoPieces<kPieces>(df, a), SplitIntoPieces<kPieces>(df, b),
               tile + pair * kTileRowBytes + column % kTileRows * 4);
  }

 private:
  static constexpr size_t kColumns = kBlockRows / kFloatLanes;
  static constexpr size_t kPortionsOfGroup = kTileRows * kColumns;

  const float* scores_ = nullptr;
  unsigned char* weights_ = nullptr;
  const float* shift_ = nullptr;
  float* sum_ = nullptr;
  size_t next_ = 0, end_ = 0;
};

// The same where the shift is estimated, weights being 2^(factor * S - m): portions of four keys by one vector of rows, spread
// evenly over the tile products that a beat has. A portion of one piece takes 52 vector operations, a step has 32.
template <size_t kPieces>
class SpreadWeightStream {
 public:
  SpreadWeightStream() = default;
  SpreadWeightStream(const Step& step, const StepBuffers& set, float* sum, float* rounded_sum, float factor)
      : scores_(set.scores),
        weights_(set.weights),
        shift_(step.block->shift),
        sum_(sum),
        rounded_sum_(rounded_sum),
        factor_(factor),
        next_(step.group_begin * kPortionsOfGroup),
        end_(step.group_end * kPortionsOfGroup),
        count_(end_ - next_) {}

  // `calls` of Next() will come.
  HWY_INLINE void SpreadOver(size_t calls) { calls_ = HWY_MAX(calls, size_t{1}); }
  HWY_INLINE bool Left() const { return next_ < end_; }
  HWY_INLINE void Next() {
    for (due_ += count_; due_ >= calls_; due_ -= calls_) Portion();
  }
  HWY_INLINE void Portion() {
    if (!Left()) return;
    const FloatTag df;
    const size_t group = next_ / kPortionsOfGroup, pair = next_ % kPortionsOfGroup / kColumns * 2;
    const size_t column = next_ % kColumns * kFloatLanes;
    ++next_;
    const float* at = scores_ + (group * kGroupKeys + pair) * kBlockRows + column;
    const Floats factor = hn::Set(df, factor_), shift = hn::Load(df, shift_ + column);
    const auto weight = [&](size_t key) POLYHEAD_INLINED HWY_ATTR {
      return Exp2OfAny(df, hn::MulSub(hn::Load(df, at + key * kBlockRows), factor, shift));
    };
    const Floats a = weight(0), b = weight(kTileRows), c = weight(1), d = weight(kTileRows + 1);
    const Floats sum = hn::Add(hn::Load(df, sum_ + column), hn::Add(hn::Add(a, b), hn::Add(c, d)));
    hn::Store(sum, df, sum_ + column);
    unsigned char* to =
        weights_ + (group * 2 + column / kTileRows) * kPieceTileBytes<kPieces> + pair * kTileRowBytes + column % kTileRows * 4;
    if constexpr (kPieces == 1) {
      const WordTag du;
      const Words p = Rounded(a), q = Rounded(b), r = Rounded(c), s = Rounded(d);
      hn::Store(hn::Or(hn::ShiftRight<16>(p), q), du, reinterpret_cast<std::uint32_t*>(to));
      hn::Store(hn::Or(hn::ShiftRight<16>(r), s), du, reinterpret_cast<std::uint32_t*>(to + kTileRowBytes));
      const Floats first = hn::Add(hn::BitCast(df, p), hn::BitCast(df, q));
      const Floats second = hn::Add(hn::BitCast(df, r), hn::BitCast(df, s));
      hn::Store(hn::Add(hn::Load(df, rounded_sum_ + column), hn::Add(first, second)), df, rounded_sum_ + column);
    } else {
      StorePairs(SplitIntoPieces<kPieces>(df, a), SplitIntoPieces<kPieces>(df, b), to);
      StorePairs(SplitIntoPieces<kPieces>(df, c), SplitIntoPieces<kPieces>(df, d), to + kTileRowBytes);
    }
  }

 private:
  static constexpr size_t kColumns = kBlockRows / kFloatLanes;
  static constexpr size_t kPortionsOfGroup = kTileRows / 2 * kColumns;

  // To bf16, as f32's bits. Weights are positive: ties are rounded up. A NaN may become anything, its row's sum is NaN too.
  static HWY_INLINE Words Rounded(Floats weight) {
    const WordTag du;
    return hn::And(hn::Add(hn::BitCast(du, weight), hn::Set(du, 0x8000u)), hn::Set(du, 0xFFFF0000u));
  }

  const float* scores_ = nullptr;
  unsigned char* weights_ = nullptr;
  const float* shift_ = nullptr;
  float* sum_ = nullptr;
  float* rounded_sum_ = nullptr;
  float factor_ = 1.0f;
  size_t next_ = 0, end_ = 0, count_ = 0, calls_ = 1, due_ = 0;
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
