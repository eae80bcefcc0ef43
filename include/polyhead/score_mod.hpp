// Score modifications as lambdas over xsimd's batches: the open door of attention for C++ (8.1 or later of libxsimd-dev; the
// library itself does not need it).
//
//     score = lambda(score, batch, head, query, key)
//
//   score              xsimd::batch<float>: scaled scores, capped where a softcap is given, in natural-log units
//   batch              std::int64_t: the batch item, or the packed sequence
//   head, query, key   xsimd::batch<std::int32_t>: query head, and places in the batch item or sequence, from 0
//
// before bias, ALiBi and masks. A mask is a lambda (batch, head, query, key) -> xsimd::batch_bool of std::int32_t or float,
// true where the key may be seen. A classifier is a function (const ScoreRange&) -> TileClass that says of a range of heads,
// queries and keys whether the mask lets none through (skip: not computed at all), all (full: the mask is not asked) or
// neither; without one every score is computed. What the three must keep to is said at ScoreMod (score_tile.hpp): no side
// effects, several threads, truth.
//
// What depends on batch item and head alone is worth computing once, above all what is looked up: a lambda may take its
// arguments in two steps, (batch, head) -> lambda (score, query, key) -> score, a mask (batch, head) -> (query, key) ->
// xsimd::batch_bool. lookup(table, index) reads a table of floats or of 32-bit integers.
//
// In one source, for the instruction set that this source is compiled for:
//
//     const auto near = polyhead::make_score_mod("near", [&](auto score, std::int64_t, auto head, auto query, auto key) {
//       return score - weight * xsimd::to_float(xsimd::abs(query - key));
//     });
//     options.score_mod = near;          // a view: `near` must outlive the runs that use it
//
// For every instruction set, chosen at run time, with nothing but CMake's polyhead_add_score_mod(target near.cpp): the lambdas
// stand in a source of their own, take what they need as their first argument, and are compiled once for each instruction set:
//
//     // near.hpp                                     // near.cpp
//     struct Near { float weight; };                  static constexpr auto near_score = [](const Near& near, auto score,
//     polyhead::ScoreMod near_mod(const Near& near);    std::int64_t, auto head, auto query, auto key) { return ...; };
//                                                     POLYHEAD_SCORE_MOD(near_mod, Near, near_score)
//
// A lambda for one score at a time is slow to call and quick to inline: build with optimisation.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include <xsimd/xsimd.hpp>

#include "polyhead/score_tile.hpp"

#if XSIMD_VERSION_MAJOR < 8
#error "polyhead/score_mod.hpp needs xsimd 8.1 or later"
#endif

