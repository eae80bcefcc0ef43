// The tables of docs/features.md: every pair of features works against the oracle, or is refused with the words that the tables
// give (scripts/check-features compares them); and random triples. What no row sees is NaN, in some cases infinite; in half of
// the cases so are some keys that some rows see and others do not. POLYHEAD_TEST_SEED chooses other numbers,
// POLYHEAD_TEST_ITERATIONS how many triples and, by the hundreds, how many rounds of pairs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "support/attention_case.hpp"
#include "support/cached_keys.hpp"
#include "support/pages.hpp"

namespace polyhead::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct Feature {
  const char* name;
  std::function<void(AttentionSpec&)> add;
};

bool has_name(const Feature& feature, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return std::string(feature.name) == name; });
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"causal top-left", [](AttentionSpec& s) { s.mask = s.mask & Mask::causal(Causal::top_left); }},
      {"causal bottom-right", [](AttentionSpec& s) { s.mask = s.mask & Mask::causal(Causal::bottom_right); }},
      {"causal offset", [](AttentionSpec& s) { s.mask = s.mask & Mask::causal(Causal::offset) & Mask::offsets(); }},
      {"offsets", [](AttentionSpec& s) { s.mask = s.mask & Mask::offsets(); }},
      {"window", [](AttentionSpec& s) { s.mask = s.mask & Mask::window(30, 9); }},
      {"kept keys", [](AttentionSpec& s) { s.mask = s.mask & Mask::window(6, 9, 4); }},
      {"key lengths", [](AttentionSpec& s) { s.mask = s.mask & Mask::key_lengths(); }},
      {"query lengths", [](AttentionSpec& s) { s.mask = s.mask & Mask::query_lengths(); }},
      {"packed", [](AttentionSpec& s) { s.mask = s.mask & Mask::packed(); }},
      {"prefix", [](AttentionSpec& s) { s.mask = s.mask & Mask::prefix(); }},  // beside a causal alignment, see spec_of
      {"segments", [](AttentionSpec& s) { s.mask = s.mask & Mask::segments(); }},
      {"low blocks", [](AttentionSpec& s) { s.mask = s.mask & Mask::blocks(3, 20); }},
      {"high blocks", [](AttentionSpec& s) { s.mask = s.mask & Mask::blocks(16, 32); }},
      {"block table", [](AttentionSpec& s) { s.mask = s.mask & Mask::key_lengths(); }},  // and pages, see works
      {"cache", [](AttentionSpec& s) { s.mask = s.mask & Mask::key_lengths(); }},        // and a KvCache, see works
      {"mixed types", [](AttentionSpec&) {}},  // of query, keys and out, see draw_types
      {"boolean", [](AttentionSpec& s) { s.mask = s.mask & Mask::boolean(); }},
      {"bias", [](AttentionSpec& s) { s.mask = s.mask & Mask::bias(); }},
      {"softcap", [](AttentionSpec& s) { s.softcap = 2.0; }},
      {"score modification", [](AttentionSpec& s) { s.score_mod = places_score_mod(); }},
      {"ALiBi", [](AttentionSpec& s) { s.has_alibi = true; }},
      {"sink", [](AttentionSpec& s) { s.has_sink = true; }},
      {"scale", [](AttentionSpec& s) { s.scale = -0.3; }},
      {"length invariant", [](AttentionSpec& s) { s.length_invariant = true; }},
      {"fast", [](AttentionSpec& s) { s.precision = Precision::fast; }},
      {"T5", [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(16, 60, false); }},
      {"T5, both directions", [](AttentionSpec& s) { s.relative_bias = RelativeBias::t5(); }},
      {"Swin", [](AttentionSpec& s) { s.relative_bias = RelativeBias::swin(10, 9); }},
  };
  return all;
}

bool has_feature(const std::vector<const Feature*>& chosen, const char* name) {
  return std::any_of(chosen.begin(), chosen.end(), [&](const Feature* feature) { return has_name(*feature, {name}); });
}

constexpr std::int64_t longest = 90;  // Swin's window holds it

