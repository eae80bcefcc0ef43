#include "support/attention_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <tuple>
#include <vector>

#include "support/cached_keys.hpp"
#include "support/pages.hpp"

namespace polyhead::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

::testing::AssertionResult compare_run(const AttentionCase& test, const Runtime& runtime,
                                       const oracle::AttentionResult& expected, const std::string& what) {
  const std::string where = test.describe() + ", " + name(runtime.isa()) + ", threads " + std::to_string(runtime.threads()) +
                            (what.empty() ? "" : ", ") + what;
  try {
    const AttentionPlan plan(test.spec, runtime);
    fill(test.out, not_a_number);
    fill(test.lse, not_a_number);
    test.run(plan, test.inputs_with_lse());
    const bool of_integers = test.spec.key_dtype == DType::i8;
    if (auto result = attention_matches(expected, test.out, where, test.spec.precision, of_integers); !result)
      return result << "\n" << plan.explain();
    if (auto result = lse_matches(expected, test.lse, where, test.spec.precision, of_integers); !result)
      return result << "\n" << plan.explain();
    const Tensor with_lse = test.out.clone();
    fill(test.out, not_a_number);
    test.run(plan, test.inputs());
    if (!same_bits(with_lse, test.out))
      return ::testing::AssertionFailure() << where << ": asking for lse changes out: " << first_difference(with_lse, test.out);
    if (!test.out.surroundings_intact()) return ::testing::AssertionFailure() << where << ": memory around out was written to";
    if (!test.lse.surroundings_intact()) return ::testing::AssertionFailure() << where << ": memory around lse was written to";
    return ::testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << where << ": threw " << error.what();
  }
}

}  // namespace

AttentionSpec attention_spec(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t query_length,
                             std::int64_t key_length, std::int64_t head_dim, std::int64_t value_dim, const Mask& mask) {
  AttentionSpec spec;
  spec.batch = batch;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.query_length = query_length;
  spec.key_length = key_length;
  spec.head_dim = head_dim;
  spec.value_dim = value_dim;
  spec.mask = mask;
  spec.dtype = case_dtype();
  return spec;
}

AttentionInputs AttentionCase::inputs() const {
  AttentionInputs inputs;
  inputs.query = query;
  inputs.key = key;
  inputs.value = value;
  inputs.out = out;
  if (spec.mask.has_key_lengths) inputs.key_lengths = key_lengths;
  if (spec.mask.has_offsets) inputs.offsets = offsets;
  if (spec.mask.has_boolean) inputs.boolean_mask = boolean_mask;
  if (spec.mask.has_bias) inputs.bias = bias;
  if (spec.has_alibi) inputs.alibi_slopes = alibi_slopes;
  if (spec.has_sink) inputs.sink = sink;
  if (spec.mask.has_query_lengths) inputs.query_lengths = query_lengths;
  if (spec.mask.is_packed) {
    inputs.cumulative_query_lengths = cumulative_query_lengths;
    inputs.cumulative_key_lengths = cumulative_key_lengths;
  }
  if (spec.mask.has_prefix) inputs.prefix_lengths = prefix_lengths;
  if (spec.mask.has_segments) {
    inputs.query_segments = query_segments;
    inputs.key_segments = key_segments;
  }
  if (spec.mask.block_queries != 0) inputs.block_mask = block_mask;
  if (spec.relative_bias.given()) inputs.relative_bias_table = relative_bias_table;
  return inputs;
}

AttentionInputs AttentionCase::inputs_with_lse() const {
  AttentionInputs with = inputs();
  with.lse = lse;
  return with;
}

AttentionInputs AttentionCase::in_pages(AttentionInputs plain) const {
  return pages ? pages->inputs(plain) : plain;
}

void AttentionCase::run(const AttentionPlan& plan, const AttentionInputs& plain) const {
  if (cached) {
    plan.run(cached->inputs(plain));
  } else {
    plan.run(in_pages(plain));
  }
}

AttentionOptions AttentionCase::options() const {
  AttentionOptions options;
  options.scale = spec.scale;
  options.mask = spec.mask;
  options.length_invariant = spec.length_invariant;
  options.softcap = spec.softcap;
  options.has_alibi = spec.has_alibi;
  options.has_sink = spec.has_sink;
  options.precision = spec.precision;
  options.relative_bias = spec.relative_bias;
  options.score_mod = spec.score_mod;
  return options;
}

