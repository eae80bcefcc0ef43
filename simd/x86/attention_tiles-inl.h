// attention_f32 on tiles that multiply bf16: f32 operands are sums of three pieces, and six products of pieces make an f32
// product (bf16_pieces-inl.h). For Precision::fast: two pieces, three products. The scheme is that of
// simd/hwy/attention_f32-inl.h, transposed scores with a lane a query row, and shares its masks, its exponential and its way
// out:
//
//   Q' = scale * log2(e) * Q                                       32 rows a block, packed once
//   K, V' of the keys that some block sees                         packed once for 16 blocks
//   for each row block, for each step of 64 keys:  S = K Q'        [key][row]   tiles
//                                                  mask, maximum, shift, P = 2^(S - m) in pieces
//                                                  O' += V' P      [e][row]     tiles
//   out = O' / l, transposed back
//
// Three steps are on their way at once: the weights of one are computed in small portions between the tile products of its
// successor's scores and of its predecessor's values. Tile operations come as a policy (tiles_amx-inl.h).
//
// The maximum of a step is taken before its weights, so a shift is never too small and no step is ever computed twice. Beside
// 48 tile products a score tile, that pass costs a few hundredths.
//
// Rows that pieces cannot serve, because their query or some key or value that they may see is out of range or not finite, are
// computed by the plain kernel, each for itself: what a row gets depends on its own operands alone. Such keys are packed as
// zeros, so that nothing of them reaches the other rows, which give them weight 0.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/attention_block-inl.h"
#include "simd/hwy/attention_f32-inl.h"
#include "simd/hwy/scratch.h"
#include "simd/x86/attention_pieces-inl.h"
#include "simd/x86/tile_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

constexpr size_t kBlockRows = kProductColumns;
constexpr size_t kGroupKeys = 32;  // two tiles
constexpr size_t kStepKeys = 64;
constexpr size_t kStepGroups = kStepKeys / kGroupKeys;
constexpr size_t kBlocksAtOnce = 16;
constexpr size_t kPackedBytes =
    768 * 1024;  // of K and V in pieces: with 16 row blocks they stay in a second-level cache of 2 MB

// Sizes in tiles.
template <size_t kPieces>
struct PieceSizes {
  size_t depths;       // of a sum over the head size
  size_t value_pairs;  // pairs of tiles of value columns
  PieceSizes(std::int64_t head_dim, std::int64_t value_dim)
      : depths((static_cast<size_t>(head_dim) + kDepth - 1) / kDepth),
        value_pairs((static_cast<size_t>(value_dim) + 31) / 32) {}
  size_t KeyBytes() const { return 2 * depths * kPieceTileBytes<kPieces>; }  // of a group of 32 keys, and of a block's query
  size_t ValueBytes() const { return 2 * value_pairs * kPieceTileBytes<kPieces>; }
  // Keys that are packed at once, a multiple of the kernel's key block.
  size_t ChunkKeys() const {
    const size_t blocks = kPackedBytes / (KeyBytes() + ValueBytes()) * kGroupKeys / kKeyBlock;
    return HWY_MAX(blocks, size_t{1}) * kKeyBlock;
  }
};

// A row block with what tiles need.
struct PieceBlock : RowBlock {
  unsigned char* pieces;  // Q'
  std::int32_t* apart;    // [32]: -1 for rows that the plain kernel computes
  bool weighed;           // the denominator holds something
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

template <size_t kPieces>
struct TileWorkspace {
  PieceBlock blocks[kBlocksAtOnce];
  StepBuffers sets[2];
  unsigned char *keys, *values;  // [group] as PackKeys leaves them
  std::uint32_t* out_of_range;   // [group]: a bit a key
  float* gathered;               // [32][D] and [32][E]: a group's keys and values where pages have them apart
  float* lanes_of_rows;          // [max(D, E)][32]
  std::int32_t* keep;            // [32]
  float *max, *sum;              // [32]
  float* nowhere;                // [32][32]: takes a store that has nothing to store
  void* plain;                   // the plain kernel's scratch

