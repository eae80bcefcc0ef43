// What counts as a cliff in the times of a family of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace polyhead::bench {

struct SizedTime {
  std::int64_t size;
  double seconds;
};

struct Cliff {
  std::int64_t size, other;  // `size` takes `ratio` times as long as `other`
  double ratio, limit;
  std::string rule;
};

// times: ascending sizes. Two rules:
//   no size takes more than 1.10 times as long as any larger one;
//   from a size n to n + 1 time grows at most by half from n = 16 on, by a quarter from n = 64 on.
std::vector<Cliff> find_cliffs(const std::vector<SizedTime>& times);

}  // namespace polyhead::bench