// Values of one setting, of which a call has one.
bool exclude_each_other(const Feature& a, const Feature& b) {
  const auto both = [&](std::initializer_list<const char*> names) { return has_name(a, names) && has_name(b, names); };
  return both({"T5", "T5, both directions", "Swin"}) || both({"block table", "cache"});
}

// What the refusal of a pair says; null: the pair works.
const char* refusal(const Feature& a, const Feature& b) {
  const auto pair = [&](std::initializer_list<const char*> one, std::initializer_list<const char*> other) {
    return (has_name(a, one) && has_name(b, other)) || (has_name(b, one) && has_name(a, other));
  };
  if (pair({"causal top-left", "causal bottom-right", "causal offset"},
           {"causal top-left", "causal bottom-right", "causal offset"}))
    return "mask: two causal alignments that differ cannot be combined";
  if (pair({"low blocks"}, {"high blocks"})) return "mask: two block sizes that differ cannot be combined";
  if (pair({"window"}, {"kept keys"})) return "mask: two windows that keep different numbers of first keys cannot be combined";
  if (pair({"offsets"}, {"causal top-left", "causal bottom-right", "prefix"}))
    return "has_offsets is true, expected false, since the causal alignment fixes the offset";
  if (pair({"packed"}, {"segments"}))
    return "has_segments is true, expected false for packed sequences: give each document as one of them";
  if (pair({"block table", "cache"}, {"segments"}))
    return "AttentionSpec.mask.has_segments is true, expected false for keys in pages, in the middle of which documents would "
           "begin: give each document as a sequence of its own";
  if (pair({"cache"}, {"Swin"}))
    return "AttentionSpec.relative_bias is Swin's, expected none or T5's over a cache, whose tokens are no window of an image";
  if (pair({"bias"}, {"T5", "T5, both directions", "Swin"}))
    return "AttentionSpec.mask.has_bias is true, expected false beside a relative bias, which is in the place of a bias";
  if (pair({"Swin"},
           {"causal top-left", "causal bottom-right", "causal offset", "offsets", "window", "kept keys", "prefix", "ALiBi"}))
    return "AttentionSpec.relative_bias is Swin's together with a causal alignment, a window, offsets or ALiBi, expected one "
           "without these, since positions of an image have no order";
  if (pair({"Swin"}, {"score modification"}))
    return "AttentionSpec.score_mod is given together with Swin's relative bias, expected one of the two: the function may add "
           "that bias";
  return nullptr;
}

// Keys a page, 0 without a block table.
std::int64_t page_tokens_of(const std::vector<const Feature*>& chosen, Random& random) {
  return has_feature(chosen, "block table") ? random.choice<std::int64_t>({1, 7, 16, 32}) : 0;
}

AttentionSpec spec_of(const std::vector<const Feature*>& chosen, std::int64_t page_tokens, Random& random) {
  AttentionSpec spec = attention_spec(random.integer(1, 3), 4, random.choice<std::int64_t>({1, 2, 4}),
                                      random.chance(0.4) ? random.integer(1, 3) : random.integer(4, longest),
                                      random.integer(1, longest), random.choice<std::int64_t>({8, 24, 56}), 0);
  spec.value_dim = random.chance(0.7) ? spec.head_dim : 20;
  for (const Feature* feature : chosen) feature->add(spec);
  if (spec.mask.is_packed) {  // so many sequences of that
    spec.query_length = std::min<std::int64_t>(spec.query_length, 30);
    spec.key_length = std::min<std::int64_t>(spec.key_length, 40);
  }
  if (spec.mask.has_prefix && spec.mask.causality == Causal::none) spec.mask = spec.mask & Mask::causal(Causal::top_left);
  // Masks and biases over a block table are as long as all of its pages.
  if (page_tokens > 0) spec.key_length = std::max<std::int64_t>(1, spec.key_length / page_tokens) * page_tokens;
  return spec;
}

