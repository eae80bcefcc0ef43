#include "support/tolerance.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <iomanip>
#include <sstream>
#include <utility>

#include "support/tensor.hpp"

namespace polyhead::testing {
namespace {

// What two bf16 pieces lack of a product, at most.
double missing_share(Precision precision) {
  return precision == Precision::fast ? 0x1p-15 : 0.0;
}

// The largest finite one.
double largest_of(const oracle::Array& magnitudes) {
  double largest = 0;
  for (const double magnitude : magnitudes.values) largest = std::max(largest, std::isfinite(magnitude) ? magnitude : 0.0);
  return largest;
}

std::atomic<double> worst_ratio{0};

// Compares every element with bound(row, expected), row counting the vectors of the last dimension when rows is set and single
// elements otherwise.
::testing::AssertionResult compare(const oracle::Array& expected, const TensorView& actual, const std::string& what,
                                   const std::function<double(std::size_t, double)>& bound, double* ratio_out = nullptr) {
  if (actual.rank != static_cast<int>(expected.shape.size()) ||
      !std::equal(expected.shape.begin(), expected.shape.end(), actual.shape.begin()))
    return ::testing::AssertionFailure() << what << ": the result's shape is " << actual.describe();
  std::size_t next = 0, wrong = 0, worst = 0;
  double worst_excess = -1, worst_actual = 0, worst_bound = 0;
  for_each_offset(actual, [&](std::int64_t offset) {
    const std::size_t i = next++;
    const double value = load(actual, offset), right = expected.values[i];
    double ratio = 0, limit = 0;
    if (std::isnan(right) || std::isnan(value)) {
      ratio = std::isnan(right) && std::isnan(value) ? 0 : HUGE_VAL;
    } else if (std::isinf(right) || std::isinf(value)) {
      ratio = right == value ? 0 : HUGE_VAL;
    } else {
      limit = bound(i, right);
      const double error = std::fabs(value - right);
      ratio = error == 0 ? 0 : error / limit;
    }
    if (!(ratio <= 1)) ++wrong;
    if (ratio > worst_excess) {
      worst_excess = ratio;
      worst = i;
      worst_actual = value;
      worst_bound = limit;
    }
  });
  if (ratio_out != nullptr) *ratio_out = std::max(worst_excess, 0.0);
  if (wrong == 0) return ::testing::AssertionSuccess();
  const double right = expected.values[worst];
  std::vector<std::size_t> index(expected.shape.size());
  std::size_t rest = worst;
  for (std::size_t i = index.size(); i-- > 0;) {
    index[i] = rest % static_cast<std::size_t>(expected.shape[i]);
    rest /= static_cast<std::size_t>(expected.shape[i]);
  }
  auto failure = ::testing::AssertionFailure();
  failure << what << ": " << wrong << " of " << next << " elements are wrong; the worst at [";
  for (std::size_t i = 0; i < index.size(); ++i) failure << (i == 0 ? "" : ", ") << index[i];
  std::ostringstream numbers;
  numbers << std::setprecision(9) << "] is " << worst_actual << ", should be " << right << ", error "
          << std::fabs(worst_actual - right) << ", bound " << worst_bound << " (" << std::setprecision(3) << worst_excess
          << " times)";
  return failure << numbers.str();
}

}  // namespace

double attention_bound(DType dtype, double value_magnitude, double score_magnitude, double result, Precision precision) {
  constexpr double smallest = 2.4e-38;
  if (dtype == DType::bf16) return value_magnitude * 0x1p-8 + std::fabs(result) * 0x1p-8 + smallest;
  if (dtype == DType::f16) return value_magnitude * 0x1p-10 + std::fabs(result) * 0x1p-11 + 0x1p-24;
  const double missing = missing_share(precision);
  return value_magnitude * (2e-6 + missing + (0x1p-22 + missing) * score_magnitude) + smallest;
}

::testing::AssertionResult attention_matches(const oracle::AttentionResult& expected, const TensorView& out,
                                             const std::string& what, Precision precision, bool of_integers) {
  const auto width = static_cast<std::size_t>(expected.out.shape.back());
  const double added =
      !of_integers ? 0 : largest_of(expected.value_magnitude) * (5e-5 + 0x1p-16 * largest_of(expected.score_magnitude));
  double ratio = 0;
  auto result = compare(
      expected.out, out, what,
      [&](std::size_t i, double right) {
        return added + attention_bound(out.dtype, expected.value_magnitude.values[i / width],
                                       expected.score_magnitude.values[i / width], right, precision);
      },
      &ratio);
  double seen = worst_ratio.load();
  while (ratio > seen && !worst_ratio.compare_exchange_weak(seen, ratio)) {
  }
  return result;
}

::testing::AssertionResult lse_matches(const oracle::AttentionResult& expected, const TensorView& lse, const std::string& what,
                                       Precision precision, bool of_integers) {
  const double added = of_integers ? 1e-5 + 0x1p-16 * largest_of(expected.score_magnitude) : 0;
  const double relative = of_integers ? 1e-6 : 0x1p-23;
  return compare(expected.lse, lse, what + ", lse", [&](std::size_t i, double right) {
    const double missing = missing_share(precision);
    return added + 2e-6 + (0x1p-21 + missing) * expected.score_magnitude.values[i] + relative * std::fabs(right);
  });
}

::testing::AssertionResult array_matches(const oracle::Array& expected, const TensorView& actual, double absolute,
                                         double relative, const std::string& what) {
  return compare(expected, actual, what, [&](std::size_t, double right) { return absolute + relative * std::fabs(right); });
}

double take_worst_ratio() {
  return worst_ratio.exchange(0);
}

}  // namespace polyhead::testing
