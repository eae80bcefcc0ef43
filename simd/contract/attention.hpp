// What an attention kernel promises. Plain structs: no Highway, no oneTBB, nothing from src/.
//
// A kernel is stateless, allocates nothing, starts nothing and logs nothing. It owns its tails, touches no byte outside its
// operands, and leaves the caller's floating-point environment as it was (it may flush denormals inside).
//
// Rows. The query rows of one kv head are numbered r = t * group + g, for query t and the g-th query head of the group, so
// that neighbouring rows share keys. A kernel computes each row by itself: its bits depend on the row's own operands, never
// on which rows or batch items it is computed beside, nor on row_begin and row_end.
//
// Whatever a row excludes, a key whose score is -inf included, does not influence it, NaN and infinite values least of all.
//
// Keys are cut into blocks at multiples of the kernel's key_block, counted from key 0; blocks are taken in ascending order.
//
// Keys may lie in pages, as caches keep them. Where a key lies never changes a bit: blocks are cut by the keys' numbers alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/contract/element.hpp"
#include "simd/contract/mask_marks.hpp"

namespace polyhead::simd {

struct ScoreMod;  // simd/contract/score_mod.hpp

// One batch item and kv head. Strides are in bytes and may be 0 or negative; head_dim and value_dim elements are contiguous.
//
// key and value are of the kernel's element, query and out too unless the call says otherwise; all else is as it says. Elements
// are widened exactly, scores, weights and sums are f32, and a result is rounded to out's element once, to nearest even: what
// is too large for it becomes infinite. Denormal elements of f16 count as what they are; those of bf16 and f32 may be flushed
// to zero.
struct AttentionArgs {
  Element query_element = Element::of_keys, out_element = Element::of_keys;
  const void* query = nullptr;  // row r at query + t * query_stride + g * query_head_stride
  std::ptrdiff_t query_stride = 0;
  std::ptrdiff_t query_head_stride = 0;
  const void* key = nullptr;  // key s at key + s * key_stride
  std::ptrdiff_t key_stride = 0;
  const void* value = nullptr;
  std::ptrdiff_t value_stride = 0;
  // Where it is not null, key and value are, and key s lies at pages[s / page_keys - first_page] + key_in_page
  // + (s % page_keys) * key_stride, its value likewise. Every page of the keys from key_begin to what is read of key_end is in
  // the table; one address may stand in several of its places.
  const void* const* pages = nullptr;
  std::int64_t first_page = 0;
  std::int64_t page_keys = 0;
  std::ptrdiff_t key_in_page = 0;
  std::ptrdiff_t value_in_page = 0;

  // Bytes of rows of K, and of V, that few query rows ask for ahead of their use, in each stream; 0: left to the CPU.
  std::int64_t fetch_ahead = 0;

  // Of keys and values of I8, else null. Key s stands for key_mean[d] + key_channel[d] * scale * key[d]; its scale lies at
  // key_scale + s or, in pages, at the key's page + key_scale_in_page + (s % page_keys) floats. Values likewise. A scale of NaN
  // makes the whole key, or value, one of NaN. Means and channels are finite.
  const float* key_scale = nullptr;
  const float* value_scale = nullptr;
  std::ptrdiff_t key_scale_in_page = 0;
  std::ptrdiff_t value_scale_in_page = 0;
  const float* key_mean = nullptr;     // [head_dim]
  const float* key_channel = nullptr;  // [head_dim]
  const float* value_mean = nullptr;   // [value_dim]
  const float* value_channel = nullptr;

  std::int64_t group = 1;      // query heads that share this kv head
  std::int64_t row_begin = 0;  // rows [row_begin, row_end) of query_length * group
  std::int64_t row_end = 0;
  std::int64_t key_begin = 0;  // keys [key_begin, key_end); key_begin is a multiple of key_block
  std::int64_t key_end = 0;    // at most the batch item's key length; what lies beyond is never read
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  double scale = 1.0;  // natural-log units; any finite number

