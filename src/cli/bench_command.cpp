// polyhead bench
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <new>
#include <optional>

#include "bench_group.hpp"
#include "bench_interrupt.hpp"
#include "bench_results.hpp"
#include "bench_selection.hpp"
#include "bench_table.hpp"
#include "bench_terminal.hpp"
#include "command.hpp"
#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/version.hpp"
#include "support/lists.hpp"
#include "support/plugin.hpp"

namespace polyhead::cli {
namespace {

struct Options {
  std::vector<std::string> patterns, shapes, plugins;
  std::string isas, threads, dtype = "f32";
  std::string causal, window, json_path;
  bool is_causal = false, key_lengths = false, list = false, roofline = false;
  double min_time = 0.5;
  int repetitions = 1;
};

std::vector<Isa> chosen_isas(const std::string& list) {
  const std::vector<Isa> available = available_isas();
  if (list == "all") return {available.rbegin(), available.rend()};  // the best one first: ratios are to it
  std::vector<Isa> isas;
  for (const std::string& wanted : bench::split_list(list)) {
    const Isa isa = parse_isa(wanted);
    if (std::find(available.begin(), available.end(), isa) == available.end()) {
      std::vector<std::string> names;
      for (const Isa other : available) names.emplace_back(name(other));
      throw UsageError(fmt::format("--isa: {} is not available here; {} are", wanted, fmt::join(names, ", ")));
    }
    bench::add_once(isas, isa);
  }
  if (isas.empty()) isas.push_back(default_isa());
  return isas;
}

std::vector<int> chosen_threads(const std::string& list) {
  const int all = Runtime().threads();
  if (list == "all") {
    std::vector<int> counts{1};
    bench::add_once(counts, all);
    return counts;
  }
  std::vector<int> counts;
  for (const std::string& part : bench::split_list(list)) {
    int count = 0;
    const char* const last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data(), last, count);
    if (error != std::errc() || end != last || count < 0 || count > 4096) {
      throw UsageError(fmt::format("--threads: '{}' is not a number of threads from 0 to 4096, or all", part));
    }
    bench::add_once(counts, count == 0 ? all : count);
  }
  if (counts.empty()) counts.push_back(all);
  return counts;
}

DType chosen_dtype(const std::string& wanted) {
  std::vector<std::string> built;
  for (const DType dtype : dispatch::attention_dtypes()) {
    if (wanted == name(dtype)) return dtype;
    built.emplace_back(name(dtype));
  }
  throw UsageError(
      fmt::format("--dtype: this build has no attention kernels for '{}'; it has {}", wanted, fmt::join(built, ", ")));
}

std::vector<BenchWorkload> chosen_workloads(const Options& options) {
  const DType dtype = chosen_dtype(options.dtype);
  const bool without_value = options.causal.empty() || options.causal == "true";  // what --causal alone leaves
  const Causal causal = !options.is_causal ? Causal::none : without_value ? Causal::bottom_right : parse_causal(options.causal);
  const Mask window = parse_window(options.window);
  if (window.window_kept != 0) throw UsageError("--window: KEPT is for `run`; `bench` has windows without kept keys");
  if (options.shapes.empty() && (options.is_causal || !options.window.empty() || options.key_lengths)) {
    throw UsageError("--causal, --window and --key-lengths belong to --shape; a named workload has its own mask");
  }
  std::vector<BenchWorkload> chosen = select_workloads(options.patterns);
  for (const std::string& shape : options.shapes) {
    BenchWorkload workload = workload_of_shape(shape, causal, window, options.key_lengths);
    const auto same = [&](const BenchWorkload& other) { return other.name == workload.name; };
    if (std::none_of(chosen.begin(), chosen.end(), same)) chosen.push_back(std::move(workload));
  }
  if (chosen.empty()) {
    throw UsageError(
        "name a workload, a pattern such as 'bert-*', or all, or give --shape; polyhead bench --list shows the names");
  }
  if (dtype == DType::f32) return chosen;
  if (!options.plugins.empty()) throw UsageError("--plugin: plugins compute on f32, and --dtype is " + options.dtype);
  for (BenchWorkload& workload : chosen) {
    if (!workload.is_attention) {
      throw UsageError(
          fmt::format("--dtype: layers compute on f32 only; '{}' is no attention for {}", workload.name, options.dtype));
    }
    workload = workload.of_dtype(dtype);
  }
  return chosen;
}

void list_workloads(const Options& options) {
  const std::vector<BenchWorkload> workloads =
      options.patterns.empty() ? named_workloads() : select_workloads(options.patterns);
  if (!options.json_path.empty()) return write_json(options.json_path, describe_workloads(workloads));
  std::size_t width = 0;
  for (const BenchWorkload& workload : workloads) width = std::max(width, workload.label.size());
  for (const BenchWorkload& workload : workloads) fmt::print("{:<{}}  {}\n", workload.label, width, workload.describe());
}

BenchTable make_table(const std::vector<BenchWorkload>& workloads, const std::vector<Isa>& isas,
                      const std::vector<bench::PluginEngine>& plugins, const Options& options) {
  BenchTable::Layout layout;
  for (const BenchWorkload& workload : workloads) {
    layout.labels.push_back(workload.label);
    layout.shapes.push_back(workload.describe());
  }
  for (const Isa isa : isas) layout.engines.emplace_back(name(isa));
  for (const bench::PluginEngine& plugin : plugins) layout.engines.push_back(plugin.name);
  layout.ratios = isas.size() + plugins.size() > 1;
  layout.bounds = options.roofline;
  layout.width = terminal_width(stdout);
  return BenchTable(layout);
}

// The repetitions of one benchmark as one row of the table: medians, the least minimum, and how far the medians lie apart.
BenchRow summary(std::vector<BenchRow> repetitions) {
  for (const BenchRow& row : repetitions) {
    if (row.state != BenchRow::State::timed) return row;
  }
  if (repetitions.size() == 1) return repetitions.front();
  std::sort(repetitions.begin(), repetitions.end(),
            [](const BenchRow& a, const BenchRow& b) { return a.timing.median < b.timing.median; });
  BenchRow row = repetitions[repetitions.size() / 2];
  for (const BenchRow& other : repetitions) row.timing.minimum = std::min(row.timing.minimum, other.timing.minimum);
  row.timing.spread = (repetitions.back().timing.median - repetitions.front().timing.median) / 2 / row.timing.median;
  return row;
}

class Session {
 public:
  explicit Session(const Options& options)
      : options_(options),
        workloads_(chosen_workloads(options)),
        isas_(chosen_isas(options.isas)),
        threads_(chosen_threads(options.threads)),
        results_(options.json_path),
        plugins_(load_plugins()),
        table_(make_table(workloads_, isas_, plugins_, options)),
        quiet_(options.json_path == "-") {
    results_.set_context(isas_.front(), plugins_);
    if (options.roofline) roofline_.emplace();
  }