std::string AttentionCase::describe() const {
  std::ostringstream text;
  text << "B " << spec.batch << " H " << spec.heads << " G " << spec.kv_heads << " T " << spec.query_length << " S "
       << spec.key_length << " D " << spec.head_dim << " E " << spec.value_dim << " mask " << testing::describe(spec.mask);
  if (spec.scale) text << " scale " << *spec.scale;
  if (spec.length_invariant) text << " length_invariant";
  if (spec.softcap > 0) text << " softcap " << spec.softcap;
  if (!spec.score_mod.empty()) text << " score_mod " << spec.score_mod.name;
  for (const auto& [given, name, tensor] :
       {std::tuple(spec.has_alibi, "alibi", &alibi_slopes), std::tuple(spec.has_sink, "sink", &sink)}) {
    if (!given) continue;
    text << ' ' << name;
    for_each_offset(*tensor, [&, values = tensor](std::int64_t offset) { text << ' ' << load(*values, offset); });
  }
  const RelativeBias& relative = spec.relative_bias;
  if (relative.kind == RelativeBias::Kind::t5) {
    text << " T5 buckets " << relative.buckets << " max_distance " << relative.max_distance
         << (relative.bidirectional ? " bidirectional" : "");
  } else if (relative.kind == RelativeBias::Kind::swin) {
    text << " Swin " << relative.height << " x " << relative.width;
  }
  if (spec.dtype != DType::f32) text << ' ' << name(spec.dtype);
  if (spec.key_dtype) text << " keys of " << name(*spec.key_dtype);
  if (spec.out_dtype) text << " out of " << name(*spec.out_dtype);
  if (spec.mask.has_bias && bias.view().dtype != DType::f32) text << " bias of " << name(bias.view().dtype);
  if (spec.precision != Precision::strict) text << ' ' << name(spec.precision);
  if (pages) text << " pages of " << pages->key.view().shape[2];
  if (cached) {
    const KvCacheSpec& layout = cached->cache.spec();
    const char* const kinds[] = {"contiguous", "ring", "paged"};
    text << " in a cache, " << kinds[static_cast<int>(layout.kind)];
    if (layout.kind == CacheKind::paged) text << " by " << layout.page_tokens;
  }
  for (const auto& [given, name, tensor] : {std::tuple(spec.mask.has_key_lengths, "key_lengths", &key_lengths),
                                            std::tuple(spec.mask.has_query_lengths, "query_lengths", &query_lengths),
                                            std::tuple(spec.mask.is_packed, "query ends", &cumulative_query_lengths),
                                            std::tuple(spec.mask.is_packed, "key ends", &cumulative_key_lengths),
                                            std::tuple(spec.mask.has_prefix, "prefix_lengths", &prefix_lengths),
                                            std::tuple(spec.mask.has_segments, "query_segments", &query_segments),
                                            std::tuple(spec.mask.has_segments, "key_segments", &key_segments),
                                            std::tuple(spec.mask.has_offsets, "offsets", &offsets)}) {
    if (!given) continue;
    text << ' ' << name;
    for_each_offset(*tensor, [&, values = tensor](std::int64_t offset) { text << ' ' << load(*values, offset); });
  }
  return text.str();
}

