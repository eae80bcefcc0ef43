// How far a result may be from the oracle, and what to say when it is further.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "polyhead/precision.hpp"
#include "polyhead/tensor.hpp"
#include "support/oracle.hpp"

namespace polyhead::testing {

// The bound on |out - oracle| of a row that holds for every kernel:
//     f32, strict:  max|v| * (2e-6 + 2^-22 * max over the row of max(|scale| * sum_d |q_d k_d|, |score|))
//     f32, fast:    that and max|v| * 2^-15 * (1 + the same maximum)
//     bf16, f16:    max|v| * 2^-8 or 2^-10 and the rounding of the result
// where both maxima run over the keys that the row sees. 2.4e-38 is added: results and inputs below the smallest normal number
// may be taken as zero.
double attention_bound(DType dtype, double value_magnitude, double score_magnitude, double result,
                       Precision precision = Precision::strict);

// Element by element. A NaN is right exactly where the oracle has one, an infinity where it has the same. The message holds
// the number of wrong elements, the worst one (error over bound), its index, and `what`: the shape, the ISA, the seed.
//
// `of_integers`: against the numbers that a cache's integers stand for. max|v| * (5e-5 + 2^-16 * max|score|) is added, with the
// maxima of all rows: f32's rounding of these numbers and of the sums that their means are taken out of, and queries and
// weights that some kernels round to integers of 16 bits. To the lse's bound 1e-5 + 2^-16 * max|score| + 1e-6 * |lse|.
::testing::AssertionResult attention_matches(const oracle::AttentionResult& expected, const TensorView& out,
                                             const std::string& what, Precision precision = Precision::strict,
                                             bool of_integers = false);

// lse against the oracle's: 2e-6 + 2^-21 * the maximum above + 2^-23 |lse| (fast: 2^-15 * that maximum more). An error
// that a row's scores share leaves out as it is, but moves lse; so its second term is twice as wide. -inf exactly where the row
// is empty.
::testing::AssertionResult lse_matches(const oracle::AttentionResult& expected, const TensorView& lse, const std::string& what,
                                       Precision precision = Precision::strict, bool of_integers = false);

// Any array: |error| <= absolute + relative * |expected|.
::testing::AssertionResult array_matches(const oracle::Array& expected, const TensorView& actual, double absolute,
                                         double relative, const std::string& what);

// The largest error over its bound that attention_matches has met since the last call, for tests that print it.
double take_worst_ratio();

}  // namespace polyhead::testing
