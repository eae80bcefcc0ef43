// What a plan says about itself: valid JSON, the same facts as the text, and the facts themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
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
      for (const char* text : {"kernel", "reason", "isa", "dtype", "precision", "precision_asked"})
        ASSERT_TRUE(told.at(text).is_string()) << text;
      for (const char* number : {"threads", "one_thread_ms", "expected_ms", "scale", "softcap", "workspace_bytes",
                                 "rows_of_a_kv_head", "query_heads_stacked"})
        ASSERT_TRUE(told.at(number).is_number()) << number;
      for (const char* flag : {"runs_inline", "alibi", "sink"}) ASSERT_TRUE(told.at(flag).is_boolean()) << flag;
      for (const char* size : {"batch", "heads", "kv_heads", "query_length", "key_length", "head_dim", "value_dim"})
        ASSERT_TRUE(told.at("shape").at(size).is_number_integer()) << size;
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

POLYHEAD_INSTANTIATE_EVERY_ISA(ExplainTest);

}  // namespace
}  // namespace polyhead::testing
