// The results as JSON, in Google Benchmark's schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench_row.hpp"
#include "polyhead/runtime.hpp"
#include "support/plugin.hpp"

namespace polyhead::cli {

// Written anew after every row, so that whatever ends the process leaves what was measured so far.
class BenchResults {
 public:
  // path: a file, "-" for standard output (written at the end), or empty for none. Errors: Error(io_error) when the file cannot
  // be written to, before anything is measured.
  explicit BenchResults(std::string path);

  void set_context(Isa isa, const std::vector<bench::PluginEngine>& plugins);
  // Errors: Error(io_error).
  void add(const BenchRow& row, int repetition, int repetitions);
  // To be called at the end, and after an interruption. Errors: Error(io_error).
  void finish();

 private:
  void write_file() const;

  std::string path_;
  bool replaceable_ = true;  // a regular file, which is replaced as a whole; a device or pipe is written to once
  nlohmann::ordered_json document_;
};

// One document to a file, or to standard output for "-". Errors: Error(io_error).
void write_json(const std::string& path, const nlohmann::ordered_json& document);

}  // namespace polyhead::cli
