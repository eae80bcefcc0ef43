#include "bench_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace polyhead::cli {
namespace {

constexpr int always = 100;
constexpr std::size_t gap = 2;

std::size_t longest(const std::vector<std::string>& texts, std::size_t least) {
  for (const std::string& text : texts) least = std::max(least, text.size());
  return least;
}

// At least four digits that count, however short the time.
std::string milliseconds(double seconds) {
  const double value = seconds * 1e3;
  const int decimals = value >= 1000 ? 1 : value >= 100 ? 2 : value >= 10 ? 3 : value >= 0.1 ? 4 : 5;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string rate(double value) {
  return value <= 0 ? "" : fmt::format("{:.{}f}", value, value >= 10 ? 1 : 2);
}

std::string quotient(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : 1);
}

}  // namespace

BenchTable::BenchTable(const Layout& layout) {
  columns_.push_back({"workload", longest(layout.labels, 8), true, always, [](const BenchRow& row) { return row.label; }});
  columns_.push_back({"engine", longest(layout.engines, 6), true, always, [](const BenchRow& row) { return row.engine; }});
  columns_.push_back({"threads", 7, false, always, [](const BenchRow& row) { return std::to_string(row.threads); }});
  identifying_ = columns_.size();
  columns_.push_back({"median ms", 10, false, always, [](const BenchRow& row) { return milliseconds(row.timing.median); }});
  columns_.push_back({"+-%", 5, false, 4, [](const BenchRow& row) { return fmt::format("{:.1f}", row.timing.spread * 100); }});
  columns_.push_back({"minimum ms", 10, false, 2, [](const BenchRow& row) { return milliseconds(row.timing.minimum); }});
  columns_.push_back({"GFLOP/s", 7, false, 6, [](const BenchRow& row) { return rate(row.flops > 0 ? row.gflops() : 0); }});
  columns_.push_back({"GB/s", 6, false, 5, [](const BenchRow& row) { return rate(row.bytes > 0 ? row.gigabytes() : 0); }});
  if (layout.ratios) {
    columns_.push_back({"ratio", 6, false, always,
                        [](const BenchRow& row) { return row.first ? std::string("1") : quotient(row.timing.ratio); }});
    columns_.push_back({"95 %", 11, true, 9, [](const BenchRow& row) {
                          return row.first
                                     ? std::string()
                                     : fmt::format("{}-{}", quotient(row.timing.ratio_low), quotient(row.timing.ratio_high));
                        }});
  }
  if (layout.bounds) {
    columns_.push_back({"reached", 7, false, 8, [](const BenchRow& row) {
                          return row.has_bound() ? fmt::format("{:.0f} %", row.roof_share() * 100) : std::string("-");
                        }});
    columns_.push_back({"bound", 20, true, 7, [](const BenchRow& row) {
                          return row.has_bound() ? fmt::format("{} {}", row.bound->name, rate(row.bound->rate))
                                                 : std::string("-");
                        }});
  }
  columns_.push_back({"error", 7, false, 1, [](const BenchRow& row) { return fmt::format("{:.1e}", row.error); }});
  columns_.push_back({"shape", longest(layout.shapes, 5), true, 3, [](const BenchRow& row) { return row.shape; }});

  if (layout.width > 0) leave_out_what_does_not_fit(static_cast<std::size_t>(layout.width));
}

void BenchTable::leave_out_what_does_not_fit(std::size_t width) {
  std::vector<std::size_t> by_importance(columns_.size());
  std::iota(by_importance.begin(), by_importance.end(), std::size_t{0});
  std::sort(by_importance.begin(), by_importance.end(), [&](std::size_t a, std::size_t b) {
    return columns_[a].importance != columns_[b].importance ? columns_[a].importance > columns_[b].importance : a < b;
  });
  std::vector<std::size_t> kept;
  std::size_t used = 0;
  for (const std::size_t index : by_importance) {
    const std::size_t more = columns_[index].width + (kept.empty() ? 0 : gap);
    if (columns_[index].importance < always && used + more > width) continue;
    kept.push_back(index);
    used += more;
  }
  std::sort(kept.begin(), kept.end());
  std::vector<Column> columns;
  for (const std::size_t index : kept) columns.push_back(std::move(columns_[index]));
  columns_ = std::move(columns);
}

std::string BenchTable::header() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  return join(titles, titles.size());
}

std::string BenchTable::line(const BenchRow& row) const {
  const std::size_t count = row.state == BenchRow::State::timed ? columns_.size() : identifying_;
  std::vector<std::string> cells;
  for (std::size_t i = 0; i < count; ++i) cells.push_back(columns_[i].text(row));
  const std::string text = join(cells, count);
  switch (row.state) {
    case BenchRow::State::wrong:
      return text + "  not timed: " + row.message;
    case BenchRow::State::not_served:
      return text + "  not served: " + row.message;
    default:
      return text;
  }
}

std::string BenchTable::join(const std::vector<std::string>& cells, std::size_t count) const {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    const Column& column = columns_[i];
    if (i > 0) text.append(gap, ' ');
    text += column.left ? fmt::format("{:<{}}", cells[i], column.width) : fmt::format("{:>{}}", cells[i], column.width);
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace polyhead::cli