namespace polyhead {
namespace {  // of one source alone: other sources may be compiled for other instruction sets
namespace score_mod_detail {

using Floats = xsimd::batch<float>;
using Ints = xsimd::batch<std::int32_t>;
constexpr std::int64_t lane_count = static_cast<std::int64_t>(Floats::size);

template <class Part>
constexpr bool is_given = !std::is_same<std::decay_t<Part>, std::nullptr_t>::value;

// A mask over floats. xsimd has had two names for the cast.
template <class Mask>
auto mask_of_floats(const Mask& mask, int) -> decltype(bool_cast(mask)) {
  return bool_cast(mask);
}
template <class Mask>
auto mask_of_floats(const Mask& mask, long) {
#if XSIMD_VERSION_MAJOR >= 10
  return xsimd::batch_bool_cast<float>(mask);
#else
  return xsimd::to_float(xsimd::select(mask, Ints(1), Ints(0))) != Floats(0.0f);
#endif
}

template <class Allowed>
Floats exclude(Floats score, const Allowed& allowed) {
  const Floats minus_infinity(-std::numeric_limits<float>::infinity());
  if constexpr (std::is_same<Allowed, xsimd::batch_bool<float>>::value) {
    return xsimd::select(allowed, score, minus_infinity);
  } else {
    static_assert(std::is_same<Allowed, xsimd::batch_bool<std::int32_t>>::value,
                  "a mask returns xsimd::batch_bool<std::int32_t> or xsimd::batch_bool<float>, true where a key may be seen");
    return xsimd::select(mask_of_floats(allowed, 0), score, minus_infinity);
  }
}

// Lanes of a batch are 32 bits wide, places 64.
inline std::int32_t narrow(const char* what, std::int64_t first) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - 65536;  // a tile is far smaller
  if (first > most) detail::refuse_place(what, first, most);
  return static_cast<std::int32_t>(first);
}

inline Ints load(const std::int32_t* from) {
  return Ints::load_unaligned(from);
}

// (score, query, key) -> score of a batch item and heads.
template <class Score>
auto score_of_heads(const Score& score, std::int64_t batch, const Ints& head) {
  if constexpr (!is_given<Score>) {
    return [](const Floats& given, const Ints&, const Ints&) { return given; };
  } else if constexpr (std::is_invocable<const Score&, Floats, std::int64_t, Ints, Ints, Ints>::value) {
    return [&score, batch, head](const Floats& given, const Ints& query, const Ints& key) {
      return score(given, batch, head, query, key);
    };
  } else {
    return score(batch, head);
  }
}

// (score, query, key) -> score, -inf where the mask hides the key.
template <class Mask>
auto mask_of_heads(const Mask& mask, std::int64_t batch, const Ints& head) {
  if constexpr (!is_given<Mask>) {
    return [](const Floats& given, const Ints&, const Ints&) { return given; };
  } else if constexpr (std::is_invocable<const Mask&, std::int64_t, Ints, Ints, Ints>::value) {
    return [&mask, batch, head](const Floats& given, const Ints& query, const Ints& key) {
      return exclude(given, mask(batch, head, query, key));
    };
  } else {
    return [of_heads = mask(batch, head)](const Floats& given, const Ints& query, const Ints& key) {
      return exclude(given, of_heads(query, key));
    };
  }
}

// Lines are keys, lanes [0, lane_count) queries and heads. Flattened: a call for each vector would cost more than most lambdas.
template <bool kAsks, class Score, class Mask>
__attribute__((flatten)) void change_queries(const ScoreTile& tile, float* __restrict scores, std::int64_t line_stride,
                                             const std::int32_t* head_lanes, const std::int32_t* query_lanes,
                                             const Score& score, const Mask& mask) {
  const Ints head = load(head_lanes) + Ints(narrow("a head", tile.head.first));
  const Ints query = load(query_lanes) + Ints(narrow("a query's place", tile.query.first));
  const std::int32_t first_key = narrow("a key's place", tile.key.first);
  const auto score_part = score_of_heads(score, tile.batch, head);
  const auto mask_part = mask_of_heads(mask, tile.batch, head);
  const std::int32_t* const __restrict key_lines = tile.key.of_line;
  const std::int64_t lines = tile.lines;
#pragma GCC unroll 4
  for (std::int64_t line = 0; line < lines; ++line) {
    float* const at = scores + line * line_stride;
    const Ints key(first_key + key_lines[line]);
    Floats changed = score_part(Floats::load_unaligned(at), query, key);
    if constexpr (kAsks) changed = mask_part(changed, query, key);
    changed.store_unaligned(at);
  }
}

// A line is a query and head, lanes keys: `lanes` of them, a multiple of lane_count.
template <bool kAsks, class Score, class Mask>
__attribute__((flatten)) void change_keys(const ScoreTile& tile, std::int64_t line, float* __restrict scores,
                                          std::int64_t lanes, const std::int32_t* key_lanes, const Score& score,
                                          const Mask& mask) {
  const Ints head(narrow("a head", tile.head.first + tile.head.of_line[line]));
  const Ints query(narrow("a query's place", tile.query.first + tile.query.of_line[line]));
  const Ints first_key(narrow("a key's place", tile.key.first));
  const auto score_part = score_of_heads(score, tile.batch, head);
  const auto mask_part = mask_of_heads(mask, tile.batch, head);
#pragma GCC unroll 4
  for (std::int64_t lane = 0; lane < lanes; lane += lane_count) {
    const Ints key = load(key_lanes + lane) + first_key;
    Floats changed = score_part(Floats::load_unaligned(scores + lane), query, key);
    if constexpr (kAsks) changed = mask_part(changed, query, key);
    changed.store_unaligned(scores + lane);
  }
}

template <bool kAsks, class Score, class Mask>
void change_lanes(const ScoreTile& tile, const Score& score, const Mask& mask) {
  const std::int64_t whole = tile.lanes / lane_count * lane_count;
  const bool keys = tile.lanes_are_keys != 0;
  if (keys) {
    for (std::int64_t line = 0; line < tile.lines; ++line) {
      change_keys<kAsks>(tile, line, tile.scores + line * tile.line_stride, whole, tile.key.of_lane, score, mask);
    }
  } else {
    for (std::int64_t lane = 0; lane < whole; lane += lane_count) {
      change_queries<kAsks>(tile, tile.scores + lane, tile.line_stride, tile.head.of_lane + lane, tile.query.of_lane + lane,
                            score, mask);
    }
  }
  const std::int64_t rest = tile.lanes - whole;
  if (rest == 0) return;
  // A kernel's vectors are shorter than ours: the rest of a line in a vector of its own.
  std::int32_t head_lanes[lane_count], query_lanes[lane_count], key_lanes[lane_count];
  for (std::int64_t i = 0; i < lane_count; ++i) {
    const std::int64_t from = whole + (i < rest ? i : rest - 1);
    head_lanes[i] = tile.head.of_lane[from];
    query_lanes[i] = tile.query.of_lane[from];
    key_lanes[i] = tile.key.of_lane[from];
  }
  ScoreTile one = tile;
  one.lines = 1;
  for (std::int64_t line = 0; line < tile.lines; ++line) {
    float scores[lane_count] = {};
    float* const at = tile.scores + line * tile.line_stride + whole;
    for (std::int64_t i = 0; i < rest; ++i) scores[i] = at[i];
    one.key.of_line = tile.key.of_line + line;
    if (keys) {
      change_keys<kAsks>(tile, line, scores, lane_count, key_lanes, score, mask);
    } else {
      change_queries<kAsks>(one, scores, lane_count, head_lanes, query_lanes, score, mask);
    }
    for (std::int64_t i = 0; i < rest; ++i) at[i] = scores[i];
  }
}

template <class Score, class Mask>
void change_tile(const ScoreTile& tile, const Score& score, const Mask& mask) {
  if constexpr (is_given<Mask>) {
    if (tile.is_full == 0) return change_lanes<true>(tile, score, mask);
  }
  if constexpr (is_given<Score>) change_lanes<false>(tile, score, mask);
}

// A part with what it needs put before its arguments; nullptr stays what it is.
template <class Context, class Part>
auto bind(const Context& context, const Part& part) {
  if constexpr (is_given<Part>) {
    return [&context,
            &part](const auto&... arguments) -> std::invoke_result_t<const Part&, const Context&, decltype(arguments)...> {
      return part(context, arguments...);
    };
  } else {
    return nullptr;
  }
}

template <class Context, class Score, class Mask = std::nullptr_t, class Classify = std::nullptr_t>
void change_tile_with(const ScoreTile& tile, const void* context, const Score& score, const Mask& mask = nullptr,
                      const Classify& = nullptr) {
  const Context& given = *static_cast<const Context*>(context);
  change_tile(tile, bind(given, score), bind(given, mask));
}

template <class Context, class Score, class Mask = std::nullptr_t, class Classify = std::nullptr_t>
TileClass classify_with(const ScoreRange& range, const void* context, const Score&, const Mask& = nullptr,
                        const Classify& classify = nullptr) {
  if constexpr (is_given<Classify>) {
    return classify(*static_cast<const Context*>(context), range);
  } else {
    return TileClass::partial;
  }
}

template <class Score, class Mask = std::nullptr_t, class Classify = std::nullptr_t>
constexpr bool has_classifier(const Score&, const Mask& = nullptr, const Classify& = nullptr) {
  return is_given<Classify>;
}

}  // namespace score_mod_detail

// table[index] for each lane; the same element for all of them is read once.
template <class Element, class Index>
__attribute__((always_inline)) inline xsimd::batch<Element, typename Index::arch_type> lookup(const Element* table,
                                                                                              Index index) {
  using Elements = xsimd::batch<Element, typename Index::arch_type>;
  static_assert(sizeof(Element) == sizeof(std::int32_t), "a table of floats or of 32-bit integers");
  alignas(64) std::int32_t at[Index::size];
  index.store_aligned(at);
  if (xsimd::all(index == Index(at[0]))) return Elements(table[at[0]]);
  alignas(64) Element read[Index::size];
  for (std::size_t i = 0; i < Index::size; ++i) read[i] = table[at[i]];
  return Elements::load_aligned(read);
}

// The hyperbolic tangent, with a relative error of at most 3 * 2^-24 and quicker than xsimd's where all lanes lie within +-1,
// as scores divided by a cap mostly do. Below 1 x (1 + x^2 P(x^2)), a minimax polynomial of degree 6; from there on 1 - 2 e /
// (1 + e), e = exp(-2 |x|).
template <class Floats>
__attribute__((always_inline)) inline Floats quick_tanh(Floats x) {
  const Floats u = xsimd::abs(x), z = x * x;
  Floats p(-0.0003584515120231174f);
  for (const float coefficient : {0.0023013628641383056f, -0.007946104028950716f, 0.021486655920046366f, -0.05387980213102989f,
                                  0.13332344563429493f, -0.3333329543135741f}) {
    p = xsimd::fma(p, z, Floats(coefficient));
  }
  const Floats near = xsimd::fma(x * z, p, x);
  const auto is_near = u < Floats(1.0f);
  if (xsimd::all(is_near)) return near;
  const Floats e = xsimd::exp(Floats(-2.0f) * u);
  const Floats far = Floats(1.0f) - Floats(2.0f) * e / (Floats(1.0f) + e);
  return xsimd::select(is_near, near, xsimd::copysign(far, x));
}

// Lambdas and what they have captured. Converts to a ScoreMod that points to it.
template <class Score, class Mask, class Classify>
class OwnScoreMod {
 public:
  OwnScoreMod(const char* name, Score score, Mask mask, Classify classify)
      : name_(name), score_(std::move(score)), mask_(std::move(mask)), classify_(std::move(classify)) {}