  // Query t may see the keys s with t + visible_begin <= s < t + visible_end. unbounded_begin / unbounded_end: no limit.
  static constexpr std::int64_t unbounded_begin = -(std::int64_t{1} << 62);
  static constexpr std::int64_t unbounded_end = std::int64_t{1} << 62;
  std::int64_t visible_begin = unbounded_begin;
  std::int64_t visible_end = unbounded_end;
  std::int64_t kept_end = 0;  // keys s < kept_end are seen whatever visible_begin says

  const std::uint8_t* boolean_mask = nullptr;  // byte at + t * stride + g * head_stride + s * key_stride; 0 excludes
  std::ptrdiff_t mask_stride = 0;
  std::ptrdiff_t mask_head_stride = 0;
  std::ptrdiff_t mask_key_stride = 0;
  // Beside a boolean mask, or null: a mark (mask_marks.hpp) for every queries_per_mark queries, counted from query 0, with all
  // their heads, x keys_per_mark keys, counted from key 0, at + t / queries_per_mark * mark_stride + s / keys_per_mark. It
  // promises what the mask does to those of them that the limits above leave: without keys_seen that it excludes all, so that
  // they need not be looked at, with keys_all that it excludes none. A hint: results are the same without.
  static constexpr std::int64_t queries_per_mark = 8, keys_per_mark = 64;
  const std::uint8_t* key_marks = nullptr;
  std::ptrdiff_t mark_stride = 0;  // in bytes; 0: marks that serve all queries
  // Likewise, of f32, bf16 or f16 whatever the other operands are; added after scaling. A number counts as what it is in f32,
  // as query's do: -inf excludes, any finite value is arithmetic, the largest of a type included.
  Element bias_element = Element::f32;
  const void* bias = nullptr;
  std::ptrdiff_t bias_stride = 0;
  std::ptrdiff_t bias_head_stride = 0;
  std::ptrdiff_t bias_key_stride = 0;

  // What happens to scaled scores, in natural-log units: first softcap * tanh(score / softcap), then score_mod, then bias and
  // ALiBi, then masks.
  double softcap = 0.0;                 // 0: none; else positive and finite
  const float* alibi_slopes = nullptr;  // slope at + g * stride, finite: slope * |t + alibi_offset - s| is taken off
  std::ptrdiff_t alibi_stride = 0;
  std::int64_t alibi_offset = 0;
  const ScoreMod* score_mod = nullptr;  // the caller's own function, or null
  // What it is told: the batch item, and the numbers of head g = 0, of query 0 and of key 0.
  std::int64_t mod_batch = 0, mod_head = 0, mod_query = 0, mod_key = 0;
  // A logit at + g * stride: exp of it is added to the denominator. Partial results leave it out. Less than inf; -inf is none.
  const float* sink = nullptr;
  std::ptrdiff_t sink_stride = 0;

  // Where a row goes when this call covers all of its keys (partial == nullptr): out = sum p v / sum p, 0 where no key was
  // allowed; lse = ln sum exp(score), -inf where no key was allowed (with a sink: the sink).
  void* out = nullptr;
  std::ptrdiff_t out_stride = 0;
  std::ptrdiff_t out_head_stride = 0;
  float* lse = nullptr;  // nullptr: not wanted
  std::ptrdiff_t lse_stride = 0;
  std::ptrdiff_t lse_head_stride = 0;

  // Where a row goes when the keys are split over calls: row r at partial + (r - row_begin) * (value_dim + 2), as value_dim
  // unnormalised sums, then the shift m (log2 units, lowest float where no key was seen) and the denominator l.
  float* partial = nullptr;

  // Rows that will probably be computed after these, numbered and laid out like query's: worth fetching meanwhile. They decide
  // nothing.
  const void* next_query = nullptr;
  std::int64_t next_row_begin = 0, next_row_end = 0;

