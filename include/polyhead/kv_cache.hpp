// KvCache: keys and values of past tokens, kept as attention reads them.
//
//     KvCacheSpec spec;                         // spec.kind: contiguous, ring or paged
//     spec.sequences = 4, spec.kv_heads = 8, spec.head_dim = 128, spec.capacity = 4096;
//     spec.rotary.style = Rotary::half_split;
//     KvCache cache(spec);
//     CacheAppend step;                         // key and value [4, 8, T, 128] of T new tokens a sequence
//     step.key = ..., step.value = ...;
//     cache.append(step);                       // keys are rotated on the way in
//     cache.rotate_queries(query, query);       // in place, at the positions of the last T tokens
//     CachedAttentionInputs inputs;             // polyhead/attention.hpp
//     inputs.cache = &cache, inputs.query = query, inputs.out = out;
//     attention(runtime, inputs);               // causal, aligned bottom-right
//
// Tokens of a sequence are numbered from 0 in the order in which they were appended; its length is their number. Whatever the
// kind of cache, and wherever pages lie, attention over it gives the bits that plain attention gives over the same keys,
// rounded as they are stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/export.hpp"
#include "polyhead/tensor.hpp"

namespace polyhead {

// Values are part of the C ABI and of saved files: append, never renumber.
enum class CacheKind : std::uint8_t {
  contiguous = 0,  // room for `capacity` tokens of every sequence, allocated at once
  ring = 1,        // the last `capacity` tokens of every sequence, for attention with a sliding window
  paged = 2,       // pages of `page_tokens` tokens, allocated as sequences grow, shared by forked sequences until one writes
};

// How the elements of a head pair up for rotary position embedding; libraries differ, so there is no default.
enum class Rotary : std::uint8_t {
  none = 0,
  interleaved = 1,  // (0, 1), (2, 3), ...: GPT-J, the original paper
  half_split = 2,   // (0, n / 2), (1, n / 2 + 1), ... of n rotated elements: GPT-NeoX, Llama as Hugging Face stores it
};

// Pair i of a token at position p is turned by the angle p * frequency[i], frequency[i] = base^(-2 i / dims) radians:
// (x, y) -> (x cos - y sin, x sin + y cos). Angles are exact for positions up to 2^32 either way.
struct RotarySpec {
  Rotary style = Rotary::none;
  std::int64_t dims = 0;  // elements of each head that are rotated, the first ones; even; 0: head_dim
  double base = 10000.0;
  std::vector<double> frequencies;  // instead of those that follow from base: dims / 2 finite numbers; empty: none given
};

struct KvCacheSpec {
  CacheKind kind = CacheKind::contiguous;
  std::int64_t sequences = 1;  // that the cache has room for; each starts empty
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  // 0: head_dim
  // Of what is stored: f32, bf16 or f16, rounded to nearest even; or i8, integers with a scale for each token and head, of what
  // is left of keys and values when the means of a sequence's first tokens are taken off: docs/kv_cache.md says how exact.
  DType dtype = DType::f32;
  // contiguous: most tokens of a sequence. ring: tokens that are kept of a sequence. paged: most tokens of a sequence, 0 for no
  // limit but max_pages.
  std::int64_t capacity = 0;
  // ring: keys that a query may see, itself included, 1 .. capacity. With capacity >= window + T - 1 a chunk of T queries sees
  // all of its windows. 0 for the other kinds.
  std::int64_t window = 0;
  std::int64_t page_tokens = 0;  // paged: 1 or more, 0 for 128; 0 for the other kinds
  std::int64_t max_pages = 0;    // paged: 0 for no limit but memory; 0 for the other kinds
  RotarySpec rotary{};           // of keys as they are appended, and of rotate_queries
};

// New tokens of B sequences. Views may have any strides. Keys and values are f32, bf16 or f16, whatever is stored: they are
// rotated in f32 and rounded once; what is of the stored type and not rotated is copied.
struct CacheAppend {
  TensorView key{};        // [B, kv_heads, T, head_dim], not yet rotated
  TensorView value{};      // [B, kv_heads, T, value_dim]
  TensorView sequences{};  // i32 or i64 [B]: which ones, none twice; not given: 0 .. B - 1
  TensorView lengths{};    // i32 or i64 [B], each in 0 .. T: how many of the T tokens are real, the first ones; not given: all
  TensorView positions{};  // i32 or i64 [B]: of each one's first token, for the rotation; not given: the sequence's length
};

namespace detail {
class KvCacheState;
}

// Calls that are const may run on any number of threads at the same time; one that changes the cache must have it for itself.
class POLYHEAD_EXPORT KvCache {
 public:
  // Errors: invalid_argument, naming the field; unsupported for a storage type that this build has not; out_of_memory.
  explicit KvCache(const KvCacheSpec& spec);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  const KvCacheSpec& spec() const noexcept;  // with what 0 stood for filled in

