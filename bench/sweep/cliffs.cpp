#include "sweep/cliffs.hpp"

namespace polyhead::bench {

std::vector<Cliff> find_cliffs(const std::vector<SizedTime>& times) {
  constexpr double slower_than_larger = 1.10;
  std::vector<Cliff> cliffs;
  std::size_t fastest_larger = times.size();  // index of the least time among the sizes behind
  for (std::size_t i = times.size(); i-- > 0;) {
    if (fastest_larger < times.size()) {
      const double ratio = times[i].seconds / times[fastest_larger].seconds;
      if (ratio > slower_than_larger) {
        cliffs.push_back({times[i].size, times[fastest_larger].size, ratio, slower_than_larger, "slower than a larger size"});
      }
    }
    if (fastest_larger == times.size() || times[i].seconds < times[fastest_larger].seconds) fastest_larger = i;
  }
  for (std::size_t i = 0; i + 1 < times.size(); ++i) {
    const std::int64_t size = times[i].size;
    if (size < 16 || times[i + 1].size != size + 1) continue;
    const double limit = size < 64 ? 1.5 : 1.25, ratio = times[i + 1].seconds / times[i].seconds;
    if (ratio > limit) cliffs.push_back({size + 1, size, ratio, limit, "step up from the size before"});
  }
  return cliffs;
}

}  // namespace polyhead::bench