  void run() {
    const InterruptWatch watch;
    print_head();
    const std::size_t groups = workloads_.size() * threads_.size();
    std::size_t done = 0;
    for (const BenchWorkload& workload : workloads_) {
      for (const int threads : threads_) {
        const double before = static_cast<double>(done) / static_cast<double>(groups);
        if (!run_group(workload, threads, before, 1.0 / static_cast<double>(groups))) {
          bar_.clear();
          results_.finish();
          fmt::print(stderr, "polyhead: interrupted after {} of {} workloads\n", done, groups);
          InterruptWatch::give_way();
        }
        ++done;
      }
    }
    bar_.clear();
    results_.finish();
    if (!wrong_.empty()) throw std::runtime_error(fmt::format("wrong or failed: {}", fmt::join(wrong_, ", ")));
  }

 private:
  std::vector<bench::PluginEngine> load_plugins() const {
    const auto is_attention = [](const BenchWorkload& workload) { return workload.is_attention; };
    if (!options_.plugins.empty() && std::none_of(workloads_.begin(), workloads_.end(), is_attention))
      throw UsageError("--plugin: a plugin serves attention, and none of the workloads is attention");
    if (std::count(options_.plugins.begin(), options_.plugins.end(), "") > 0)  // which would load this program itself
      throw UsageError("--plugin: '' is no name of a library");
    return bench::load_plugins(options_.plugins);
  }

