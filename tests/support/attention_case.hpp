// One call of attention with the tensors it needs, made from an AttentionSpec: what most attention tests start from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.hpp"
#include "support/environment.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"

namespace polyhead::testing {

// Of case_dtype().
AttentionSpec attention_spec(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t query_length,
                             std::int64_t key_length, std::int64_t head_dim, std::int64_t value_dim, const Mask& mask = {});

struct Pages;      // support/pages.hpp
class CachedKeys;  // support/cached_keys.hpp

struct AttentionCase {
  AttentionSpec spec;  // kv_heads and value_dim never 0
  Tensor query, key, value, out, lse, key_lengths, offsets, boolean_mask, bias, alibi_slopes, sink;
  Tensor query_lengths, cumulative_query_lengths, cumulative_key_lengths, prefix_lengths, query_segments, key_segments,
      block_mask, relative_bias_table;
  oracle::ScoreFunction score_function;  // what spec.score_mod is said to do, for the oracle
  // Where a run finds keys and values; neither: in key and value, as the oracle does.
  std::shared_ptr<const Pages> pages;
  std::shared_ptr<const CachedKeys> cached;

  AttentionInputs inputs() const;  // without lse and pages
  AttentionInputs inputs_with_lse() const;
  AttentionInputs in_pages(AttentionInputs plain) const;  // a run's, but for a cache
  void run(const AttentionPlan& plan, const AttentionInputs& plain) const;
  AttentionOptions options() const;
  std::string describe() const;
};

// What a bias may be stored as, whatever the other operands are.
constexpr DType bias_dtypes[] = {DType::f32, DType::bf16, DType::f16};

// Contiguous tensors of the spec's types (keys and values of f32 for a cache of integers), of normal random numbers; what the
// mask needs is there: lengths in 0 .. S or T (some 0, some whole), offsets in -T .. S, a full-size boolean mask that lets
// seven in ten keys through, a full-size normal bias of f32 with one in ten -inf. ALiBi's slopes are the usual powers of two,
// sinks normal with one in ten -inf, tables of relative positions normal. out and lse hold NaN. Packed sequences have lengths
// in 0 .. T and 0 .. S, and a few rows lie behind the last. Segments are documents one after another, stretches in any order,
// or numbers thrown about; six in ten blocks of a block mask are visible.
AttentionCase make_case(const AttentionSpec& spec, Random& random);

// Runs the case with and without lse and compares out and lse with the oracle, and both outs with each other bit for bit.
::testing::AssertionResult run_and_compare(const AttentionCase& test, const Runtime& runtime, const std::string& what = {});

// The instruction sets of this machine whose kernels for the spec are their own.
std::vector<Isa> isas_of(const AttentionSpec& spec);

// The same on every one of them, with one thread and with two; the oracle is asked once.
::testing::AssertionResult run_everywhere(const AttentionCase& test, const std::string& what = {});

// A fresh plan, one run; the result in a tensor of its own.
Tensor run_fresh(const AttentionCase& test, const Runtime& runtime);

// A score modification, and what it does: three quarters of the score and a number of its own for every place, exact in f32, so
// that a wrong index shows; -inf for one place in seven.
ScoreMod places_score_mod();
double score_at_place(double score, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s);

// For messages.
std::string describe(const Mask& mask);

}  // namespace polyhead::testing