AttentionCase make_case(const AttentionSpec& spec, Random& random) {
  AttentionCase test;
  test.spec = spec;
  if (test.spec.kv_heads == 0) test.spec.kv_heads = spec.heads;
  if (test.spec.value_dim == 0) test.spec.value_dim = spec.head_dim;
  const std::int64_t B = spec.batch, H = spec.heads, G = test.spec.kv_heads, T = spec.query_length, S = spec.key_length;
  const std::int64_t D = spec.head_dim, E = test.spec.value_dim;
  const DType stored = spec.key_dtype.value_or(spec.dtype), of_keys = stored == DType::i8 ? DType::f32 : stored;
  const bool packed = spec.mask.is_packed;
  std::vector<std::int64_t> query_limits(static_cast<std::size_t>(B), T), key_limits(static_cast<std::size_t>(B), S);
  const auto random_length = [&](std::int64_t most) {
    return random.chance(0.1) ? 0 : random.chance(0.2) ? most : random.integer(0, most);
  };
  std::int64_t batch = B, queries = T, keys = S;
  if (packed) {
    const auto ends_of = [&](std::vector<std::int64_t>& lengths, std::int64_t& total) {
      std::vector<std::int64_t> ends = {0};
      for (std::int64_t& length : lengths) {
        length = random_length(length);
        ends.push_back(ends.back() + length);
      }
      total = ends.back() + random.integer(0, 3);
      return integers(random.choice({DType::i32, DType::i64}), ends);
    };
    batch = 1;
    test.cumulative_query_lengths = ends_of(query_limits, queries);
    test.cumulative_key_lengths = ends_of(key_limits, keys);
  }
  test.query = Tensor(spec.dtype, {batch, H, queries, D});
  test.key = Tensor(of_keys, {batch, G, keys, D});
  test.value = Tensor(of_keys, {batch, G, keys, E});
  test.out = Tensor(spec.out_dtype.value_or(spec.dtype), {batch, H, queries, E});
  test.lse = Tensor(DType::f32, {batch, H, queries});
  fill_normal(test.query, random);
  fill_normal(test.key, random);
  fill_normal(test.value, random);
  fill(test.out, not_a_number);
  fill(test.lse, not_a_number);
  const auto random_lengths = [&](const std::vector<std::int64_t>& most) {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t limit : most) lengths.push_back(random_length(limit));
    return integers(random.choice({DType::i32, DType::i64}), lengths);
  };
  if (spec.mask.has_key_lengths) test.key_lengths = random_lengths(key_limits);
  if (spec.mask.has_query_lengths) test.query_lengths = random_lengths(query_limits);
  if (spec.mask.has_prefix) {
    // Of a packed sequence up to the longest's, which may be more than it has.
    const std::int64_t longest = B == 0 ? 0 : *std::max_element(key_limits.begin(), key_limits.end());
    test.prefix_lengths = random_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(B), longest));
  }
  if (spec.mask.has_segments) {
    const bool shared = random.chance(0.2);
    test.query_segments = Tensor(DType::i32, {shared ? 1 : B, T});
    test.key_segments = Tensor(DType::i64, {shared ? 1 : B, S});
    for (std::int64_t b = 0; b < (shared ? 1 : B); ++b) {
      const int kind = static_cast<int>(random.integer(0, 2));
      const std::int64_t first = random.integer(-3, 3);
      for (const Tensor* segments : {&test.query_segments, &test.key_segments}) {
        const std::int64_t length = segments->view().shape[1];
        std::int64_t id = first;
        for (std::int64_t i = 0; i < length; ++i) {
          if (random.chance(6.0 / static_cast<double>(length + 1))) id += kind == 1 ? 7 : 1;
          // Stretches in any order: numbers that jump about, but never come back.
          segments->set({b, i}, static_cast<double>(kind == 0   ? id
                                                    : kind == 1 ? id % 2 == 0 ? -id : id
                                                                : random.integer(0, 2)));
        }
      }
    }
  }
  if (spec.mask.block_queries != 0) {
    const auto count = [](std::int64_t length, std::int64_t size) { return (length + size - 1) / size; };
    test.block_mask = Tensor(random.choice({DType::boolean, DType::u8}),
                             {B, H, count(T, spec.mask.block_queries), count(S, spec.mask.block_keys)});
    fill(test.block_mask, [&] { return random.chance(0.6) ? 1.0 : 0.0; });
  }
  if (spec.mask.has_offsets) {
    std::vector<std::int64_t> offsets;
    for (std::int64_t b = 0; b < B; ++b) offsets.push_back(random.integer(-T, S));
    test.offsets = integers(random.choice({DType::i32, DType::i64}), offsets);
  }
  if (spec.mask.has_boolean) {
    test.boolean_mask = Tensor(random.choice({DType::boolean, DType::u8}), {B, H, T, S});
    fill(test.boolean_mask, [&] { return random.chance(0.7) ? 1.0 : 0.0; });
  }
  if (spec.mask.has_bias) {
    test.bias = Tensor(DType::f32, {B, H, T, S});
    fill(test.bias, [&] { return random.chance(0.1) ? -infinity : random.normal(); });
  }
  if (spec.has_alibi) {
    test.alibi_slopes = Tensor(DType::f32, {H});
    std::int64_t head = 0;
    fill(test.alibi_slopes, [&] { return std::exp2(-8.0 * static_cast<double>(++head) / static_cast<double>(H)); });
  }
  if (spec.relative_bias.given()) {
    test.relative_bias_table = Tensor(DType::f32, {spec.relative_bias.table_rows(), H});
    fill_normal(test.relative_bias_table, random);
  }
  if (spec.has_sink) {
    test.sink = Tensor(DType::f32, {H});
    fill(test.sink, [&] { return random.chance(0.1) ? -infinity : 3 * random.normal(); });
  }
  return test;
}