// Which types keys and out are of, beside queries of the spec's dtype: a cache may hold integers, and with mixed types all go
// their own ways.
void draw_types(const std::vector<const Feature*>& chosen, Random& random, AttentionSpec* spec) {
  if (has_feature(chosen, "mixed types")) {
    const std::vector<DType> dtypes = attention_dtypes();
    do {
      spec->key_dtype = random.choice(dtypes);
      spec->out_dtype = random.choice(dtypes);
    } while (dtypes.size() > 1 && *spec->key_dtype == spec->dtype && *spec->out_dtype == spec->dtype);
  }
  if (has_feature(chosen, "cache") && dispatch::cache_dtypes().back() == DType::i8 && random.chance(0.25))
    spec->key_dtype = DType::i8;
}

// The words that the plan refuses features with, or the run, which alone sees a block table or a cache; empty: neither does.
std::string words_of_refusal(const std::vector<const Feature*>& chosen, Random& random) {
  try {
    const std::int64_t page_tokens = page_tokens_of(chosen, random);
    const AttentionSpec spec = spec_of(chosen, page_tokens, random);
    const AttentionPlan plan(spec, runtime_on(default_isa()));
    const bool in_cache = has_feature(chosen, "cache");
    if (page_tokens == 0 && !in_cache) return "";
    const AttentionCase test = make_case(spec, random);
    AttentionInputs inputs = test.inputs();
    if (in_cache) {
      const KvCache cache(cache_layout(spec, CacheKind::paged, 16));
      plan.run(cached_inputs(inputs, cache, {}));
      return "";
    }
    const Tensor table(DType::i32, {spec.batch, spec.key_length / page_tokens});
    fill(table, 0.0);
    inputs.block_table = table;
    plan.run(inputs);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// NaN in keys and values that no row of their kv head sees, and in half of the cases in about two that some see; in some cases
// infinities among them.
void poison(const AttentionCase& test, Random& random) {
  const auto& shape = test.key.view().shape;
  const std::int64_t rows = test.query.view().shape[2], group = test.spec.heads / test.spec.kv_heads;
  const AttentionInputs inputs = test.inputs();
  const bool is_seen = random.chance(0.5), is_infinite = random.chance(0.3);
  const auto poisoned = [&] { return is_infinite && random.chance(0.7) ? random.choice({infinity, -infinity}) : not_a_number; };
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t g = 0; g < shape[1]; ++g)
      for (std::int64_t s = 0; s < shape[2]; ++s) {
        bool seen = false;
        for (std::int64_t row = 0; row < rows * group && !seen; ++row)
          seen = oracle::allowed(inputs, test.spec.mask, b, g * group + row % group, row / group, s);
        if (seen && !(is_seen && random.chance(2.0 / static_cast<double>(shape[1] * shape[2])))) continue;
        const bool in_key = !seen || random.chance(0.5), in_value = !seen || !in_key;
        if (in_key) test.key.set({b, g, s, random.integer(0, test.spec.head_dim - 1)}, poisoned());
        if (in_value) test.value.set({b, g, s, random.integer(0, test.spec.value_dim - 1)}, poisoned());
      }
}

// Puts keys and values into a cache, of which a ring goes with what is causal from the last token and needs no first ones. What
// integers stand for is what the oracle has.
void put_in_cache(AttentionCase* test, Random& random) {
  const Mask& mask = test->spec.mask;
  const bool may_be_ring =
      mask.causality == Causal::bottom_right && mask.window_kept == 0 && !mask.has_prefix && mask.block_queries == 0;
  const CacheKind kind =
      may_be_ring && random.chance(0.3) ? CacheKind::ring : random.choice({CacheKind::contiguous, CacheKind::paged});
  const KvCacheSpec layout = cache_layout(test->spec, kind, random.choice<std::int64_t>({1, 7, 16, 128}));
  const auto keys = std::make_shared<const CachedKeys>(*test, layout, random);
  if (layout.dtype == DType::i8) keys->read_back(*test);
  if (kind == CacheKind::ring) test->spec.key_length = keys->cache.plan_key_length();
  test->cached = keys;
}

void ask_for_weights(const AttentionCase& test, const Runtime& runtime, const AttentionWeightsRequest& request) {
  if (test.cached) return attention_weights(runtime, test.cached->inputs(test.inputs()), test.options(), request);
  attention_weights(runtime, test.in_pages(test.inputs()), test.options(), request);
}

// The weights of all rows on every instruction set: f32 whatever query and keys are, and held to f32's bound.
::testing::AssertionResult weights_match(const AttentionCase& test, const std::string& where) {
  const oracle::AttentionResult expected = oracle::attention(test.inputs(), test.options(), true, test.score_function);
  const Tensor weights(
      DType::f32, {expected.weights.shape[0], expected.weights.shape[1], expected.weights.shape[2], expected.weights.shape[3]});
  AttentionWeightsRequest request;
  request.weights = weights;
  for (const Isa isa : isas_of(test.spec)) {
    fill(weights, not_a_number);
    ask_for_weights(test, runtime_on(isa, 1), request);
    const auto keys = static_cast<std::size_t>(std::max<std::int64_t>(expected.weights.shape[3], 1));
    for (std::size_t i = 0; i < expected.weights.values.size(); ++i) {
      const double right = expected.weights.values[i], weight = static_cast<double>(weights.f32()[i]);
      const std::size_t row = i / keys;
      if (std::isnan(expected.lse.values[row])) continue;  // a NaN that the row sees
      const double bound = 2e-6 + 0x1p-22 * expected.score_magnitude.values[row];
      if (std::fabs(weight - right) <= bound && (right != 0 || weight == 0)) continue;
      return ::testing::AssertionFailure() << where << ", " << name(isa) << ": weight " << i << " is " << weight
                                           << ", expected " << right << "; " << test.describe();
    }
  }
  return ::testing::AssertionSuccess();
}

// Weights of packed sequences go neither with a score modification nor with keys in pages.
::testing::AssertionResult weights_are_refused(const AttentionCase& test, const char* words, const std::string& where) {
  const Tensor weights(DType::f32,
                       {test.query.view().shape[0], test.spec.heads, test.query.view().shape[2], test.key.view().shape[2]});
  AttentionWeightsRequest request;
  request.weights = weights;
  try {
    ask_for_weights(test, runtime_on(default_isa()), request);
  } catch (const Error& error) {
    const bool told = std::string(error.what()).find(words) != std::string::npos;
    if (told && error.code() == ErrorCode::unsupported) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << where << ": " << error.what();
  }
  return ::testing::AssertionFailure() << where << ": weights were not refused";
}

std::string names_of(const std::vector<const Feature*>& chosen) {
  std::string names;
  for (const Feature* feature : chosen) names += (names.empty() ? "" : " + ") + std::string(feature->name);
  return names;
}

::testing::AssertionResult works(const std::vector<const Feature*>& chosen, DType dtype, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t page_tokens = page_tokens_of(chosen, random);
  AttentionSpec spec = spec_of(chosen, page_tokens, random);
  spec.dtype = dtype;
  draw_types(chosen, random, &spec);
  AttentionCase test = make_case(spec, random);
  if (spec.mask.has_bias) test.bias = converted(test.bias, bias_dtypes[seed / 16 % 3]);
  if (!spec.score_mod.empty()) test.score_function = score_at_place;
  std::string where = names_of(chosen) + ", seed " + std::to_string(seed);
  set_crash_note(where + ", " + name(dtype));
  if (spec.has_alibi && random.chance(0.5)) {
    test.alibi_slopes = Tensor(DType::f32, {spec.batch, spec.heads});
    fill_normal(test.alibi_slopes, random, 0.2);
    where += ", slopes of items";
  }
  const bool in_cache = has_feature(chosen, "cache");
  // Weights over a cache are as wide as its longest sequence is long.
  if (in_cache && !spec.mask.is_packed)
    test.key_lengths.set({random.integer(0, spec.batch - 1)}, static_cast<double>(spec.key_length));
  if (in_cache && spec.mask.is_packed && spec.mask.has_prefix) {  // at most the longest sequence's
    double longest_length = 0;
    for (std::int64_t b = 0; b < spec.batch; ++b) longest_length = std::max(longest_length, test.key_lengths({b}));
    for (std::int64_t b = 0; b < spec.batch; ++b)
      test.prefix_lengths.set({b}, std::min(test.prefix_lengths({b}), longest_length));
  }
  poison(test, random);
  if (in_cache) put_in_cache(&test, random);
  if (page_tokens > 0) test.pages = std::make_shared<const Pages>(test, page_tokens, 0, random.chance(0.5), random);
  if (auto result = run_everywhere(test, where); !result) return result;
  if (spec.mask.is_packed && !spec.score_mod.empty())
    return weights_are_refused(test, "the mask is packed and a score_mod is given", where);
  if (spec.mask.is_packed && (in_cache || test.pages))
    return weights_are_refused(test, "the mask is packed and keys lie in pages", where);
  return weights_match(test, where);
}

std::int64_t iterations() {
  return environment_integer("POLYHEAD_TEST_ITERATIONS", 300);
}

TEST(AttentionPairs, EveryPairWorksOrIsRefusedAsTheTableSays) {
  const std::int64_t seed = environment_integer("POLYHEAD_TEST_SEED", 20261130),
                     rounds = std::max<std::int64_t>(1, iterations() / 300);
  std::printf("    POLYHEAD_TEST_SEED=%lld, %lld rounds\n", static_cast<long long>(seed), static_cast<long long>(rounds));
  const std::vector<DType> dtypes = attention_dtypes();
  std::uint64_t call = 0;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < features().size(); ++i)
      for (std::size_t j = i; j < features().size(); ++j) {
        const Feature &a = features()[i], &b = features()[j];
        if (exclude_each_other(a, b) && i != j) continue;
        ++call;
        if (const char* words = i == j ? nullptr : refusal(a, b)) {
          Random random(static_cast<std::uint64_t>(seed) + call);
          const std::string told = words_of_refusal({&a, &b}, random);
          EXPECT_NE(told.find(words), std::string::npos)
              << a.name << " + " << b.name << ": " << (told.empty() ? "was accepted" : told);
          continue;
        }
        // Long runs take every data type for every pair, quick ones each in turn.
        for (std::size_t d = 0; d < (rounds > 1 ? dtypes.size() : 1); ++d) {
          const DType dtype = dtypes[(call + d) % dtypes.size()];
          ASSERT_TRUE(works({&a, &b}, dtype, static_cast<std::uint64_t>(seed) + call * 16 + d));
        }
      }
  std::printf("    %llu pairs, largest error: %.3f of the bound\n", static_cast<unsigned long long>(call), take_worst_ratio());
}