  operator ScoreMod() const& {  // NOLINT: a view, as of a string
    ScoreMod mod;
    mod.name = name_;
    mod.functions.baseline = [](const ScoreTile& tile, void* context) {
      const auto& own = *static_cast<const OwnScoreMod*>(context);
      score_mod_detail::change_tile(tile, own.score_, own.mask_);
    };
    if constexpr (score_mod_detail::is_given<Classify>) {
      mod.classify = [](const ScoreRange& range, void* context) {
        return static_cast<const OwnScoreMod*>(context)->classify_(range);
      };
    }
    mod.context = const_cast<OwnScoreMod*>(this);
    return mod;
  }
  operator ScoreMod() const&& = delete;  // it would point to what is gone

 private:
  const char* name_;
  Score score_;
  Mask mask_;
  Classify classify_;
};

// `name`, for AttentionPlan::explain(), must last as long as the result.
template <class Score, class Mask = std::nullptr_t, class Classify = std::nullptr_t>
OwnScoreMod<Score, Mask, Classify> make_score_mod(const char* name, Score score, Mask mask = nullptr,
                                                  Classify classify = nullptr) {
  return {name, std::move(score), std::move(mask), std::move(classify)};
}
template <class Mask, class Classify = std::nullptr_t>
OwnScoreMod<std::nullptr_t, Mask, Classify> make_mask_mod(const char* name, Mask mask, Classify classify = nullptr) {
  return {name, nullptr, std::move(mask), std::move(classify)};
}

}  // namespace
}  // namespace polyhead