  size_t Place(void* memory, std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
    const PieceSizes<kPieces> sizes(head_dim, value_dim);
    Carver carver(memory);
    for (PieceBlock& block : blocks) {
      block.pieces = carver.Take<unsigned char>(sizes.KeyBytes());
      block.sums = carver.Take<float>(sizes.value_pairs * 32 * kBlockRows);
      block.shift = carver.Take<float>(kBlockRows);
      block.denominator = carver.Take<float>(kBlockRows);
      block.query_offset = carver.Take<std::int32_t>(kBlockRows);
      block.apart = carver.Take<std::int32_t>(kBlockRows);
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
    gathered = carver.Take<float>(static_cast<size_t>(head_dim + value_dim) * kGroupKeys);
    lanes_of_rows = carver.Take<float>(static_cast<size_t>(HWY_MAX(head_dim, value_dim)) * kBlockRows);
    keep = carver.Take<std::int32_t>(kBlockRows);
    max = carver.Take<float>(kBlockRows);
    sum = carver.Take<float>(kBlockRows);
    nowhere = carver.Take<float>(32 * kBlockRows);
    const size_t plain_bytes = AttentionScratchBytes<TileLimits, float>(head_dim, value_dim, key_count);
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

// One call: its operands, and what stays the same from step to step.
template <class Tiles, size_t kPieces>
class TileAttentionRun {
 public:
  explicit TileAttentionRun(const AttentionF32Args& args)
      : args_(args), mask_(args), sizes_(args.head_dim, args.value_dim), chunk_keys_(sizes_.ChunkKeys()) {
    space_.Place(args.scratch, args.head_dim, args.value_dim, HWY_MAX(args.key_end - args.key_begin, std::int64_t{0}));
  }

  void Rows() {
    tiles_.Configure();
    const float scale = ScaleOfScores(args_);
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
    PlaceRows(args_, block);
    ForgetKeys(block);
    PackQuery<kPieces>(args_, row, block.rows, scale, space_.lanes_of_rows, space_.keep, block.apart, block.pieces);
  }

  void Finish(PieceBlock& block) {
    FinishBlock<float>(args_, block, space_.max);
    for (size_t lane = 0; lane < block.rows; ++lane) {
      if (HWY_LIKELY(block.apart[lane] == 0)) continue;
      const size_t first = lane;
      while (lane + 1 < block.rows && block.apart[lane + 1] != 0) ++lane;
      AttentionF32Args rows = args_;
      rows.row_begin = block.first_row + static_cast<std::int64_t>(first);
      rows.row_end = block.first_row + static_cast<std::int64_t>(lane) + 1;
      if (rows.partial) rows.partial += (rows.row_begin - args_.row_begin) * (args_.value_dim + 2);
      rows.scratch = space_.plain;
      ComputeRows<TileLimits, float>(rows);
    }
  }

  // The keys of `count` row blocks, chunk by chunk.
  void Keys(size_t count) {
    const std::int64_t chunk_keys = static_cast<std::int64_t>(chunk_keys_);
    const std::int64_t first_key = space_.blocks[0].t_first + args_.visible_begin;
    const std::int64_t end = HWY_MIN(args_.key_end, space_.blocks[count - 1].t_last + args_.visible_end);
    std::int64_t chunk = args_.key_begin;
    if (first_key > chunk) chunk += (first_key - chunk) / chunk_keys * chunk_keys;
    for (; chunk < end; chunk += chunk_keys) {
      const std::int64_t chunk_end = HWY_MIN(chunk + chunk_keys, end);
      Pack(chunk, chunk_end);
      for (size_t i = 0; i < count; ++i) Steps(space_.blocks[i], chunk, chunk_end);
      Advance(nullptr);
      Advance(nullptr);
    }
  }

  // Packs the chunk's keys up to `end`, as far as they are not packed yet.
  void Pack(std::int64_t chunk, std::int64_t end) {
    if (chunk != chunk_) packed_ = 0;
    chunk_ = chunk;
    for (; chunk + static_cast<std::int64_t>(packed_ * kGroupKeys) < end; ++packed_) {
      const std::int64_t key = chunk + static_cast<std::int64_t>(packed_ * kGroupKeys);
      const size_t count = static_cast<size_t>(HWY_MIN(args_.key_end - key, static_cast<std::int64_t>(kGroupKeys)));
      space_.out_of_range[packed_] = PackKeys<kPieces>(args_, key, count, space_.gathered, space_.lanes_of_rows, space_.keep,
                                                       space_.keys + packed_ * sizes_.KeyBytes(),
                                                       space_.values + packed_ * sizes_.ValueBytes(), 2 * sizes_.value_pairs);
    }
  }

  // Sends the steps in which some row of the block sees some key on their way.
  void Steps(PieceBlock& block, std::int64_t chunk, std::int64_t chunk_end) {
    const std::int64_t step_keys = static_cast<std::int64_t>(kStepKeys);
    const std::int64_t begin = HWY_MAX(chunk, block.t_first + args_.visible_begin);
    const std::int64_t end = HWY_MIN(chunk_end, block.t_last + args_.visible_end);
    if (begin >= end) return;
    for (std::int64_t key = chunk + (begin - chunk) / step_keys * step_keys; key < end; key += step_keys) {
      Step& step = steps_[next_step_];
      const StepBuffers& set = space_.sets[next_set_];
      step.block = &block;
      step.key = key;
      step.set = next_set_;
      step.group_begin = begin - key >= static_cast<std::int64_t>(kGroupKeys) ? 1 : 0;
      step.seen_end = static_cast<size_t>(HWY_MIN(end - key, step_keys));
      step.group_end = step.seen_end > kGroupKeys ? 2 : 1;
      step.mask = TileMask();
      if (!mask_.ReadKeys(key, HWY_MIN(key + step_keys, args_.key_end), set.mask)) continue;
      if (!mask_.ReadTile(block, key, step.group_begin * kGroupKeys, step.seen_end, set.mask, step.mask)) continue;
      Advance(&step);
    }
  }

  // One beat of the pipeline: scores of `step`, weights of the step before, values of the one before that.
  void Advance(Step* step) {
    WeightStream<kPieces> weights;
    if (weighing_) {
      PrepareWeights(*weighing_);
      weights = WeightStream<kPieces>(*weighing_, space_.sets[weighing_->set], space_.sum);
    }
    if (summing_ && summing_->rescales && summing_->block->started) ScaleSums(*summing_);
    MultiplyAndWeigh(step, summing_, weights);
    if (weighing_) AddDenominators(*weighing_);
    if (summing_) summing_->block->started = true;
    summing_ = weighing_;
    weighing_ = step;
    if (step) {
      next_step_ = (next_step_ + 1) % 3;
      next_set_ ^= 1;
    }
  }

  HWY_NOINLINE void MultiplyAndWeigh(const Step* scoring, const Step* summing, WeightStream<kPieces> weights) {
    const size_t score_products = scoring ? scoring->group_end - scoring->group_begin : 0;
    const size_t products = score_products + (summing ? sizes_.value_pairs : 0);
    Tiles& tiles = tiles_;
    float* unstored = space_.nowhere;
    for (size_t i = 0; i < products; ++i) {
      const Product product =
          i < score_products ? ScoresOf(*scoring, scoring->group_begin + i) : ValuesOf(*summing, i - score_products);
      MultiplyPieces<kPieces>(tiles, product, unstored, weights);
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

  // Masks, maximum, shift and rescaling factor of a step whose scores are there.
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
    for (size_t j = 0; j < kBlockRows; j += lanes) hn::Store(hn::Load(df, block.shift + j), df, max + j);
    if (step.mask.Changes()) {
      ApplyMask(step.mask, scores, kBlockRows, begin, step.seen_end, max);
      // Between beats no tile holds anything; but a function of the caller's may have set tiles up for itself.
      if (HWY_UNLIKELY(step.mask.change.mod != nullptr)) tiles_.Configure();
    } else {
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
      Floats l = hn::Load(df, space_.sum + j);
      if (block.weighed) l = hn::MulAdd(hn::Load(df, alpha + j), hn::Load(df, block.denominator + j), l);
      hn::Store(l, df, block.denominator + j);
    }
    block.weighed = true;
  }

  HWY_NOINLINE void ScaleSums(const Step& step) {
    const FloatTag df;
    const float* alpha = space_.sets[step.set].alpha;
    for (size_t j = 0; j < kBlockRows; j += hn::Lanes(df)) {
      const Floats factor = hn::Load(df, alpha + j);
      float* at = step.block->sums + j;
      for (std::int64_t e = 0; e < args_.value_dim; ++e, at += kBlockRows) {
        hn::Store(hn::Mul(factor, hn::Load(df, at)), df, at);
      }
    }
  }

  const AttentionF32Args& args_;
  MaskReader mask_;
  const PieceSizes<kPieces> sizes_;
  const size_t chunk_keys_;
  std::int64_t chunk_ = -1;  // the chunk that is packed, by its first key,
  size_t packed_ = 0;        // and how many groups of it
  Step steps_[3];
  size_t next_step_ = 0, next_set_ = 0;
  Step* weighing_ = nullptr;  // its scores are there
  Step* summing_ = nullptr;   // its weights are there
  Tiles tiles_;
  TileWorkspace<kPieces> space_;
};

template <class Tiles, size_t kPieces>
static HWY_NOINLINE void ComputeRowsOnTiles(const AttentionF32Args& args) {
  TileAttentionRun<Tiles, kPieces>(args).Rows();
}

template <class Tiles, size_t kPieces>
static void RunAttentionOnTiles(const AttentionF32Args& args) {
  const FlushDenormals flush;
  ComputeRowsOnTiles<Tiles, kPieces>(args);
}

template <size_t kPieces>
static size_t TileAttentionScratchBytes(std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count) {
  TileWorkspace<kPieces> space;
  return space.Place(nullptr, head_dim, value_dim, key_count);
}

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
