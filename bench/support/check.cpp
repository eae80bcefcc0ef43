#include "support/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace polyhead::bench {

void Check::take(double got, double expected, double bound) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double difference = std::abs(got - expected);
  if (!(difference <= std::numeric_limits<double>::max()))
    difference = infinity;  // NaN, or an infinity that is not the other's
  error = std::max(error, difference);
  if (difference > 0) share_of_bound = std::max(share_of_bound, bound > 0 ? difference / bound : infinity);
}

std::string Check::describe() const {
  std::ostringstream text;
  text.precision(2);
  text << "error " << error << ", " << share_of_bound << " of the bound";
  return text.str();
}

}  // namespace polyhead::bench