// POLYHEAD_SCORE_MOD(name, Context, score), (name, Context, score, mask) or (name, Context, score, mask, classify), with
// nullptr for a part that is not there: defines
//
//     polyhead::ScoreMod name(const Context& context);
//
// for a source that polyhead_add_score_mod compiles; a source that it does not compile gets its own instruction set alone. Each
// part is the name of a lambda (or function object) that takes `const Context&` before its other arguments.
#if defined(POLYHEAD_SCORE_MOD_ISA)
#define POLYHEAD_SCORE_MOD(function, Context, ...) \
  POLYHEAD_SCORE_MOD_FUNCTION(function, POLYHEAD_SCORE_MOD_ISA, Context, __VA_ARGS__)
#else
#define POLYHEAD_SCORE_MOD(function, Context, ...)                                                                        \
  POLYHEAD_SCORE_MOD_DECLARE(function)                                                                                    \
  POLYHEAD_SCORE_MOD_FUNCTION(function, baseline, Context, __VA_ARGS__)                                                   \
  ::polyhead::ScoreMod function(const Context& context);                                                                  \
  ::polyhead::ScoreMod function(const Context& context) {                                                                 \
    ::polyhead::ScoreMod mod;                                                                                             \
    mod.name = #function;                                                                                                 \
    mod.functions = {&function##_baseline, POLYHEAD_SCORE_MOD_LIST(function)};                                            \
    if (::polyhead::score_mod_detail::has_classifier(__VA_ARGS__)) {                                                      \
      mod.classify = [](const ::polyhead::ScoreRange& range, void* given) {                                               \
        return ::polyhead::score_mod_detail::classify_with<Context>(range, static_cast<const void*>(given), __VA_ARGS__); \
      };                                                                                                                  \
    }                                                                                                                     \
    mod.context = const_cast<void*>(static_cast<const void*>(&context));                                                  \
    return mod;                                                                                                           \
  }
#endif

#define POLYHEAD_SCORE_MOD_FUNCTION(function, isa, Context, ...) \
  POLYHEAD_SCORE_MOD_FUNCTION_(function, isa, Context, __VA_ARGS__)
#define POLYHEAD_SCORE_MOD_FUNCTION_(function, isa, Context, ...)                                                  \
  void function##_##isa(const ::polyhead::ScoreTile& tile, void* context);                                         \
  void function##_##isa(const ::polyhead::ScoreTile& tile, void* context) {                                        \
    ::polyhead::score_mod_detail::change_tile_with<Context>(tile, static_cast<const void*>(context), __VA_ARGS__); \
  }

