// Attention on tiles that multiply bf16. f32 operands are sums of three pieces, and six products of pieces make an f32 product
// (bf16_pieces-inl.h); for Precision::fast two pieces, three products. bf16 operands are one piece (attention_words-inl.h), f16
// operands two. The scheme is that of simd/hwy/attention_f32-inl.h, transposed scores with a lane a query row, and shares its
// masks and its way out:
//
//   Q' = scale * log2(e) * Q                                       32 rows a block, packed once
//   K, V' of the keys that some block sees                         packed once for 16 blocks
//   for each row block, for each step of 64 keys:  S = K Q'        [key][row]   tiles
//                                                  mask, shift, P = 2^(S - m) in pieces
//                                                  O' += V' P      [e][row]     tiles
//   out = O' / l, transposed back
//
// Three steps are on their way at once: the weights of one are computed in small portions between the tile products of its
// successor's scores and of its predecessor's values. Tile operations come as a policy (tiles_amx-inl.h).
//
// Of f32 the maximum of a step is taken before its weights, so a shift is never too small and no step is ever computed twice.
// Beside 48 tile products a score tile, that pass costs a few hundredths.
//
// Of bf16 (and f16, which goes the same way) it would cost as much as a fifth of the weights, between beats, when no tile is
// multiplied; and weights are what takes the time. So the shift is estimated (decision 021): it is the maximum of the first
// step in which a row sees a key, and stays. Weights may be as large as f32 lets them: rounded to bf16 they lose no more than
// others do. Each step's sums tell whether that was right: a row whose sum is above 2^40, infinite or NaN gets the step's
// maximum for its shift and its weights again, before they are used. Nothing leaves the range unseen, since no weight is larger
// than its sum. In a call that changes scores by position or by key the shift follows the maximum, which the pass for changes
// and masks takes anyway. A row's shift depends on its own scores alone, whatever its block does.
//
// Then scale's factor in [1, 2) is multiplied in together with the shift, 2^(factor * S - m), or by a pass of its own in a call
// that changes scores. The product is not rounded, but m is, so that the largest weight is 2 to the power of half a unit of m
// at most: a factor that all weights of the row share and its denominator takes out again, as long as m is below 2^24.
//
// Below its maximum a row's largest weight would be 1 and lose nothing by rounding to bf16, which counts where few weights make
// up a row. Below an estimated shift it loses as much as any other; so values are divided by the sum of the rounded weights,
// which takes that out: what is left of a weight's rounding multiplies the distance of its value from the result. The other
// sum is the lse's.
//
// Rows that pieces cannot serve, because their query, some key or value that they may see or their shift is out of range or not
// finite, are computed by the plain kernel, each for itself: what a row gets depends on its own operands alone. Such keys are
// packed as zeros, so that nothing of them reaches the other rows, which give them weight 0.
#pragma once

#include <type_traits>

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/attention_block-inl.h"
#include "simd/hwy/attention_f32-inl.h"
#include "simd/x86/attention_pieces-inl.h"
#include "simd/x86/attention_steps-inl.h"
#include "simd/x86/attention_words-inl.h"
#include "simd/x86/tile_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// One call: its operands, and what stays the same from step to step.
template <class Tiles, class Operands>
class TileAttentionRun {
  using T = typename Operands::T;
  static constexpr size_t kPieces = Operands::kPieces;
  static constexpr bool kEstimatesShift = Operands::kEstimatesShift;
  static constexpr bool kSumsRounded = kEstimatesShift && kPieces == 1;
  using Weights = std::conditional_t<kEstimatesShift, SpreadWeightStream<kPieces>, WeightStream<kPieces>>;

 public:
  explicit TileAttentionRun(const AttentionF32Args& args)
      : args_(args),
        mask_(args),
        sizes_(args.head_dim, args.value_dim),
        chunk_keys_(sizes_.ChunkKeys()),
        changes_scores_(args.bias || args.alibi_slopes || args.score_mod || args.softcap != 0.0) {
    space_.Place(args.scratch, args.head_dim, args.value_dim, HWY_MAX(args.key_end - args.key_begin, std::int64_t{0}));
  }

