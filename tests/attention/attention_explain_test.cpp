// What a plan says about itself: valid JSON, the same facts as the text, and the facts themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "support/attention_case.hpp"

namespace polyhead::testing {
namespace {

using Json = nlohmann::json;

class ExplainTest : public EveryIsa {
 protected:
  Json explained(const AttentionSpec& spec, int threads = 1) const {
    return Json::parse(AttentionPlan(spec, runtime(threads)).explain_json());
  }
};

AttentionSpec f32_spec(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t query_length,
                       std::int64_t key_length, std::int64_t head_dim, const Mask& mask = {}) {
  AttentionSpec spec = attention_spec(batch, heads, kv_heads, query_length, key_length, head_dim, head_dim, mask);
  spec.dtype = DType::f32;
  return spec;
}

// The member "mask" as docs/architecture.md has it.
Json json_of(const Mask& mask) {
  const Json alignments[] = {nullptr, "top_left", "bottom_right", "offset"};
  Json window, blocks;
  if (mask.window_left != Mask::unbounded || mask.window_right != Mask::unbounded)
    window = {{"left", mask.window_left}, {"right", mask.window_right}, {"kept", mask.window_kept}};
  if (mask.block_queries != 0) blocks = {{"queries", mask.block_queries}, {"keys", mask.block_keys}};
  return {{"causal", alignments[static_cast<int>(mask.causality)]},
          {"window", window},
          {"key_lengths", mask.has_key_lengths},
          {"query_lengths", mask.has_query_lengths},
          {"offsets", mask.has_offsets},
          {"packed", mask.is_packed},
          {"prefix", mask.has_prefix},
          {"segments", mask.has_segments},
          {"boolean", mask.has_boolean},
          {"bias", mask.has_bias},
          {"blocks", blocks}};
}

std::vector<AttentionSpec> many_specs() {
  std::vector<AttentionSpec> specs;
  for (const Mask& mask :
       {Mask::none(), Mask::causal(Causal::bottom_right) & Mask::window(100, 0), Mask::key_lengths() & Mask::boolean(),
        Mask::packed(), Mask::segments(), Mask::blocks(4, 64), Mask::causal(Causal::top_left) & Mask::prefix()})
    for (const std::int64_t query_length : {0, 1, 300})
      for (const std::int64_t key_length : {0, 77, 5000})
        specs.push_back(f32_spec(2, 4, 2, query_length, key_length, 64, mask));
  AttentionSpec changed = f32_spec(1, 4, 4, 49, 49, 32);
  changed.softcap = 30;
  changed.has_sink = true;
  changed.relative_bias = RelativeBias::swin(7, 7);
  specs.push_back(changed);
  changed.relative_bias = RelativeBias::t5(32, 128, false);
  changed.has_alibi = changed.length_invariant = true;
  changed.precision = Precision::fast;
  changed.scale = -1e-30;
  specs.push_back(changed);
  return specs;
}

TEST_P(ExplainTest, JsonHasEveryMemberOfEveryPlan) {
  for (const AttentionSpec& spec : many_specs())
    for (const int threads : {1, 2}) {
      const Json told = explained(spec, threads);
      for (const char* text : {"kernel", "reason", "isa", "dtype", "key_dtype", "out_dtype", "precision", "precision_asked"})
        ASSERT_TRUE(told.at(text).is_string()) << text;
      for (const char* number : {"threads", "one_thread_ms", "expected_ms", "scale", "softcap", "workspace_bytes",
                                 "rows_of_a_kv_head", "query_heads_stacked"})
        ASSERT_TRUE(told.at(number).is_number()) << number;
      for (const char* flag : {"runs_inline", "alibi", "sink"}) ASSERT_TRUE(told.at(flag).is_boolean()) << flag;
      for (const char* size : {"batch", "heads", "kv_heads", "query_length", "key_length", "head_dim", "value_dim"})
        ASSERT_TRUE(told.at("shape").at(size).is_number_integer()) << size;
      ASSERT_EQ(told.at("mask"), json_of(spec.mask));
      const bool summarised = spec.mask.has_boolean && spec.query_length > 0 && spec.key_length >= 256;
      ASSERT_EQ(told.at("mask_summary").is_null(), !summarised) << told;
      for (const char* count : {"rows", "keys", "skipped", "full", "partial"})
        ASSERT_TRUE(told.at("tiles").at(count).is_number_integer()) << count;
      ASSERT_TRUE(told.at("not_faster").is_array());
      const Json& rest = told.at("rest_kernel");
      ASSERT_TRUE(rest.is_null() || (rest.at("name").is_string() && rest.at("rows").get<std::int64_t>() > 0));
      ASSERT_TRUE(told.at("key_splits").is_null() || told.at("key_splits").at("keys").is_number_integer());
      const bool cut_later = told.at("work").at("cut_at_run_time").get<bool>();
      ASSERT_EQ(told.at("work").contains("pieces"), !cut_later);
      ASSERT_EQ(told.at("shape").at("query_length").get<std::int64_t>(), spec.query_length);
      ASSERT_EQ(told.at("isa").get<std::string>(), name(runtime().isa()));
      const double scale = spec.scale ? *spec.scale : 1 / std::sqrt(static_cast<double>(spec.head_dim));
      ASSERT_NEAR(told.at("scale").get<double>(), scale, 1e-8 * std::fabs(scale)) << told;
    }
}

// Both forms come from one place: every number of the text is the JSON's.
TEST_P(ExplainTest, TextAndJsonAgree) {
  for (const AttentionSpec& spec : many_specs()) {
    const AttentionPlan plan(spec, runtime(2));
    const std::string text = plan.explain();
    const Json told = Json::parse(plan.explain_json());
    const Json& tiles = told.at("tiles");
    const std::string counts = tiles.at("skipped").dump() + " skipped, " + tiles.at("full").dump() + " full, " +
                               tiles.at("partial").dump() + " partial";
    EXPECT_NE(text.find(counts), std::string::npos) << text << counts;
    EXPECT_NE(text.find("kernel       " + told.at("kernel").get<std::string>() + " ("), std::string::npos) << text;
    EXPECT_NE(text.find("threads      " + told.at("threads").dump()), std::string::npos) << text;
    EXPECT_NE(text.find("workspace    " + told.at("workspace_bytes").dump() + " bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("expected     about "), std::string::npos) << text;
    for (const Json& why : told.at("not_faster"))
      EXPECT_NE(text.find("not faster   " + why.get<std::string>() + "\n"), std::string::npos) << text;
    EXPECT_EQ(text.find("key splits") != std::string::npos, !told.at("key_splits").is_null()) << text;
  }
}

TEST_P(ExplainTest, NamesEveryPartOfTheMask) {
  const std::pair<Mask, const char*> parts[] = {
      {Mask::none(), "none"},
      {Mask::causal(Causal::top_left), "causal top_left"},
      {Mask::causal(Causal::bottom_right), "causal bottom_right"},
      {Mask::causal(Causal::offset), "causal offset, offsets"},
      {Mask::window(-1, 5), "window (-1, 5)"},
      {Mask::window(9, -1, 4), "window (9, -1), kept 4"},
      {Mask::key_lengths(), "key_lengths"},
      {Mask::query_lengths(), "query_lengths"},
      {Mask::window(0, 3) & Mask::offsets(), "window (0, 3), offsets"},
      {Mask::packed(), "packed"},
      {Mask::causal(Causal::top_left) & Mask::prefix(), "causal top_left, prefix"},
      {Mask::segments(), "segments"},
      {Mask::boolean(), "boolean"},
      {Mask::bias(), "bias"},
      {Mask::blocks(2, 64), "blocks 2 x 64"},
      {Mask::causal(Causal::bottom_right) & Mask::window(30, 0, 4) & Mask::key_lengths() & Mask::boolean() & Mask::bias(),
       "causal bottom_right, window (30, 0), kept 4, key_lengths, boolean, bias"}};
  for (const auto& [mask, text] : parts) {
    const AttentionPlan plan(f32_spec(2, 4, 2, 100, 100, 64, mask), runtime());
    EXPECT_EQ(Json::parse(plan.explain_json()).at("mask"), json_of(mask)) << text;
    EXPECT_NE(plan.explain().find("\nmask         " + std::string(text) + "\n"), std::string::npos) << plan.explain() << text;
  }
}

TEST_P(ExplainTest, NamesTheTypesOfKeysAndOut) {
  for (const DType of_keys : dispatch::cache_dtypes())
    for (const DType of_out : attention_dtypes()) {
      AttentionSpec spec = f32_spec(2, 4, 2, 1, 100, 64, Mask::key_lengths());
      Json told = explained(spec);
      EXPECT_EQ(told.at("dtype"), "f32");
      EXPECT_EQ(told.at("key_dtype"), "f32");
      EXPECT_EQ(told.at("out_dtype"), "f32");
      spec.key_dtype = of_keys, spec.out_dtype = of_out;
      told = explained(spec);
      EXPECT_EQ(told.at("key_dtype"), name(of_keys));
      EXPECT_EQ(told.at("out_dtype"), name(of_out));
      const auto text = told.at("dtype").get<std::string>();
      EXPECT_EQ(text.find(std::string("keys and values ") + name(of_keys)) != std::string::npos, of_keys != DType::f32) << text;
      EXPECT_EQ(text.find(std::string("out ") + name(of_out)) != std::string::npos, of_out != DType::f32) << text;
    }
}

TEST_P(ExplainTest, TilesAreCountedByTheMasksStructure) {
  const auto tiles = [&](const Mask& mask) {
    const Json told = explained(f32_spec(1, 1, 1, 1024, 1024, 64, mask));
    return told.at("tiles");
  };
  const auto number = [](const Json& of, const char* member) { return of.at(member).get<double>(); };
  const Json none = tiles(Mask::none());
  EXPECT_EQ(number(none, "skipped"), 0);
  EXPECT_EQ(number(none, "partial"), 0);
  const double all = number(none, "full");
  const double rows = number(none, "rows"), keys = number(none, "keys");
  EXPECT_EQ(all, std::ceil(1024 / rows) * std::ceil(1024 / keys));
  const Json causal = tiles(Mask::causal(Causal::top_left));
  EXPECT_EQ(number(causal, "skipped") + number(causal, "full") + number(causal, "partial"), all);
  EXPECT_GT(number(causal, "skipped"), 0.3 * all);
  EXPECT_GT(number(causal, "full"), 0.3 * all);
  EXPECT_GT(number(causal, "partial"), 0);
  EXPECT_GT(number(tiles(Mask::window(64, 0)), "skipped"), 0.7 * all);
  EXPECT_EQ(number(tiles(Mask::bias()), "partial"), all);
}

// Whether query t of T may see key s of S, by causal alignment and window as docs/semantics.md has them.
bool sees(const Mask& mask, std::int64_t T, std::int64_t S, std::int64_t t, std::int64_t s) {
  const std::int64_t at = t + (mask.causality == Causal::bottom_right ? S - T : 0);
  if (mask.causality != Causal::none && s > at) return false;
  if (mask.window_left != Mask::unbounded && s < at - mask.window_left && s >= mask.window_kept) return false;
  return mask.window_right == Mask::unbounded || s <= at + mask.window_right;
}

// Shapes with as many, fewer and more queries than keys: aligned bottom-right, the first of these see none. Heads of at most 48
// numbers have smaller tiles in decoding kernels.
std::vector<AttentionSpec> structured_specs() {
  const Mask masks[] = {Mask::none(),
                        Mask::causal(Causal::top_left),
                        Mask::causal(Causal::bottom_right),
                        Mask::causal(Causal::bottom_right) & Mask::window(40, 0),
                        Mask::causal(Causal::bottom_right) & Mask::window(0, 0),
                        Mask::causal(Causal::bottom_right) & Mask::window(10, 0, 4),
                        Mask::causal(Causal::top_left) & Mask::window(20, 0, 200),
                        Mask::window(30, 9),
                        Mask::window(Mask::unbounded, 200)};
  std::vector<AttentionSpec> specs;
  for (const Mask& mask : masks)
    for (const auto& [query_length, key_length] : {std::pair<std::int64_t, std::int64_t>(300, 100),
                                                   {700, 300},
                                                   {100, 300},
                                                   {260, 260},
                                                   {1, 500},
                                                   {5, 600},
                                                   {500, 4},
                                                   {64, 0}})
      for (const std::int64_t kv_heads : {4, 2, 1}) {
        specs.push_back(f32_spec(2, 4, kv_heads, query_length, key_length, kv_heads == 2 ? 40 : 72, mask));
      }
  return specs;
}

std::string describe(const AttentionSpec& spec) {
  return std::to_string(spec.query_length) + " x " + std::to_string(spec.key_length) + ", kv heads " +
         std::to_string(spec.kv_heads) + ", mask " + testing::describe(spec.mask);
}

TEST_P(ExplainTest, TilesAreWhatTheMaskSaysOfTheirPairs) {
  const simd::AttentionKernel* const rest =
      dispatch::attention_kernels(dispatch::kernel_table(runtime().isa()), DType::f32).decode;
  std::int64_t with_rest = 0, with_blind_rows = 0;
  for (const AttentionSpec& spec : structured_specs()) {
    const Json told = explained(spec);
    const std::int64_t T = spec.query_length, S = spec.key_length, group = spec.heads / spec.kv_heads, rows = T * group;
    const std::int64_t rest_rows = told.at("rest_kernel").is_null() ? 0 : told.at("rest_kernel").at("rows").get<std::int64_t>();
    std::int64_t skipped = 0, full = 0, partial = 0;
    const auto count = [&](std::int64_t row_begin, std::int64_t row_end, std::int64_t row_block, std::int64_t key_block) {
      for (std::int64_t row = row_begin; row < row_end; row += row_block)
        for (std::int64_t key = 0; key < S; key += key_block) {
          std::int64_t seen = 0, pairs = 0;
          for (std::int64_t r = row; r < std::min(row + row_block, row_end); ++r)
            for (std::int64_t s = key; s < std::min(key + key_block, S); ++s) {
              seen += sees(spec.mask, T, S, r / group, s) ? 1 : 0;
              ++pairs;
            }
          ++(seen == 0 ? skipped : seen == pairs ? full : partial);
        }
    };
    count(0, rows - rest_rows, told.at("tiles").at("rows"), told.at("tiles").at("keys"));
    count(rows - rest_rows, rows, rest->row_block,
          rest->tile_keys ? rest->tile_keys(spec.head_dim, spec.value_dim) : rest->key_block);
    const std::int64_t heads = spec.batch * spec.kv_heads;
    EXPECT_EQ(told.at("tiles").at("skipped"), skipped * heads) << describe(spec);
    EXPECT_EQ(told.at("tiles").at("full"), full * heads) << describe(spec);
    EXPECT_EQ(told.at("tiles").at("partial"), partial * heads) << describe(spec);
    with_rest += rest_rows > 0 ? 1 : 0;
    with_blind_rows += S > 0 && !sees(spec.mask, T, S, 0, 0) && T > S ? 1 : 0;
  }
  EXPECT_GT(with_blind_rows, 0);
  if (runtime().isa() == Isa::avx512 || runtime().isa() == Isa::avx2) {
    EXPECT_GT(with_rest, 0) << "no shape has a rest kernel";
  }
}

// A score modification that changes nothing, and counts what it is asked.
struct Counts {
  std::int64_t changed = 0, skipped = 0, full = 0, partial = 0;
};
ScoreMod counting_mod(Counts* counts) {
  ScoreMod mod;
  mod.name = "counting";
  mod.functions.baseline = [](const ScoreTile&, void* context) { ++static_cast<Counts*>(context)->changed; };
  mod.context = counts;
  return mod;
}

// Pairs of queries and keys in one half of a sequence of 336 see each other.
ScoreMod halves_mod(Counts* counts) {
  ScoreMod mod = counting_mod(counts);
  mod.classify = [](const ScoreRange& range, void* context) {
    Counts& into = *static_cast<Counts*>(context);
    const bool low_queries = range.query_end <= 168, high_queries = range.query_begin >= 168;
    const bool low_keys = range.key_end <= 168, high_keys = range.key_begin >= 168;
    if ((low_queries && high_keys) || (high_queries && low_keys)) return ++into.skipped, TileClass::skip;
    if ((low_queries && low_keys) || (high_queries && high_keys)) return ++into.full, TileClass::full;
    return ++into.partial, TileClass::partial;
  };
  return mod;
}

// Kernels compute the tiles that are counted as such, no more and no fewer. The scalar ones go by rows; the others share few
// last rows evenly between two blocks, which may have a tile more or less than a whole one and a small one.
TEST_P(ExplainTest, KernelsComputeTheTilesThatAreNotSkipped) {
  if (runtime().isa() == Isa::reference) return;
  Random random(90);
  std::int64_t compared = 0;
  for (AttentionSpec spec : structured_specs()) {
    Counts counts;
    spec.score_mod = counting_mod(&counts);
    const AttentionPlan plan(spec, runtime(1));
    const Json told = Json::parse(plan.explain_json()), tiles = told.at("tiles");
    const std::int64_t block = tiles.at("rows"), rows = spec.query_length * spec.heads / spec.kv_heads;
    const std::int64_t last = told.at("rest_kernel").is_null() ? rows % block : 0;
    if (rows > block && last > 0 && last <= block / 2) continue;
    ++compared;
    plan.run(make_case(spec, random).inputs());
    EXPECT_EQ(tiles.at("full"), 0) << describe(spec);
    EXPECT_EQ(tiles.at("partial"), counts.changed) << describe(spec);
  }
  EXPECT_GT(compared, 50);
}

TEST_P(ExplainTest, WhatAClassifierSkipsTakesNoTime) {
  Random random(91);
  for (const Mask& mask : {Mask::none(), Mask::causal(Causal::top_left), Mask::window(200, 100), Mask::window(40, 100, 12)})
    for (const std::int64_t kv_heads : {4, 1}) {
      AttentionSpec spec = f32_spec(2, 4, kv_heads, 336, 336, 32, mask);
      Counts counts;
      spec.score_mod = counting_mod(&counts);
      const Json without = explained(spec);
      EXPECT_FALSE(without.at("score_mod").at("classifies_tiles").get<bool>());
      EXPECT_TRUE(without.at("score_mod").at("tiles").is_null());
      EXPECT_EQ(without.at("score_mod").at("not_counted"), "");
      spec.score_mod = halves_mod(&counts);
      const AttentionPlan plan(spec, runtime(1));
      const Json told = Json::parse(plan.explain_json());
      const Json& tiles = told.at("score_mod").at("tiles");
      const Counts asked = counts;
      EXPECT_EQ(tiles.at("skipped"), asked.skipped);
      EXPECT_EQ(tiles.at("full"), asked.full);
      EXPECT_EQ(tiles.at("partial"), asked.partial);
      EXPECT_GT(asked.skipped, 0) << describe(spec);
      EXPECT_EQ(asked.changed, 0) << "the function itself was called";
      const std::int64_t all = asked.skipped + asked.full + asked.partial;
      EXPECT_EQ(told.at("tiles").at("partial"), all) << "these are by structure";
      const double share = static_cast<double>(asked.full + asked.partial) / static_cast<double>(all);
      EXPECT_NEAR(told.at("expected_ms").get<double>(), share * without.at("expected_ms").get<double>(),
                  1e-6 * without.at("expected_ms").get<double>());
      EXPECT_NE(plan.explain().find("its classifier skips " + std::to_string(asked.skipped)), std::string::npos)
          << plan.explain();
      if (runtime().isa() == Isa::reference) continue;
      counts = Counts();
      plan.run(make_case(spec, random).inputs());
      EXPECT_EQ(counts.skipped, asked.skipped) << describe(spec);
      EXPECT_EQ(counts.full, asked.full) << describe(spec);
      EXPECT_EQ(counts.partial, asked.partial) << describe(spec);
      EXPECT_EQ(counts.changed, asked.full + asked.partial) << describe(spec);
    }
}

TEST_P(ExplainTest, AClassifierThatCannotBeAskedIsNotCounted) {
  Counts counts;
  AttentionSpec spec = f32_spec(1, 4, 4, 336, 336, 32);
  const auto reason = [&] {
    counts = Counts();
    const AttentionPlan plan(spec, runtime());
    const Json told = Json::parse(plan.explain_json()).at("score_mod");
    EXPECT_TRUE(told.at("tiles").is_null());
    EXPECT_EQ(counts.skipped + counts.full + counts.partial, 0) << "it was asked";
    const std::string text = told.at("not_counted").get<std::string>();
    EXPECT_NE(plan.explain().find("its classifier is not counted: " + text + "\n"), std::string::npos) << plan.explain();
    return text;
  };
  spec.score_mod = halves_mod(&counts);
  spec.score_mod.context = nullptr;
  EXPECT_EQ(reason(), "its context is a run's");
  spec.score_mod = halves_mod(&counts);
  spec.mask = Mask::packed();
  EXPECT_EQ(reason(), "tiles are cut at run time");
  spec.mask = Mask::none();
  spec.query_length = spec.key_length = 40000;
  EXPECT_EQ(reason(), "more than 65536 tiles");
}

TEST_P(ExplainTest, WhatAClassifierThrowsReachesTheCaller) {
  AttentionSpec spec = f32_spec(1, 4, 4, 336, 336, 32);
  Counts counts;
  spec.score_mod = halves_mod(&counts);
  spec.score_mod.classify = [](const ScoreRange&, void*) -> TileClass { throw std::domain_error("on purpose"); };
  const AttentionPlan plan(spec, runtime());
  EXPECT_THROW(plan.explain(), std::domain_error);
  EXPECT_THROW(plan.explain_json(), std::domain_error);
}

TEST_P(ExplainTest, SaysWhatKeepsItFromSomethingFaster) {
  const auto why = [&](const AttentionSpec& spec, int threads = 1) { return explained(spec, threads).at("not_faster").dump(); };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  };
  AttentionSpec spec = f32_spec(1, 4, 2, 100, 100, 64);
  EXPECT_EQ(why(spec).find("pass over its scores"), std::string::npos);
  spec.softcap = 3;
  has(why(spec), "every tile takes a pass over its scores, for softcap");
  spec.mask = Mask::boolean() & Mask::bias();
  spec.has_alibi = true;
  has(why(spec), "for a boolean mask, a bias, softcap, ALiBi");
  AttentionSpec one = f32_spec(1, 4, 2, 1, 100, 64);
  one.length_invariant = true;
  has(why(one), "length_invariant: decode_f32");
  if (runtime(2).threads() > 1) has(why(f32_spec(1, 1, 1, 1, 8, 16), 2), "too little work for a second thread");
  has(why(f32_spec(1, 4, 2, 100, 100, 64, Mask::blocks(2, 64))), "hidden blocks are passed over 64 keys at a time");
  AttentionSpec window = f32_spec(1, 4, 2, 49, 49, 64);
  window.relative_bias = RelativeBias::swin(7, 7);
  has(why(window), "computed one by one");
  const Isa best = available_isas().back();
  const std::string runs_here = std::string(name(best)) + " runs here";
  if (dispatch::kernel_table(best).attention_f32 != dispatch::kernel_table(runtime().isa()).attention_f32) {
    has(why(spec), runs_here.c_str());
  } else {
    EXPECT_EQ(why(spec).find(runs_here), std::string::npos) << "its kernels are the same";
  }
}

TEST_P(ExplainTest, ExpectsLessTimeOfMoreThreadsWhereThereIsWork) {
  const AttentionSpec spec = f32_spec(4, 16, 16, 512, 512, 64);
  const Json one = explained(spec, 1), two = explained(spec, 2);
  EXPECT_EQ(one.at("expected_ms"), one.at("one_thread_ms"));
  EXPECT_TRUE(one.at("runs_inline").get<bool>());
  if (two.at("threads").get<int>() < 2) return;
  EXPECT_FALSE(two.at("runs_inline").get<bool>());
  EXPECT_EQ(two.at("one_thread_ms"), one.at("one_thread_ms"));
  const double ratio = two.at("expected_ms").get<double>() / one.at("expected_ms").get<double>();
  EXPECT_GE(ratio, 0.499);  // of rounded numbers
  EXPECT_LE(ratio, 0.6);
}

POLYHEAD_INSTANTIATE_EVERY_ISA_OF_F32(ExplainTest);

}  // namespace
}  // namespace polyhead::testing