  // Appends to several sequences at once; a ring forgets its oldest tokens for it. Allocates nothing but pages. Errors, which
  // leave the cache as it was: invalid_argument, naming the argument (a sequence would outgrow capacity, too); out_of_memory
  // where max_pages or memory is at its end.
  void append(const CacheAppend& tokens);

  // Forgets the tokens of a sequence from `length` on. Errors: invalid_argument for a length above the sequence's, or, in a
  // ring, below its first token; 0 always empties it.
  void trim(std::int64_t sequence, std::int64_t length);

  // Makes sequence `to` a copy of the first `length` tokens of `from` (-1: all of them); what it held is forgotten. Pages are
  // shared, and copied once one of their holders appends to them. A ring is copied whole, length is then -1 or the length of
  // `from`. Errors, which leave the cache as it was: invalid_argument, out_of_memory.
  void fork(std::int64_t from, std::int64_t to, std::int64_t length = -1);

  // The rotation that keys get, for queries [B, H, T, head_dim] of any number of heads: query t of b is at positions[b] + t, or
  // without positions at (length of its sequence) - T + t, which are the last T tokens. `out` has query's shape and may be the
  // same view. Both are f32, bf16 or f16; the rotation is computed in f32 or better and rounded once. Errors: invalid_argument,
  // naming the argument; also where the cache has no rotary embedding.
  void rotate_queries(const TensorView& query, const TensorView& out, const TensorView& sequences = {},
                      const TensorView& positions = {}) const;

  std::int64_t length(std::int64_t sequence) const;       // tokens so far
  std::int64_t first_token(std::int64_t sequence) const;  // the oldest one that is still there: 0 but in a ring
  // Reads back what is stored, keys as rotated, of tokens from `first` on: [kv_heads, n, head_dim] and [.., value_dim], f32
  // (which holds all that is stored exactly, but for a rounding of what integers stand for), bf16 or f16; a view that is not
  // given is not written. Errors: invalid_argument.
  void read(std::int64_t sequence, std::int64_t first, const TensorView& key, const TensorView& value) const;

  // What AttentionSpec::key_length has to be for a plan that serves this cache however it grows; for a ring however long it
  // runs. 0 for a paged cache without limits.
  std::int64_t plan_key_length() const noexcept;

  // Pages: those in use (a shared one counts once), and those that are allocated. 0 but for paged.
  std::int64_t pages_in_use() const noexcept;
  std::int64_t pages_allocated() const noexcept;
  // Allocates pages now so that `pages` can be in use without growing. Errors: invalid_argument but for paged; out_of_memory.
  void reserve_pages(std::int64_t pages);
  std::size_t memory_bytes() const noexcept;  // of keys and values, allocated

  // Writes everything to a file, shared pages once; it appears under its name only when it is complete. Errors: io_error.
  void save(const std::string& path) const;
  // Errors: io_error for a file that cannot be read, or is not what save has written: sizes, tables and checksums are all
  // checked, and no more memory is asked for than the file has bytes to fill. unsupported for a newer format.
  static KvCache load(const std::string& path);

  const detail::KvCacheState& state() const noexcept { return *state_; }

 private:
  explicit KvCache(std::unique_ptr<detail::KvCacheState> state);
  std::unique_ptr<detail::KvCacheState> state_;
};

}  // namespace polyhead
