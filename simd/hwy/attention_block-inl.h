// What attention kernels with transposed scores share around their arithmetic: a block of query rows, its results' way out, and
// the masks of one tile read into the form that ApplyMask takes.
#pragma once

#include "simd/contract/attention.hpp"
#include "simd/hwy/attention_mask-inl.h"
#include "simd/hwy/compat.h"
#include "simd/hwy/element-inl.h"
#include "simd/hwy/exp2-inl.h"
#include "simd/hwy/key_block-inl.h"
#include "simd/hwy/row_map-inl.h"
#include "simd/hwy/row_values-inl.h"
#include "simd/hwy/score_change-inl.h"
#include "simd/hwy/scratch.h"
#include "simd/hwy/total-inl.h"
#include "simd/hwy/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

// One block of rows, on its way through the keys.
struct RowBlock {
  float* query;                // [head_dim][width], scaled
  float* sums;                 // [value_dim][width]
  float* shift;                // [width]: m
  float* denominator;          // [width]: l
  std::int32_t* query_offset;  // [width]: t - t_first
  std::int64_t first_row;
  std::int64_t t_first, t_last;
  size_t rows, width;
  bool started;          // sums and denominator hold something
  RowValues row_values;  // with keys: the value step is still to be done, and sums hold nothing

  // What FoldSums has put away, unless `folded` is false.
  bool folded = false;
  float *total = nullptr, *total_rest = nullptr;                    // [value_dim][width]: their sum is what was summed up
  float *total_denominator = nullptr, *denominator_rest = nullptr;  // [width]
  float* total_shift = nullptr;                                     // [width]: m of all of these

  void PlaceTotals(Carver& carver, size_t value_dim, size_t most_rows) {
    total = carver.Take<float>(value_dim * most_rows);
    total_rest = carver.Take<float>(value_dim * most_rows);
    total_denominator = carver.Take<float>(most_rows);
    denominator_rest = carver.Take<float>(most_rows);
    total_shift = carver.Take<float>(most_rows);
  }
};

// Fills in which queries the rows [first_row, first_row + rows) belong to.
static void PlaceRows(const AttentionF32Args& args, RowBlock& block) {
  const std::int64_t last_row = block.first_row + static_cast<std::int64_t>(block.rows) - 1;
  block.t_first = args.group == 1 ? block.first_row : block.first_row / args.group;
  block.t_last = args.group == 1 ? last_row : last_row / args.group;
  if (args.group == 1) {
    const IntTag di;
    const Ints first = hn::Iota(di, 0), most = hn::Set(di, static_cast<std::int32_t>(block.rows) - 1);
    for (size_t lane = 0; lane < block.width; lane += hn::Lanes(di)) {
      const Ints offset = hn::Add(first, hn::Set(di, static_cast<std::int32_t>(lane)));
      hn::Store(hn::Min(offset, most), di, block.query_offset + lane);
    }
    return;
  }
  std::int64_t g = block.first_row - block.t_first * args.group;
  std::int32_t offset = 0;
  for (size_t lane = 0; lane < block.width; ++lane) {
    block.query_offset[lane] = offset;
    if (lane + 1 < block.rows && ++g == args.group) g = 0, ++offset;
  }
}

static void ForgetKeys(RowBlock& block) {
  const FloatTag df;
  block.started = block.folded = false;
  block.row_values.keys = 0;
  for (size_t j = 0; j < block.width; j += hn::Lanes(df)) hn::Store(hn::Set(df, kLowestFloat), df, block.shift + j);
}

// Adds a block's sums to its totals, in two floats each, and leaves it to start anew: one chain over all keys would be as long
// as they are many. Keys of weight 0 leave no trace: what they add is exactly 0.
static HWY_NOINLINE void FoldSums(RowBlock& block, size_t value_dim) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), count = value_dim * block.width;
  if (!block.folded) {
    for (size_t i = 0; i < count; i += lanes) {
      hn::Store(hn::Load(df, block.sums + i), df, block.total + i);
      hn::Store(hn::Zero(df), df, block.total_rest + i);
    }
    for (size_t j = 0; j < block.width; j += lanes) {
      hn::Store(hn::Load(df, block.denominator + j), df, block.total_denominator + j);
      hn::Store(hn::Zero(df), df, block.denominator_rest + j);
    }
  } else {
    for (size_t j = 0; j < block.width; j += lanes) {
      const Floats factor = Exp2OfDifference(df, hn::Load(df, block.total_shift + j), hn::Load(df, block.shift + j));
      AddToTotalAt(factor, block.denominator + j, block.total_denominator + j, block.denominator_rest + j);
      for (size_t i = j; i < count; i += block.width) {
        AddToTotalAt(factor, block.sums + i, block.total + i, block.total_rest + i);
      }
    }
  }
  for (size_t j = 0; j < block.width; j += lanes) hn::Store(hn::Load(df, block.shift + j), df, block.total_shift + j);
  block.folded = true;
  block.started = false;
}

