// Mask: which keys a query may attend to. Parts compose by AND.
#pragma once

#include <cstdint>

#include "polyhead/export.hpp"

namespace polyhead {

// Where the causal diagonal lies when query and key lengths differ. With offset o a query t sees keys s <= t + o.
enum class Causal : std::uint8_t {
  none = 0,
  top_left = 1,      // o = 0
  bottom_right = 2,  // o = key_length - query_length, each batch item's own where lengths are given
  offset = 3,        // o = offsets[b], given at run time
};

// The structure of a mask; the tensors that some parts need (lengths, offsets, the boolean mask, the bias) are given at run
// time in AttentionInputs. Combine with &, for example
//     Mask::causal(Causal::bottom_right) & Mask::window(1023, 0) & Mask::key_lengths()
// Layers take causal, window, key lengths, offsets, boolean and bias; attention takes every part.
struct POLYHEAD_EXPORT Mask {
  static constexpr std::int64_t unbounded = -1;

  Causal causality = Causal::none;
  std::int64_t window_left = unbounded;   // inclusive: keys from t + o - window_left ...
  std::int64_t window_right = unbounded;  // ... to t + o + window_right; o is 0 without causal unless has_offsets
  std::int64_t window_kept = 0;           // keys s < window_kept of each batch item are seen whatever window_left says
  bool has_key_lengths = false;           // keys s >= key_lengths[b] do not exist for batch item b
  bool has_offsets = false;               // offsets[b] is given (Causal::offset, or a window without causal)
  bool has_boolean = false;               // a bool tensor broadcastable to [batch, heads, query, key]; true = attend
  bool has_bias = false;                  // f32, bf16 or f16 broadcastable to [batch, heads, query, key], added to scaled
                                          // scores; only -inf excludes, any finite value is arithmetic
  // Queries t >= query_lengths[b] do not exist for batch item b: they are not computed, their out is 0 and their lse -inf (with
  // a sink: the sink).
  bool has_query_lengths = false;
  // Sequences of any lengths lie one after another, without padding, in tensors whose batch is 1: sequence i is the queries
  // cumulative_query_lengths[i] .. [i + 1] - 1 and the keys cumulative_key_lengths[i] .. [i + 1] - 1, and sees nothing else.
  // "Batch item" means a sequence then: in the causal alignment, lengths, offsets, boolean mask and bias. Where keys lie in a
  // cache or in pages of a block table, queries alone are packed.
  bool is_packed = false;
  // With a causal alignment: keys s < prefix_lengths[b] are seen by every query of batch item b, whatever causal says (the
  // other parts hide them still).
  bool has_prefix = false;
  // query_segments and key_segments number the document of each query and key: only equal numbers see each other. Where every
  // number lies in one stretch, as in documents one after another, hidden keys cost nothing. Not with packed sequences, which
  // are documents already, nor with keys in a cache or in pages.
  bool has_segments = false;
  // A block mask is given: a byte for each block of block_queries x block_keys, 0 hides all of it. Both 0: none. Hidden blocks
  // cost nothing.
  std::int64_t block_queries = 0, block_keys = 0;

  static Mask none() { return {}; }
  static Mask causal(Causal alignment);
  // kept: so many first keys stay in sight whatever `left` says, as streaming language models want them; `right` and causal
  // hide them still.
  static Mask window(std::int64_t left, std::int64_t right, std::int64_t kept = 0);
  static Mask key_lengths();
  static Mask offsets();
  static Mask boolean();
  static Mask bias();
  static Mask query_lengths();
  static Mask packed();
  static Mask prefix();
  static Mask segments();
  static Mask blocks(std::int64_t queries, std::int64_t keys);

  // Errors: invalid_argument when both give a causal alignment, block sizes, or a left limit and what it keeps, and they
  // differ. Two windows intersect.
  friend POLYHEAD_EXPORT Mask operator&(const Mask& a, const Mask& b);
};

}  // namespace polyhead