::testing::AssertionResult run_and_compare(const AttentionCase& test, const Runtime& runtime, const std::string& what) {
  return compare_run(test, runtime, oracle::attention(test.inputs(), test.options(), false, test.score_function), what);
}

std::vector<Isa> isas_of(const AttentionSpec& spec) {
  const bool mixes = spec.key_dtype.value_or(spec.dtype) != spec.dtype || spec.out_dtype.value_or(spec.dtype) != spec.dtype;
  return mixes ? available_isas() : isas_with_own_kernels(spec.dtype);
}

::testing::AssertionResult run_everywhere(const AttentionCase& test, const std::string& what) {
  const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), false, test.score_function);
  for (const Isa isa : isas_of(test.spec))
    for (const int threads : {1, 2})
      if (auto result = compare_run(test, runtime_on(isa, threads), expected, what); !result) return result;
  return ::testing::AssertionSuccess();
}

Tensor run_fresh(const AttentionCase& test, const Runtime& runtime) {
  const AttentionPlan plan(test.spec, runtime);
  AttentionInputs inputs = test.inputs();
  const Tensor out = test.out.clone();
  fill(out, not_a_number);
  inputs.out = out;
  test.run(plan, inputs);
  return out;
}

double score_at_place(double score, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
  if ((b + h + t + 2 * s) % 7 == 0) return -infinity;
  return 0.75 * score + 0.25 * static_cast<double>((7 * b + 5 * h + 3 * t + 11 * s) % 13 - 6);
}

ScoreMod places_score_mod() {
  ScoreMod mod;
  mod.name = "places";
  mod.functions.baseline = [](const ScoreTile& tile, void*) {
    for (std::int64_t line = 0; line < tile.lines; ++line)
      for (std::int64_t lane = 0; lane < tile.lanes; ++lane) {
        float& score = tile.scores[line * tile.line_stride + lane];
        score = static_cast<float>(score_at_place(static_cast<double>(score), tile.batch, tile.head.at(line, lane),
                                                  tile.query.at(line, lane), tile.key.at(line, lane)));
      }
  };
  return mod;
}

std::string describe(const Mask& mask) {
  std::ostringstream text;
  const char* const causal[] = {"", "causal top-left ", "causal bottom-right ", "causal offset "};
  text << '{' << causal[static_cast<int>(mask.causality)];
  if (mask.window_left != Mask::unbounded || mask.window_right != Mask::unbounded)
    text << "window " << mask.window_left << ' ' << mask.window_right << ' ';
  if (mask.window_kept != 0) text << "kept " << mask.window_kept << ' ';
  if (mask.has_key_lengths) text << "lengths ";
  if (mask.has_offsets) text << "offsets ";
  if (mask.has_boolean) text << "boolean ";
  if (mask.has_bias) text << "bias ";
  if (mask.has_query_lengths) text << "query lengths ";
  if (mask.is_packed) text << "packed ";
  if (mask.has_prefix) text << "prefix ";
  if (mask.has_segments) text << "segments ";
  if (mask.block_queries != 0) text << "blocks " << mask.block_queries << 'x' << mask.block_keys << ' ';
  text << '}';
  return text.str();
}

}  // namespace polyhead::testing