// Brings a block's totals back into its sums.
static HWY_NOINLINE void UnfoldSums(RowBlock& block, size_t value_dim) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df);
  if (block.started) FoldSums(block, value_dim);
  for (size_t i = 0; i < value_dim * block.width; i += lanes) {
    hn::Store(TotalAt(block.total + i, block.total_rest + i), df, block.sums + i);
  }
  for (size_t j = 0; j < block.width; j += lanes) {
    hn::Store(TotalAt(block.total_denominator + j, block.denominator_rest + j), df, block.denominator + j);
  }
  block.started = true;
  block.folded = false;
}

template <class Out>
HWY_INLINE bool WriteRows(const RowBlock& block, const float* factor, size_t value_dim, const RowMap<Out>& out,
                          std::int64_t first) {
  if constexpr (kHasRowValues) {
    if (block.row_values.keys > 0) return WriteRowValues(block.row_values, factor, block.rows, value_dim, out, first);
  }
  return LanesToRows(block.sums, block.width, factor, block.rows, value_dim, out, first);
}

// Writes the block's results and returns true when there is a NaN among the sums. Keys are elements of T.
template <class T>
static bool FinishBlock(const AttentionF32Args& args, RowBlock& block, float* factor) {
  const FloatTag df;
  const size_t lanes = hn::Lanes(df), value_dim = static_cast<size_t>(args.value_dim);
  const Floats zero = hn::Zero(df), one = hn::Set(df, 1.0f);
  if (block.folded) UnfoldSums(block, value_dim);
  if (!block.started) {
    for (size_t i = 0; i < value_dim * block.width; i += lanes) hn::Store(zero, df, block.sums + i);
    for (size_t j = 0; j < block.width; j += lanes) hn::Store(zero, df, block.denominator + j);
  }
  for (size_t j = 0; j < block.width; j += lanes) {
    const Floats l = hn::Load(df, block.denominator + j);
    hn::Store(args.partial ? one : hn::IfThenElse(hn::Eq(l, zero), zero, hn::Div(one, l)), df, factor + j);
  }
  if (args.partial) {
    const std::int64_t row_floats = args.value_dim + 2;
    const RowMap<float> rows = {args.partial, row_floats * static_cast<std::ptrdiff_t>(sizeof(float)), 0, 1};
    const bool nan = WriteRows(block, factor, value_dim, rows, block.first_row - args.row_begin);
    for (size_t lane = 0; lane < block.rows; ++lane) {
      float* row = rows.At(block.first_row - args.row_begin + static_cast<std::int64_t>(lane));
      row[value_dim] = block.shift[lane];
      row[value_dim + 1] = block.denominator[lane];
    }
    return nan;
  }
  const auto with_sink = [&](size_t lane) {
    const RowMap<const float> sinks = {args.sink, 0, args.sink_stride, args.group};
    return EndWithSink(block.shift[lane], block.denominator[lane],
                       *sinks.At(block.first_row + static_cast<std::int64_t>(lane)));
  };
  if (args.sink) {
    for (size_t lane = 0; lane < block.rows; ++lane) factor[lane] = with_sink(lane).factor;
  }
  bool nan = false;
  WithElement(element_beside<T>(args.out_element), [&](auto element) HWY_ATTR {
    using Out = decltype(element);
    const RowMap<Out> out = {static_cast<Out*>(args.out), args.out_stride, args.out_head_stride, args.group};
    nan = WriteRows(block, factor, value_dim, out, block.first_row);
  });
  if (args.lse) {
    const RowMap<float> lse = {args.lse, args.lse_stride, args.lse_head_stride, args.group};
    for (size_t lane = 0; lane < block.rows; ++lane) {
      *lse.At(block.first_row + static_cast<std::int64_t>(lane)) =
          args.sink ? with_sink(lane).lse : LogOfDenominator(block.shift[lane], block.denominator[lane]);
    }
  }
  return nan;
}

template <class T>
static inline Varies HowItVaries(const T* operand, std::ptrdiff_t stride, std::ptrdiff_t head_stride, std::int64_t group) {
  if (!operand) return Varies::absent;
  return stride == 0 && (head_stride == 0 || group == 1) ? Varies::keys : Varies::rows;
}

// What a tile's mask is read into.
struct MaskTables {
  float* bias;                  // [keys of a block][width]; widened, of one value a key for all rows: [keys of a block]
  std::int32_t* allowed_bytes;  // [keys of a block / 4][width]
  std::int32_t* excluded_keys;  // [keys of a block]
  float* slopes;                // [width]
  float* positions;             // [width]
  std::int32_t* heads;          // [width]
  ScoreModTile* mod_tile;

