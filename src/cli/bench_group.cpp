#include "bench_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "polyhead/error.hpp"

namespace polyhead::cli {
namespace {

Runtime make_runtime(Isa isa, int threads) {
  RuntimeOptions options;
  options.isa = isa;
  options.threads = threads;
  return Runtime(options);
}

// Thrown out of a measurement by the contender that failed.
struct ContenderFailed {
  std::size_t index;
  std::string message;
};

}  // namespace

std::string row_name(const BenchWorkload& workload, const std::string& engine, int threads) {
  return fmt::format("{}/{}/threads:{}/process_time/real_time", workload.name, engine, threads);
}

BenchGroup::BenchGroup(const BenchWorkload& workload, int threads, const std::vector<Isa>& isas,
                       const std::vector<bench::PluginEngine>& plugins)
    : workload_(workload) {
  pattern_.label = workload.label;
  pattern_.shape = workload.describe();
  pattern_.threads = threads;
  if (!workload.is_attention) {
    add_layers(threads, isas);
    return;
  }
  // A plugin that fails may have written anywhere: the rest starts afresh without it.
  std::map<std::string, std::string> faults;
  do {
    contenders_.clear();
    rows_.clear();
    plugin_cases_.clear();
    plans_.clear();
    attention_.reset();
    add_attention(threads, isas);
  } while (!add_plugins(threads, plugins, faults));
}

void BenchGroup::add_attention(int threads, const std::vector<Isa>& isas) {
  attention_ = std::make_unique<bench::AttentionCase>(workload_.attention, make_runtime(isas.front(), threads));
  bench::AttentionCase& attention = *attention_;
  const double flops = attention.flops(), bytes = attention.bytes();
  take(add_row(name(isas.front()), isas.front(), [&attention] { attention.run(); }, flops, bytes), attention.check());
  for (std::size_t i = 1; i < isas.size(); ++i) {
    plans_.emplace_back(attention.plan().spec(), make_runtime(isas[i], threads));
    const AttentionPlan plan = plans_.back();
    const auto call = [&attention, plan] { plan.run(attention.inputs()); };
    attention.poison();
    call();
    take(add_row(name(isas[i]), isas[i], call, flops, bytes), attention.compare());
  }
}

void BenchGroup::add_layers(int threads, const std::vector<Isa>& isas) {
  for (const Isa isa : isas) {
    layers_.push_back(std::make_unique<bench::LayerCase>(workload_.layer, workload_.layer_kind, make_runtime(isa, threads)));
    bench::LayerCase& layer = *layers_.back();
    take(add_row(name(isa), isa, [&layer] { layer.run(); }, layer.flops(), layer.bytes()), layer.check());
  }
}

bool BenchGroup::add_plugins(int threads, const std::vector<bench::PluginEngine>& plugins,
                             std::map<std::string, std::string>& faults) {
  const Isa isa = rows_.front().work.isa;  // whose peaks a plugin is held against, since it does not tell its own
  for (const bench::PluginEngine& engine : plugins) {
    plugin_cases_.push_back(std::make_unique<bench::PluginCase>(engine, workload_.attention, *attention_, threads));
    bench::PluginCase& plugin = *plugin_cases_.back();
    BenchRow& row = add_row(engine.name, isa, [&plugin] { plugin.run(); }, attention_->flops(), attention_->bytes());
    const std::size_t index = rows_.size() - 1;
    contenders_[index].plugin = &plugin;
    if (const auto known = faults.find(engine.name); known != faults.end()) {
      refuse(index, BenchRow::State::wrong, known->second);
      continue;
    }
    std::string fault;
    try {
      if (const std::string reason = bench::plugin_refusal(engine, workload_.attention, threads); !reason.empty()) {
        refuse(index, BenchRow::State::not_served, reason);
        continue;
      }
      plugin.prepare();
      const bench::PluginCase::Verdict verdict = plugin.check();
      row.error = verdict.error;
      fault = verdict.fault;
      if (fault.empty()) fault = plugin.check_on_other_values().fault;
    } catch (const Error& error) {
      fault = error.what();
    }
    if (fault.empty()) continue;
    faults[engine.name] = fault;
    return false;
  }
  return true;
}

BenchRow& BenchGroup::add_row(const std::string& engine, Isa isa, std::function<void()> call, double flops, double bytes) {
  BenchRow row = pattern_;
  row.engine = engine;
  row.name = row_name(workload_, engine, pattern_.threads);
  row.flops = flops;
  row.bytes = bytes;
  row.work.operations = flops;
  row.work.bytes = bytes;
  row.work.isa = isa;
  row.work.threads = pattern_.threads;
  rows_.push_back(std::move(row));
  contenders_.push_back({std::move(call), nullptr});
  return rows_.back();
}

void BenchGroup::take(BenchRow& row, const bench::Check& check) {
  row.error = check.error;
  if (!check.passed()) refuse(rows_.size() - 1, BenchRow::State::wrong, "wrong result: " + check.describe());
}

void BenchGroup::refuse(std::size_t index, BenchRow::State state, const std::string& message) {
  rows_[index].state = state;
  rows_[index].message = message;
  contenders_[index].call = nullptr;
}

bool BenchGroup::measure(const MeasureOptions& options, bench::Roofline* roofline) {
  for (;;) {
    std::vector<std::size_t> timed;
    std::vector<std::function<void()>> calls;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (!contenders_[i].call) continue;
      timed.push_back(i);
      if (contenders_[i].plugin == nullptr) {
        calls.push_back(contenders_[i].call);
      } else {
        calls.push_back([this, i] {
          try {
            contenders_[i].call();
          } catch (const Error& error) {
            throw ContenderFailed{i, error.what()};
          }
        });
      }
    }
    if (timed.empty()) return true;
    try {
      if (roofline != nullptr) {
        for (const std::size_t i : timed) rows_[i].bound = roofline->bound(rows_[i].work);
      }
      const std::vector<Timing> timings = cli::measure(calls, options);
      if (timings.empty()) return false;
      for (std::size_t k = 0; k < timed.size(); ++k) {
        BenchRow& row = rows_[timed[k]];
        row.timing = timings[k];
        row.first = k == 0;
        if (row.bound) row.bound = roofline->bound_after(row.work, *row.bound);
      }
    } catch (const ContenderFailed& failed) {
      refuse(failed.index, BenchRow::State::wrong, failed.message);
      continue;
    }
    for (const std::size_t i : timed) {
      if (contenders_[i].plugin == nullptr) continue;
      const bench::PluginCase::Verdict after = contenders_[i].plugin->check();
      if (!after.fault.empty()) refuse(i, BenchRow::State::wrong, "after it was timed: " + after.fault);
    }
    return true;
  }
}

}  // namespace polyhead::cli