  void Rows() {
    tiles_.Configure();
    const float scale = ScaleOfScores(args_);
    scale_factor_ = Operands::Factor(scale);
    weight_factor_ = changes_scores_ ? 1.0f : scale_factor_;
    for (std::int64_t row = args_.row_begin; row < args_.row_end;) {
      size_t count = 0;
      for (; count < kBlocksAtOnce && row < args_.row_end; ++count) {
        Start(space_.blocks[count], row, scale);
        row += static_cast<std::int64_t>(space_.blocks[count].rows);
      }
      Keys(count);
      for (size_t i = 0; i < count; ++i) Finish(space_.blocks[i]);
    }
    tiles_.Release();
  }

 private:
  void Start(PieceBlock& block, std::int64_t row, float scale) {
    block.first_row = row;
    block.rows = static_cast<size_t>(HWY_MIN(args_.row_end - row, static_cast<std::int64_t>(kBlockRows)));
    block.width = kBlockRows;
    block.query = nullptr;
    block.weighed = false;
    block.unshifted = true;
    PlaceRows(args_, block);
    ForgetKeys(block);
    Operands::Query(args_, row, block.rows, scale, space_.lanes_of_rows, space_.keep, block.apart, block.pieces);
  }

  void Finish(PieceBlock& block) {
    if constexpr (kSumsRounded) {
      if (block.started) DivideByRounded(block);
    }
    FinishBlock<T>(args_, block, space_.max);
    for (size_t lane = 0; lane < block.rows; ++lane) {
      if (HWY_LIKELY(block.apart[lane] == 0)) continue;
      const size_t first = lane;
      while (lane + 1 < block.rows && block.apart[lane + 1] != 0) ++lane;
      AttentionF32Args rows = args_;
      rows.row_begin = block.first_row + static_cast<std::int64_t>(first);
      rows.row_end = block.first_row + static_cast<std::int64_t>(lane) + 1;
      if (rows.partial) rows.partial += (rows.row_begin - args_.row_begin) * (args_.value_dim + 2);
      rows.scratch = space_.plain;
      ComputeRows<TileLimits, T>(rows);
    }
  }

  // The keys of `count` row blocks, chunk by chunk.
  void Keys(size_t count) {
    const std::int64_t chunk_keys = static_cast<std::int64_t>(chunk_keys_);
    const std::int64_t t_first = space_.blocks[0].t_first, t_last = space_.blocks[count - 1].t_last;
    const std::int64_t end = HWY_MIN(args_.key_end, t_last + args_.visible_end);
    for (std::int64_t chunk = NextSeenBlock(args_, t_first, args_.key_begin, chunk_keys); chunk < end;
         chunk = NextSeenBlock(args_, t_first, chunk + chunk_keys, chunk_keys)) {
      const std::int64_t chunk_end = SeenOf(args_, t_first, t_last, chunk, HWY_MIN(chunk + chunk_keys, end)).end;
      Pack(chunk, chunk_end);
      for (size_t i = 0; i < count; ++i) Steps(space_.blocks[i], chunk, chunk_end);
      Advance(nullptr);
      Advance(nullptr);
    }
  }

  // Packs the chunk's keys up to `end`, as far as they are not packed yet and some row of the call sees them.
  void Pack(std::int64_t chunk, std::int64_t end) {
    if (chunk != chunk_) packed_ = 0;
    chunk_ = chunk;
    for (; chunk + static_cast<std::int64_t>(packed_ * kGroupKeys) < end; ++packed_) {
      const std::int64_t key = chunk + static_cast<std::int64_t>(packed_ * kGroupKeys);
      const size_t count = static_cast<size_t>(HWY_MIN(args_.key_end - key, static_cast<std::int64_t>(kGroupKeys)));
      if (!mask_.MaySee(args_.row_begin / args_.group, (args_.row_end - 1) / args_.group, key,
                        key + static_cast<std::int64_t>(count))) {
        continue;
      }
      space_.out_of_range[packed_] = Operands::Keys(args_, key, count, space_.gathered, space_.lanes_of_rows, space_.keep,
                                                    space_.keys + packed_ * sizes_.KeyBytes(),
                                                    space_.values + packed_ * sizes_.ValueBytes(), 2 * sizes_.value_pairs);
    }
  }