  // False after an interruption.
  bool run_group(const BenchWorkload& workload, int threads, double share_before, double share) {
    const std::string what = fmt::format("{}, {} thread{}", workload.label, threads, threads == 1 ? "" : "s");
    bar_.show(share_before, what);
    std::unique_ptr<BenchGroup> made;
    try {
      made = std::make_unique<BenchGroup>(workload, threads, isas_, plugins_);
    } catch (const std::exception& error) {  // memory that is not there, say: the other workloads go on
      report_failure(workload, threads, error);
      return true;
    }
    BenchGroup& group = *made;
    std::vector<std::vector<BenchRow>> repetitions(group.rows().size());
    bool complete = true;
    for (int repetition = 0; repetition < options_.repetitions && complete; ++repetition) {
      MeasureOptions measure;
      measure.min_time = options_.min_time;
      measure.pause = threads > 1 && group.rows().size() > 1;
      measure.stop = [] { return InterruptWatch::requested(); };
      measure.progress = [&](double done) {
        bar_.show(share_before + share * (repetition + done) / options_.repetitions, what);
      };
      complete = !InterruptWatch::requested() && group.measure(measure, roofline_ ? &*roofline_ : nullptr);
      if (!complete) break;
      for (std::size_t i = 0; i < group.rows().size(); ++i) {
        results_.add(group.rows()[i], repetition, options_.repetitions);
        repetitions[i].push_back(group.rows()[i]);
      }
    }
    for (std::vector<BenchRow>& rows : repetitions) {
      if (!rows.empty()) show(summary(std::move(rows)));
    }
    return complete;
  }

  void report_failure(const BenchWorkload& workload, int threads, const std::exception& error) {
    BenchRow row;
    row.label = workload.label;
    row.shape = workload.describe();
    row.engine = name(isas_.front());
    row.threads = threads;
    row.name = row_name(workload, row.engine, threads);
    row.state = BenchRow::State::wrong;
    row.message = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
    results_.add(row, 0, 1);
    show(row);
  }

  void print_head() const {
    if (quiet_) return;
    fmt::print("polyhead {}, {}\n", POLYHEAD_VERSION_STRING, dispatch::cpu_features().brand);
    if (isas_.size() + plugins_.size() > 1)
      fmt::print("ratio: time relative to {}, measured in turn, and its confidence interval\n", name(isas_.front()));
    fmt::print("{}\n", table_.header());
    std::fflush(stdout);
  }

  void show(const BenchRow& row) {
    if (row.state == BenchRow::State::wrong) wrong_.push_back(fmt::format("{} by {}", row.label, row.engine));
    if (quiet_) return;
    bar_.clear();
    fmt::print("{}\n", table_.line(row));
    std::fflush(stdout);
  }

  const Options& options_;
  std::vector<BenchWorkload> workloads_;
  std::vector<Isa> isas_;
  std::vector<int> threads_;
  BenchResults results_;
  std::vector<bench::PluginEngine> plugins_;
  BenchTable table_;
  bool quiet_;  // standard output belongs to the JSON
  std::optional<bench::Roofline> roofline_;
  ProgressBar bar_;
  std::vector<std::string> wrong_;
};

void run_bench(const Options& options) {
  if (std::isnan(options.min_time)) throw UsageError("--min-time: nan is not a number of seconds");  // the range lets it pass
  if (options.list) return list_workloads(options);
  Session(options).run();
}

}  // namespace

