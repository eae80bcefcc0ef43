// The results as a table that fits the terminal.
#pragma once

#include <string>
#include <vector>

#include "bench_row.hpp"

namespace polyhead::cli {

class BenchTable {
 public:
  struct Layout {
    std::vector<std::string> labels, engines, shapes;  // all that will come, for the columns' widths
    bool ratios = false, bounds = false;
    int width = 0;  // of the terminal; 0: as wide as it takes
  };
  explicit BenchTable(const Layout& layout);

  // One line each, without its end. Columns that do not fit have been left out; the more telling ones get their place first.
  std::string header() const;
  std::string line(const BenchRow& row) const;

 private:
  struct Column {
    std::string title;
    std::size_t width;
    bool left;       // aligned
    int importance;  // the highest gets its place first; `always` is always there
    std::string (*text)(const BenchRow&);
  };
  void leave_out_what_does_not_fit(std::size_t width);
  std::string join(const std::vector<std::string>& cells, std::size_t count) const;

  std::vector<Column> columns_;
  std::size_t identifying_;  // the first columns, which say what a row is about
};

}  // namespace polyhead::cli