  // Sends the steps in which some row of the block sees some key on their way.
  void Steps(PieceBlock& block, std::int64_t chunk, std::int64_t chunk_end) {
    const std::int64_t step_keys = static_cast<std::int64_t>(kStepKeys);
    for (std::int64_t key = NextSeenBlock(args_, block.t_first, chunk, step_keys); key < chunk_end;
         key = NextSeenBlock(args_, block.t_first, key + step_keys, step_keys)) {
      const SeenKeys seen = SeenOf(args_, block.t_first, block.t_last, key, HWY_MIN(key + step_keys, chunk_end));
      if (seen.begin >= seen.end) return;  // only keys of later queries follow
      Step& step = steps_[next_step_];
      const StepBuffers& set = space_.sets[next_set_];
      step.block = &block;
      step.key = key;
      step.set = next_set_;
      step.group_begin = seen.begin - key >= static_cast<std::int64_t>(kGroupKeys) ? 1 : 0;
      step.seen_end = static_cast<size_t>(seen.end - key);
      step.group_end = step.seen_end > kGroupKeys ? 2 : 1;
      step.mask = TileMask();
      if (!mask_.ReadKeys(block.t_first, block.t_last, key, HWY_MIN(key + step_keys, args_.key_end), set.mask)) continue;
      if (!mask_.ReadTile(block, key, step.group_begin * kGroupKeys, step.seen_end, set.mask, step.mask)) continue;
      Advance(&step);
    }
  }

  // One beat of the pipeline: scores of `step`, weights of the step before, values of the one before that.
  void Advance(Step* step) {
    Weights weights;
    if (weighing_) {
      PrepareWeights(*weighing_);
      weights = WeightsOf(*weighing_);
    }
    if (summing_ && summing_->rescales && summing_->block->started) {
      ScaleSums(*summing_->block, space_.sets[summing_->set].alpha);
    }
    MultiplyAndWeigh(step, summing_, weights);
    if (weighing_) {
      if constexpr (kEstimatesShift) CheckWeights(*weighing_);
      AddDenominators(*weighing_);
    }
    if (summing_) summing_->block->started = true;
    summing_ = weighing_;
    weighing_ = step;
    if (step) {
      next_step_ = (next_step_ + 1) % 3;
      next_set_ ^= 1;
    }
  }

  HWY_INLINE Weights WeightsOf(const Step& step) const {
    if constexpr (kEstimatesShift) {
      return Weights(step, space_.sets[step.set], space_.sum, space_.rounded_sum, weight_factor_);
    } else {
      return Weights(step, space_.sets[step.set], space_.sum);
    }
  }

  HWY_NOINLINE void MultiplyAndWeigh(const Step* scoring, const Step* summing, Weights weights) {
    const size_t score_products = scoring ? scoring->group_end - scoring->group_begin : 0;
    const size_t products = score_products + (summing ? sizes_.value_pairs : 0);
    if constexpr (kEstimatesShift) {
      const size_t value_depths = summing ? (summing->group_end - summing->group_begin) * sizes_.value_pairs : 0;
      // Of several pieces the first four tile products of a product go without.
      constexpr size_t kScoreProducts = Operands::kWholeScores ? 4 : 2 * kPieces - 1, kValueProducts = 2 * kPieces - 1;
      static_assert(kPieces <= 2, "products of pieces");
      weights.SpreadOver(4 * (score_products * sizes_.depths * kScoreProducts + value_depths * kValueProducts -
                              (kPieces == 1 ? 0 : products)));
    }
    Tiles& tiles = tiles_;
    float* unstored = space_.nowhere;
    for (size_t i = 0; i < products; ++i) {
      const Product product =
          i < score_products ? ScoresOf(*scoring, scoring->group_begin + i) : ValuesOf(*summing, i - score_products);
      if (Operands::kWholeScores && i < score_products) {
        MultiplyPieces<kPieces, Operands::kWholeScores>(tiles, product, unstored, weights);
      } else {
        MultiplyPieces<kPieces>(tiles, product, unstored, weights);
      }
      unstored = product.results;
    }
    while (weights.Left()) weights.Next();
    if (products > 0) StoreTiles(tiles, unstored);
  }

