#include "bench_results.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "polyhead/error.hpp"
#include "support/result_document.hpp"

namespace polyhead::cli {
namespace {

constexpr const char* part_suffix = ".part";

[[noreturn]] void unwritable(const std::string& path) {
  throw Error(ErrorCode::io_error, fmt::format("--json {}: cannot be written", path));
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) unwritable(path);
}

}  // namespace

BenchResults::BenchResults(std::string path) : path_(std::move(path)) {
  document_["context"] = nlohmann::ordered_json::object();
  document_["benchmarks"] = nlohmann::ordered_json::array();
  if (path_.empty() || path_ == "-") return;
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  replaceable_ = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
  if (std::filesystem::is_directory(status)) unwritable(path_);
  if (!replaceable_) return;
  if (std::filesystem::exists(status))
    path_ = std::filesystem::canonical(path_).string();  // a link stays, its target is replaced
  // Only tried: an old result stays until there is a new one.
  const std::string part = path_ + part_suffix;
  if (std::ofstream file(part, std::ios::binary); !file) unwritable(path_);
  std::filesystem::remove(part, ignored);
}

void BenchResults::set_context(Isa isa, const std::vector<bench::PluginEngine>& plugins) {
  nlohmann::ordered_json context = bench::result_context("polyhead bench", isa);
  for (const bench::PluginEngine& plugin : plugins) {
    context["plugin " + plugin.name] =
        plugin.description.empty() ? plugin.library : fmt::format("{} ({})", plugin.library, plugin.description);
  }
  document_["context"] = std::move(context);
}

void BenchResults::add(const BenchRow& row, int repetition, int repetitions) {
  if (path_.empty()) return;
  nlohmann::ordered_json entry;
  entry["name"] = row.name;
  entry["run_name"] = row.name;
  entry["run_type"] = "iteration";
  entry["repetitions"] = repetitions;
  entry["repetition_index"] = repetition;
  entry["threads"] = 1;  // Google Benchmark's own; ours are in the name
  if (row.state == BenchRow::State::wrong) {
    entry["error_occurred"] = true;
    entry["error_message"] = row.message;
    entry["time_unit"] = "ms";
  } else if (row.state == BenchRow::State::not_served) {
    entry["skipped"] = true;
    entry["skip_message"] = row.message;
    entry["time_unit"] = "ms";
  } else {
    entry["iterations"] = row.timing.calls;
    entry["real_time"] = row.timing.median * 1e3;
    entry["cpu_time"] = row.timing.cpu * 1e3;
    entry["time_unit"] = "ms";
    entry["min_ms"] = row.timing.minimum * 1e3;
    entry["spread"] = row.timing.spread;
    if (row.flops > 0) entry["GFLOP/s"] = row.gflops();
    if (row.bytes > 0) entry["GB/s"] = row.gigabytes();
    entry["error"] = row.error;
    if (!row.first) {
      entry["ratio"] = row.timing.ratio;
      entry["ratio_low"] = row.timing.ratio_low;
      entry["ratio_high"] = row.timing.ratio_high;
    }
    if (row.has_bound()) {
      entry["roof"] = row.bound->rate;
      entry["roof_share"] = row.roof_share();
      entry["label"] = row.bound->label();
    }
  }
  document_["benchmarks"].push_back(std::move(entry));
  if (path_ != "-" && replaceable_) write_file();
}

void BenchResults::finish() {
  if (path_ == "-" || !replaceable_) write_json(path_, document_);
}

// Another file takes the old one's place when it is whole: a reader, or a crash, never meets half a document.
void BenchResults::write_file() const {
  const std::string part = path_ + part_suffix;
  try {
    write_text(part, document_.dump(1) + "\n");
  } catch (const Error&) {
    unwritable(path_);
  }
  std::error_code failed;
  std::filesystem::rename(part, path_, failed);
  if (failed) unwritable(path_);
}

void write_json(const std::string& path, const nlohmann::ordered_json& document) {
  const std::string text = document.dump(1) + "\n";
  if (path != "-") return write_text(path, text);
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace polyhead::cli