  void Place(Carver& carver, size_t keys, size_t width) {
    bias = carver.Take<float>(keys * width);
    allowed_bytes = carver.Take<std::int32_t>(keys / 4 * width);
    excluded_keys = carver.Take<std::int32_t>(keys);
    slopes = carver.Take<float>(width);
    positions = carver.Take<float>(width);
    heads = carver.Take<std::int32_t>(width);
    mod_tile = carver.Take<ScoreModTile>(1);
  }
};

// What the caller's function is told about the rows of a block and the keys [begin, end). False: it would exclude them all.
static bool PlaceScoreMod(const AttentionF32Args& args, const RowBlock& block, std::int64_t begin, std::int64_t end,
                          const MaskTables& tables, TileChange& change) {
  static_assert(kMostLinesOrLanes >= 128, "keys of a block");
  const ScoreMod& mod = *args.score_mod;
  const std::int64_t first_head = block.first_row - block.t_first * args.group;
  const bool one_query = block.t_first == block.t_last;
  ScoreModTile& tile = *tables.mod_tile;
  tile = ScoreModTile();
  if (mod.classify) {
    ScoreModRange range;
    range.batch = args.mod_batch;
    range.head_begin = args.mod_head + (one_query ? first_head : 0);
    range.head_end = one_query ? range.head_begin + static_cast<std::int64_t>(block.rows) : args.mod_head + args.group;
    range.query_begin = args.mod_query + block.t_first;
    range.query_end = args.mod_query + block.t_last + 1;
    range.key_begin = args.mod_key + begin;
    range.key_end = args.mod_key + end;
    const TileClass kind = mod.classify(mod.context, range);
    if (kind == TileClass::skip) return false;
    tile.is_full = kind == TileClass::full;
  }
  change.mod = &mod;
  change.mod_tile = &tile;
  tile.lines = end - begin;
  tile.lanes = tile.line_stride = static_cast<std::int64_t>(block.width);
  tile.batch = args.mod_batch;
  tile.query = {args.mod_query + block.t_first, kAllZero.offsets, block.query_offset};
  tile.key = {args.mod_key + begin, kAscending.offsets, kAllZero.offsets};
  tile.head = {args.mod_head, kAllZero.offsets, kAllZero.offsets};
  if (args.group == 1) return true;
  std::int32_t g = static_cast<std::int32_t>(first_head);
  for (size_t lane = 0; lane < block.width; ++lane) {
    tables.heads[lane] = g;
    if (lane + 1 < block.rows && ++g == args.group) g = 0;
  }
  tile.head.of_lane = tables.heads;
  return true;
}

// The slope of each row, and its position among the keys of the block that begins at `key`.
static void PlaceDistances(const AttentionF32Args& args, const RowBlock& block, std::int64_t key, const MaskTables& tables) {
  std::int64_t g = block.first_row - block.t_first * args.group;
  for (size_t lane = 0; lane < block.width; ++lane) {
    tables.slopes[lane] = ScaleInLog2Units(static_cast<double>(*Offset(args.alibi_slopes, g * args.alibi_stride)));
    tables.positions[lane] = PositionOf(args, block.t_first + block.query_offset[lane], key);
    if (lane + 1 < block.rows && ++g == args.group) g = 0;
  }
}

// Reads the masks of a call, tile by tile.
class MaskReader {
 public:
  explicit MaskReader(const AttentionF32Args& args)
      : args_(args),
        boolean_(HowItVaries(args.boolean_mask, args.mask_stride, args.mask_head_stride, args.group)),
        bias_(HowItVaries(args.bias, args.bias_stride, args.bias_head_stride, args.group)),
        softcap_(args.softcap, UnitOfScores(args)) {}

  // Whether queries [t_first, t_last] may see one of the keys [key, end), for all that is known without reading masks.
  bool MaySee(std::int64_t t_first, std::int64_t t_last, std::int64_t key, std::int64_t end) const {
    return !args_.key_marks || (MarksOfRows(args_, t_first, t_last).Of(key, end) & keys_seen) != 0;
  }

  // Whether keys of the block last read may be hidden from all rows of a tile, as marks tell.
  bool MarksHide() const { return args_.key_marks && keys_allowed_ != Allowed::all; }

  // Of the key block [key, end), before its tiles, which are of queries [t_first, t_last]. False: its keys are excluded for
  // every row.
  bool ReadKeys(std::int64_t t_first, std::int64_t t_last, std::int64_t key, std::int64_t end, const MaskTables& tables) {
    keys_allowed_ = Allowed::all;
    if (args_.key_marks) {
      const std::uint8_t mark = MarksOfRows(args_, t_first, t_last).Of(key, end);
      if (!(mark & keys_seen)) return false;
      if (mark & keys_all) return true;
      keys_allowed_ = Allowed::some;
    }
    if (boolean_ != Varies::keys) return true;
    keys_allowed_ = ReadKeyMask(Offset(args_.boolean_mask, static_cast<std::ptrdiff_t>(key) * args_.mask_key_stride),
                                args_.mask_key_stride, static_cast<size_t>(end - key), tables.excluded_keys);
    return keys_allowed_ != Allowed::none;
  }