  // S of a group of keys: A = K, B = Q'.
  HWY_INLINE Product ScoresOf(const Step& step, size_t group) const {
    const size_t second = sizes_.depths * kPieceTileBytes<kPieces>;
    return {space_.keys + (Group(step) + group) * sizes_.KeyBytes(),
            step.block->pieces,
            second,
            kPieceTileBytes<kPieces>,
            second,
            kPieceTileBytes<kPieces>,
            sizes_.depths,
            space_.sets[step.set].scores + group * kGroupKeys * kBlockRows,
            false};
  }
  // O' of 32 value columns: A = V', B = P.
  HWY_INLINE Product ValuesOf(const Step& step, size_t pair) const {
    return {space_.values + (Group(step) + step.group_begin) * sizes_.ValueBytes() + pair * 2 * kPieceTileBytes<kPieces>,
            space_.sets[step.set].weights + step.group_begin * 2 * kPieceTileBytes<kPieces>,
            kPieceTileBytes<kPieces>,
            sizes_.ValueBytes(),
            kPieceTileBytes<kPieces>,
            2 * kPieceTileBytes<kPieces>,
            step.group_end - step.group_begin,
            step.block->sums + pair * 32 * kBlockRows,
            step.block->started};
  }
  // Where the step's keys lie among the packed ones.
  HWY_INLINE size_t Group(const Step& step) const { return static_cast<size_t>(step.key - chunk_) / kGroupKeys; }

  // Masks of a step whose scores are there, and its shift and rescaling factor, unless the shift stays as it was estimated.
  HWY_NOINLINE void PrepareWeights(Step& step) {
    const FloatTag df;
    const size_t lanes = hn::Lanes(df);
    PieceBlock& block = *step.block;
    float* scores = space_.sets[step.set].scores;
    float* alpha = space_.sets[step.set].alpha;
    float* max = space_.max;
    const size_t begin = step.group_begin * kGroupKeys;
    for (size_t i = step.seen_end * kBlockRows; i < step.group_end * kGroupKeys * kBlockRows; i += lanes) {
      hn::Store(hn::Set(df, kMinusInfinity), df, scores + i);
    }
    const bool wants_maximum = !kEstimatesShift || changes_scores_ || block.unshifted;
    for (size_t j = 0; j < kBlockRows; j += lanes) {
      hn::Store(kEstimatesShift ? hn::Set(df, kLowestFloat) : hn::Load(df, block.shift + j), df, max + j);
    }
    if (step.mask.Changes()) {
      if constexpr (kEstimatesShift) {
        if (changes_scores_) {
          MultiplyScores(scores + begin * kBlockRows, (step.seen_end - begin) * kBlockRows, scale_factor_);
        }
      }
      ApplyMask(step.mask, scores, kBlockRows, begin, step.seen_end, max);
      // Between beats no tile holds anything; but a function of the caller's may have set tiles up for itself.
      if (HWY_UNLIKELY(step.mask.change.mod != nullptr)) tiles_.Configure();
    } else if (wants_maximum) {
      for (size_t j = 0; j < kBlockRows; j += lanes) {
        Floats m = hn::Load(df, max + j);
        for (size_t key = begin; key < step.seen_end; ++key)
          m = MaxDroppingNaN(df, hn::Load(df, scores + key * kBlockRows + j), m);
        hn::Store(m, df, max + j);
      }
    }
    for (size_t group = step.group_begin; group < step.group_end; ++group) {
      const std::uint32_t out_of_range = space_.out_of_range[Group(step) + group];
      if (HWY_UNLIKELY(out_of_range != 0)) SetApart(block, scores + group * kGroupKeys * kBlockRows, out_of_range);
    }
    if constexpr (kEstimatesShift) {
      for (size_t j = 0; j < kBlockRows; j += lanes) ForgetStepSums(j);
      step.rescales = false;
      if (wants_maximum) EstimateShift(step);
    } else {
      bool same = true;
      for (size_t j = 0; j < kBlockRows; j += lanes) {
        const Floats old_shift = hn::Load(df, block.shift + j);
        const Floats shift = hn::Ceil(hn::Load(df, max + j));
        same = same && hn::AllTrue(df, hn::Eq(shift, old_shift));
        hn::Store(Exp2OfDifference(df, old_shift, shift), df, alpha + j);
        hn::Store(shift, df, block.shift + j);
        hn::Store(hn::Zero(df), df, space_.sum + j);
      }
      step.rescales = !same;
    }
  }

