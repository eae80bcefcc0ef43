// What the suite times: operands, a call on them, and the check that comes before.
#pragma once

#include "support/check.hpp"

namespace polyhead::bench {

class BenchCase {
 public:
  virtual ~BenchCase() = default;

  virtual void run() const = 0;
  // Runs once into a poisoned output and compares what comes out with float64.
  virtual Check check() = 0;
  // Takes the operands out of all caches.
  virtual void evict() const = 0;

  virtual double flops() const = 0;  // of one call; 0 where counting them says nothing
  virtual double bytes() const = 0;  // operands and results, each once

  // For tests of what happens to a wrong kernel: from now on check() finds one element of the result off by an eighth.
  void disturb_results() { disturbed_ = true; }

 protected:
  // To be called by check() with an element that it compares.
  void disturb(float& element) const {
    if (disturbed_) element += 0.125f;
  }

 private:
  bool disturbed_ = false;
};

}  // namespace polyhead::bench