  // Of a row block and the keys [key + begin, key + end) of the key block last read; `begin` is a multiple of 4. False: no row
  // may see any of them.
  bool ReadTile(const RowBlock& block, std::int64_t key, size_t begin, size_t end, const MaskTables& tables,
                TileMask& mask) const {
    if (HWY_UNLIKELY(args_.score_mod != nullptr) && !PlaceScoreMod(args_, block, key + static_cast<std::int64_t>(begin),
                                                                   key + static_cast<std::int64_t>(end), tables, mask.change)) {
      return false;
    }
    mask.structural =
        classify_tile(block.t_first, block.t_last, key + static_cast<std::int64_t>(begin), key + static_cast<std::int64_t>(end),
                      args_.visible_begin, args_.visible_end, args_.kept_end) != TileClass::full;
    if (mask.structural) {
      mask.kept_end = ClampLimit(args_.kept_end - key);
      mask.first_begin = ClampLimit(block.t_first + args_.visible_begin - key);
      mask.first_end = ClampLimit(block.t_first + args_.visible_end - key);
      mask.query_offset = block.query_offset;
    }
    const std::int64_t first = key + static_cast<std::int64_t>(begin), last = key + static_cast<std::int64_t>(end);
    bool reads_rows = boolean_ == Varies::rows;
    if (reads_rows && MarksHide()) {
      const std::uint8_t mark = MarksOfRows(args_, block.t_first, block.t_last).Of(first, last);
      if (!(mark & keys_seen)) return false;
      reads_rows = !(mark & keys_all);
    } else if (args_.key_marks) {
      reads_rows = false;
    }
    if (boolean_ == Varies::keys && keys_allowed_ == Allowed::some) {
      mask.boolean = Varies::keys;
      mask.excluded_keys = tables.excluded_keys;
    } else if (reads_rows) {
      const RowMap<const std::uint8_t> rows = {
          Offset(args_.boolean_mask, static_cast<std::ptrdiff_t>(key) * args_.mask_key_stride), args_.mask_stride,
          args_.mask_head_stride, args_.group};
      const Allowed allowed = BooleanToLanes(rows, args_.mask_key_stride, block.first_row, block.rows, block.width, begin, end,
                                             tables.allowed_bytes);
      if (allowed == Allowed::none) return false;
      if (allowed == Allowed::some) mask.boolean = Varies::rows;
      mask.allowed_bytes = tables.allowed_bytes;
    }
    if (bias_ != Varies::absent) {
      mask.bias = bias_;
      const void* const bias = Offset(args_.bias, static_cast<std::ptrdiff_t>(key) * args_.bias_key_stride);
      if (bias_ == Varies::keys && args_.bias_element == Element::f32) {
        mask.bias_keys = static_cast<const float*>(bias);
        mask.bias_key_stride = args_.bias_key_stride;
      } else {
        WithElement(args_.bias_element, [&](auto element) HWY_ATTR {
          using Bias = decltype(element);
          WidenBias(static_cast<const Bias*>(bias), block, begin, end, tables.bias);
        });
        mask.bias_keys = mask.bias_rows = tables.bias;
        mask.bias_key_stride = sizeof(float);
      }
    }
    mask.change.softcap = softcap_;
    if (args_.alibi_slopes) {
      PlaceDistances(args_, block, key, tables);
      mask.change.slopes = tables.slopes;
      mask.change.positions = tables.positions;
    }
    return true;
  }

 private:
  // Brings the bias of a tile, which begins at its block's first key, to `to`: [key][row], or [key] where it varies with keys
  // alone.
  template <class Bias>
  HWY_INLINE void WidenBias(const Bias* bias, const RowBlock& block, size_t begin, size_t end, float* to) const {
    if (bias_ == Varies::keys) {
      WidenKeyBias(Offset(bias, static_cast<std::ptrdiff_t>(begin) * args_.bias_key_stride), args_.bias_key_stride, end - begin,
                   to + begin);
      return;
    }
    const RowMap<const Bias> rows = {bias, args_.bias_stride, args_.bias_head_stride, args_.group};
    BiasToLanes(rows, args_.bias_key_stride, block.first_row, block.rows, block.width, begin, end, to);
  }

  const AttentionF32Args& args_;
  const Varies boolean_;
  const Varies bias_;
  const Softcap softcap_;
  Allowed keys_allowed_ = Allowed::all;
};

}  // namespace
}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