// What polyhead_add_score_mod has compiled beside this source.
#if defined(POLYHEAD_SCORE_MOD_SSE4)
#define POLYHEAD_SCORE_MOD_DECLARE_SSE4(function) void function##_sse4(const ::polyhead::ScoreTile& tile, void* context);
#define POLYHEAD_SCORE_MOD_LIST_SSE4(function) &function##_sse4
#else
#define POLYHEAD_SCORE_MOD_DECLARE_SSE4(function)
#define POLYHEAD_SCORE_MOD_LIST_SSE4(function) nullptr
#endif
#if defined(POLYHEAD_SCORE_MOD_AVX2)
#define POLYHEAD_SCORE_MOD_DECLARE_AVX2(function) void function##_avx2(const ::polyhead::ScoreTile& tile, void* context);
#define POLYHEAD_SCORE_MOD_LIST_AVX2(function) &function##_avx2
#else
#define POLYHEAD_SCORE_MOD_DECLARE_AVX2(function)
#define POLYHEAD_SCORE_MOD_LIST_AVX2(function) nullptr
#endif
#if defined(POLYHEAD_SCORE_MOD_AVX512)
#define POLYHEAD_SCORE_MOD_DECLARE_AVX512(function) void function##_avx512(const ::polyhead::ScoreTile& tile, void* context);
#define POLYHEAD_SCORE_MOD_LIST_AVX512(function) &function##_avx512
#else
#define POLYHEAD_SCORE_MOD_DECLARE_AVX512(function)
#define POLYHEAD_SCORE_MOD_LIST_AVX512(function) nullptr
#endif
#define POLYHEAD_SCORE_MOD_DECLARE(function) \
  POLYHEAD_SCORE_MOD_DECLARE_SSE4(function)  \
  POLYHEAD_SCORE_MOD_DECLARE_AVX2(function)  \
  POLYHEAD_SCORE_MOD_DECLARE_AVX512(function)
#define POLYHEAD_SCORE_MOD_LIST(function) \
  POLYHEAD_SCORE_MOD_LIST_SSE4(function), POLYHEAD_SCORE_MOD_LIST_AVX2(function), POLYHEAD_SCORE_MOD_LIST_AVX512(function)
