// The verdict on a result before it is timed.
#pragma once

#include <string>

namespace polyhead::bench {

struct Check {
  double error = 0;           // the largest |got - expected|, infinite for a NaN
  double share_of_bound = 0;  // the largest error / bound, infinite for a NaN; at most 1 is right

  void take(double got, double expected, double bound);
  bool passed() const { return share_of_bound <= 1.0; }
  std::string describe() const;  // "error 3.1e-07, 0.05 of the bound"
};

}  // namespace polyhead::bench
