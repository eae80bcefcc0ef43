// Lists on command lines: names with commas between.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace polyhead::bench {

inline std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// What is named twice is measured once: two benchmarks of one name could not be told apart.
template <typename Value>
void add_once(std::vector<Value>& values, Value value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
}

}  // namespace polyhead::bench