TEST(AttentionPairs, RandomTriplesWork) {
  const std::int64_t seed = environment_integer("POLYHEAD_TEST_SEED", 20261130);
  std::printf("    POLYHEAD_TEST_SEED=%lld, %lld triples\n", static_cast<long long>(seed),
              static_cast<long long>(iterations()));
  const std::vector<DType> dtypes = attention_dtypes();
  Random random(static_cast<std::uint64_t>(seed));
  const auto size = static_cast<std::int64_t>(features().size());
  for (std::int64_t i = 0; i < iterations();) {
    std::vector<const Feature*> chosen;
    for (int k = 0; k < 3; ++k) chosen.push_back(&features()[static_cast<std::size_t>(random.integer(0, size - 1))]);
    const auto clash = [&](std::size_t k, std::size_t l) {
      return chosen[k] == chosen[l] || exclude_each_other(*chosen[k], *chosen[l]) || refusal(*chosen[k], *chosen[l]) != nullptr;
    };
    if (clash(0, 1) || clash(0, 2) || clash(1, 2)) continue;
    ++i;
    ASSERT_TRUE(works(chosen, random.choice(dtypes), random.bits() >> 1));
  }
  std::printf("    largest error: %.3f of the bound\n", take_worst_ratio());
}

}  // namespace
}  // namespace polyhead::testing