  // Moves the shift of a row to the step's maximum: of one that has no shift yet, and in calls that change scores of one whose
  // maximum lies far above.
  HWY_NOINLINE void EstimateShift(Step& step) {
    const FloatTag df;
    PieceBlock& block = *step.block;
    float* alpha = space_.sets[step.set].alpha;
    const Floats factor = hn::Set(df, weight_factor_), lowest = hn::Set(df, kLowestFloat);
    const Floats room = hn::Set(df, changes_scores_ ? kRoomAboveShift : -kMinusInfinity);
    bool same = true;
    block.unshifted = false;
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      const Floats old_shift = hn::Load(df, block.shift + j), max = hn::Mul(factor, hn::Load(df, space_.max + j));
      const Floats reach = hn::IfThenElse(hn::Eq(old_shift, lowest), lowest, hn::Add(old_shift, room));
      const Floats shift = hn::IfThenElse(hn::Gt(max, reach), max, old_shift);
      same = same && hn::AllTrue(df, hn::Eq(shift, old_shift));
      block.unshifted = block.unshifted || !hn::AllFalse(df, hn::Eq(shift, lowest));
      hn::Store(Exp2OfDifference(df, old_shift, shift), df, alpha + j);
      SetShift(block, j, shift);
    }
    step.rescales = !same;
  }

  HWY_INLINE void SetShift(PieceBlock& block, size_t j, Floats shift) const {
    const FloatTag df;
    const IntTag di;
    const Floats limit = hn::Set(df, changes_scores_ ? -kMinusInfinity : kLargestShift);
    const auto far = hn::AndNot(hn::Eq(shift, hn::Set(df, kLowestFloat)), hn::Gt(hn::Abs(shift), limit));
    const Ints apart = hn::VecFromMask(di, hn::RebindMask(di, far));
    hn::Store(hn::Or(hn::Load(di, block.apart + j), apart), di, block.apart + j);
    hn::Store(shift, df, block.shift + j);
  }

  HWY_INLINE void ForgetStepSums(size_t j) {
    const FloatTag df;
    hn::Store(hn::Zero(df), df, space_.sum + j);
    if constexpr (kSumsRounded) hn::Store(hn::Zero(df), df, space_.rounded_sum + j);
  }

  HWY_INLINE void CheckWeights(Step& step) {
    const FloatTag df;
    const Floats most = hn::Set(df, kLargestSum);
    bool good = true;
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      good = good && hn::AllTrue(df, hn::Le(hn::Load(df, space_.sum + j), most));
    }
    if (HWY_UNLIKELY(!good)) WeighAgain(step);
  }

  // The weights of a step again, rows whose sums were too large with its maximum for their shift; the others' are the same.
  HWY_NOINLINE void WeighAgain(Step& step) {
    const FloatTag df;
    PieceBlock& block = *step.block;
    const float* scores = space_.sets[step.set].scores;
    float* alpha = space_.sets[step.set].alpha;
    const Floats factor = hn::Set(df, weight_factor_), most = hn::Set(df, kLargestSum);
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      Floats max = hn::Set(df, kLowestFloat);
      for (size_t key = step.group_begin * kGroupKeys; key < step.group_end * kGroupKeys; ++key) {
        max = MaxDroppingNaN(df, hn::Load(df, scores + key * kBlockRows + j), max);
      }
      max = hn::Mul(factor, max);
      const Floats old_shift = hn::Load(df, block.shift + j);
      const auto stays = hn::Or(hn::Le(hn::Load(df, space_.sum + j), most), hn::Le(max, old_shift));
      const Floats shift = hn::IfThenElse(stays, old_shift, max);
      Floats change = Exp2OfDifference(df, old_shift, shift);
      if (step.rescales) change = hn::Mul(change, hn::Load(df, alpha + j));
      hn::Store(change, df, alpha + j);
      SetShift(block, j, shift);
      ForgetStepSums(j);
    }
    step.rescales = true;
    Weights weights = WeightsOf(step);
    while (weights.Left()) weights.Portion();
  }

  // The rows that see one of these keys, by their masked scores.
  static HWY_NOINLINE void SetApart(PieceBlock& block, const float* scores, std::uint32_t keys) {
    const FloatTag df;
    const IntTag di;
    for (size_t key = 0; key < kGroupKeys; ++key) {
      if ((keys >> key & 1) == 0) continue;
      for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
        const auto excluded = hn::Eq(hn::Load(df, scores + key * kBlockRows + j), hn::Set(df, kMinusInfinity));
        const Ints sees = hn::Not(hn::VecFromMask(di, hn::RebindMask(di, excluded)));
        hn::Store(hn::Or(hn::Load(di, block.apart + j), sees), di, block.apart + j);
      }
    }
  }

  void AddDenominators(const Step& step) {
    const FloatTag df;
    PieceBlock& block = *step.block;
    const float* alpha = space_.sets[step.set].alpha;
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      const auto add = [&](const float* of_step, float* denominator) HWY_ATTR {
        Floats l = hn::Load(df, of_step + j);
        if (block.weighed) {
          // Where nothing is rescaled, alpha may not have been written.
          const Floats old = hn::Load(df, denominator + j);
          l = kEstimatesShift && !step.rescales ? hn::Add(old, l) : hn::MulAdd(hn::Load(df, alpha + j), old, l);
        }
        hn::Store(l, df, denominator + j);
      };
      add(space_.sum, block.denominator);
      if constexpr (kSumsRounded) add(space_.rounded_sum, block.rounded_sum);
    }
    block.weighed = true;
  }

  HWY_NOINLINE void ScaleSums(const PieceBlock& block, const float* factors) {
    const FloatTag df;
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      const Floats factor = hn::Load(df, factors + j);
      float* at = block.sums + j;
      for (std::int64_t e = 0; e < args_.value_dim; ++e, at += kBlockRows) {
        hn::Store(hn::Mul(factor, hn::Load(df, at)), df, at);
      }
    }
  }

  // The sums as if they had been multiplied with weights that add up to the denominator.
  HWY_NOINLINE void DivideByRounded(const PieceBlock& block) {
    const FloatTag df;
    const Floats zero = hn::Zero(df), one = hn::Set(df, 1.0f);
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      const Floats rounded = hn::Load(df, block.rounded_sum + j);
      const Floats factor = hn::Div(hn::Load(df, block.denominator + j), rounded);
      hn::Store(hn::IfThenElse(hn::Eq(rounded, zero), one, factor), df, space_.max + j);
    }
    ScaleSums(block, space_.max);
  }

  const AttentionF32Args& args_;
  MaskReader mask_;
  const PieceSizes<Operands> sizes_;
  const size_t chunk_keys_;
  const bool changes_scores_;   // but for masking them
  float scale_factor_ = 1.0f;   // what scores still lack of scale,
  float weight_factor_ = 1.0f;  // and what they still lack when they become weights
  std::int64_t chunk_ = -1;     // the chunk that is packed, by its first key,
  size_t packed_ = 0;           // and how many groups of it
  Step steps_[3];
  size_t next_step_ = 0, next_set_ = 0;
  Step* weighing_ = nullptr;  // its scores are there
  Step* summing_ = nullptr;   // its weights are there
  Tiles tiles_;
  TileWorkspace<Operands> space_;
};

template <class Tiles, class Operands>
static HWY_NOINLINE void ComputeRowsOnTiles(const AttentionF32Args& args) {
  TileAttentionRun<Tiles, Operands>(args).Rows();
}

template <class Tiles, class Operands>
static void RunAttentionOnTiles(const AttentionF32Args& args) {
  const FlushDenormals flush;
  ComputeRowsOnTiles<Tiles, Operands>(args);
}

template <class Operands>
static size_t TileAttentionScratchBytes(std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
  TileWorkspace<Operands> space;
  return space.Place(nullptr, head_dim, value_dim, key_count);
}

static std::int32_t KeysOfStep(std::int64_t, std::int64_t) {
  return static_cast<std::int32_t>(kStepKeys);
}

template <class Tiles, class Operands>
constexpr AttentionKernel TileKernel(const char* name) {
  return {name,
          static_cast<std::int32_t>(kBlockRows),
          static_cast<std::int32_t>(kKeyBlock),
          &TileAttentionScratchBytes<Operands>,
          &RunAttentionOnTiles<Tiles, Operands>,
          ElementOf<typename Operands::T>::value,
          &KeysOfStep};
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