Command add_bench(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* const app =
      parent.add_subcommand("bench", "Time attention, layers and your own kernels on named workloads or any shape");
  app->add_option("workload", options->patterns, "Names of workloads or patterns of them: bert-512, 'bert-*', 'layer/*', all")
      ->type_name("NAME");
  app->add_option("--shape", options->shapes,
                  "Attention of sizes b,h,g,t,s,d,e: batch (1), query heads (1), key/value heads (h), query length, key length "
                  "(t), head size, value size (d)")
      ->allow_extra_args(false)
      ->type_name("SIZES");
  CLI::Option* const causal =
      app->add_option("--causal", options->causal,
                      "For --shape: bottom-right (what --causal alone means: the last query sees every key) or top-left")
          ->expected(0, 1)
          ->type_name("[WHERE]");
  app->add_option("--window", options->window, "For --shape: LEFT,RIGHT keys around the diagonal; -1 for no limit")
      ->type_name("L,R");
  app->add_flag("--key-lengths", options->key_lengths, "For --shape: key lengths differ over the batch, s - (7 i mod s/2)");
  app->add_option("--dtype", options->dtype, "Data type of attention's operands: f32, bf16 or f16 (f32)")->type_name("NAME");
  app->add_option("--isa", options->isas, "Instruction sets, with commas between, or all (the best one)")->type_name("NAMES");
  app->add_option("--threads", options->threads,
                  "Numbers of threads, with commas between; 0: as many as this process may use (0); all: 1 and 0")
      ->type_name("NUMBERS");
  app->add_option("--plugin", options->plugins,
                  "Attention from a shared library, checked and timed beside ours; may be repeated")
      ->allow_extra_args(false)
      ->type_name("LIBRARY");
  app->add_option("--min-time", options->min_time, "Seconds to measure each benchmark for (0.5)")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("S");
  app->add_option("--repetitions", options->repetitions, "Measurements of each benchmark (1); the table shows their median")
      ->check(CLI::Range(1, 10000))
      ->type_name("N");
  app->add_flag("--roofline", options->roofline,
                "Measure beside each benchmark what bounds it, arithmetic or reading, and show the share that is reached");
  app->add_flag("--list", options->list, "List the named workloads (with --json: as JSON), or those that the names fit");
  app->add_option(
         "--json", options->json_path,
         "Write the results here too, in Google Benchmark's schema, after every row; -: on standard output instead of the "
         "table")
      ->type_name("FILE");
  app->footer(
      "\nEach result is compared with float64 on sampled rows before it is timed; a wrong one is not timed. Several\n"
      "instruction sets and plugins are timed in turn, block by block on the same operands; ratio is time relative to\n"
      "the first instruction set, so that above 1 is slower, with its confidence interval. Times are wall time, with\n"
      "the operands in the caches as far as they fit there. +-% is half of the distance between the quartiles, with\n"
      "--repetitions half of the range of their medians. GFLOP/s count 2 (d + e) for each pair of query and key that\n"
      "the mask allows, and a layer's projections; GB/s reading every operand and writing the result once. On a\n"
      "terminal the table leaves out columns that do not fit.\n"
      "\nExit status: 0 all right, 1 a wrong result or another failure, 2 wrong command line. Ctrl-C keeps what was measured.\n"
      "\nExamples:\n"
      "  polyhead bench --list\n"
      "  polyhead bench bert-128 'layer/minilm-*' --threads 1,2 --isa avx2\n"
      "  polyhead bench 'decode-*' --roofline --repetitions 5 --json decode.json\n"
      "  polyhead bench --shape b=1,h=32,g=8,t=1,s=8192,d=128\n"
      "  polyhead bench --shape b=4,h=8,t=1024,d=64 --causal bottom-right --window 255,0 --key-lengths\n"
      "  polyhead bench bert-512 --plugin ./libmine.so");
  return {app, [options, causal] {
            options->is_causal = causal->count() > 0;
            run_bench(*options);
          }};
}

}  // namespace polyhead::cli