  void* scratch = nullptr;  // AttentionKernel::scratch_bytes(...) bytes, 64-byte aligned, contents arbitrary
};

// Brings the partial results of key ranges together, always in ascending order of keys.
struct MergeArgs {
  const float* const* partials = nullptr;  // `splits` pointers, each as AttentionArgs::partial describes, same rows
  std::int64_t splits = 0;
  std::int64_t row_begin = 0, row_end = 0, group = 1;
  std::int64_t value_dim = 0;
  void* out = nullptr;  // of the kernel's element
  std::ptrdiff_t out_stride = 0, out_head_stride = 0;
  float* lse = nullptr;
  std::ptrdiff_t lse_stride = 0, lse_head_stride = 0;
  const float* sink = nullptr;  // as in AttentionArgs
  std::ptrdiff_t sink_stride = 0;
};

using AttentionF32Args = AttentionArgs;  // as kernels call them, which compute in f32 whatever the elements are
using MergeF32Args = MergeArgs;

struct AttentionKernel {
  const char* name;        // "attention_f32_avx2"
  std::int32_t row_block;  // rows that fill the kernel's registers; cut work at multiples of it
  std::int32_t key_block;  // keys a block
  // Enough for any row and key range with at most key_count keys.
  std::size_t (*scratch_bytes)(std::int64_t head_dim, std::int64_t value_dim, std::int64_t key_count);
  void (*run)(const AttentionArgs& args);
  Element element = Element::f32;  // of key and value
  // Keys that are computed, or passed over, together with row_block rows; a divisor of key_block. Null: key_block.
  std::int32_t (*tile_keys)(std::int64_t head_dim, std::int64_t value_dim) = nullptr;
};

struct MergeKernel {
  const char* name;
  void (*run)(const MergeArgs& args);
  Element element = Element::f32;  // of out; partial results are f32
};

// How a tile of rows [t_first, t_last] x keys [key_begin, key_end) stands to the structural limits, in closed form.
enum class TileClass : std::uint8_t { skip, full, partial };

static inline TileClass classify_tile(std::int64_t t_first, std::int64_t t_last, std::int64_t key_begin, std::int64_t key_end,
                                      std::int64_t visible_begin, std::int64_t visible_end, std::int64_t kept_end) {
  const std::int64_t rest = key_begin < kept_end ? kept_end : key_begin;  // the keys that visible_begin may hide
  const bool none_visible = t_last + visible_end <= key_begin || (t_first + visible_begin >= key_end && kept_end <= key_begin);
  if (none_visible) return TileClass::skip;
  const bool all_visible = (t_last + visible_begin <= rest || rest >= key_end) && t_first + visible_end >= key_end;
  return all_visible ? TileClass::full : TileClass::partial;
}

// Of the keys [key_begin, key_end) the least stretch with all that a query of [t_first, t_last] sees; where it sees none, begin
// is no less than end, and may be greater. Between kept keys and the first visible one there may be keys that none sees.
struct SeenKeys {
  std::int64_t begin, end;
};
static inline SeenKeys seen_keys(std::int64_t t_first, std::int64_t t_last, std::int64_t key_begin, std::int64_t key_end,
                                 std::int64_t visible_begin, std::int64_t visible_end, std::int64_t kept_end) {
  SeenKeys seen = {t_first + visible_begin, t_last + visible_end};
  if (seen.begin < key_begin) seen.begin = key_begin;
  if (seen.end > key_end) seen.end = key_end;
  if (key_begin < kept_end) {
    if (seen.begin >= seen.end && seen.end > kept_end) seen.end = kept_end;
    seen.begin = key_begin;
  }
  return seen;
}

// The first key >= `key` of a block of which a query from t_first on may see a key, key being the first one of a block: blocks
// that lie wholly between the kept keys and the visible ones are passed over.
static inline std::int64_t next_seen_block(std::int64_t t_first, std::int64_t key, std::int64_t block_keys,
                                           std::int64_t visible_begin, std::int64_t kept_end) {
  const std::int64_t hidden = t_first + visible_begin - key;
  return key < kept_end || hidden < block_keys ? key : key + hidden / block_keys * block_keys;
}

}  // namespace polyhead::simd
