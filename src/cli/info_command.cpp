// polyhead info
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "polyhead/version.hpp"

namespace polyhead::cli {
namespace {

struct Options {
  RuntimeChoice runtime;
  bool json = false;
};

std::vector<std::string> isa_names(const std::vector<Isa>& isas) {
  std::vector<std::string> names;
  for (const Isa isa : isas) names.emplace_back(name(isa));
  return names;
}

std::string cache_name(const dispatch::CacheInfo& cache) {
  return fmt::format("L{}{}", cache.level, cache.kind == 'u' ? "" : std::string(1, cache.kind));
}

nlohmann::ordered_json gather(const Runtime& runtime) {
  const dispatch::CpuFeatures& cpu = dispatch::cpu_features();
  nlohmann::ordered_json info;
  info["version"] = POLYHEAD_VERSION_STRING;
  info["cpu"] = {{"brand", cpu.brand}, {"vendor", cpu.vendor},     {"family", cpu.family},
                 {"model", cpu.model}, {"stepping", cpu.stepping}, {"features", cpu.feature_list()}};
  info["caches"] = nlohmann::ordered_json::array();
  for (const dispatch::CacheInfo& cache : cpu.caches) {
    info["caches"].push_back({{"name", cache_name(cache)},
                              {"bytes", cache.bytes},
                              {"line_bytes", cache.line_bytes},
                              {"shared_by", cache.shared_by}});
  }
  info["threads"] = runtime.threads();
  info["isa"] = {{"built", isa_names(dispatch::built_isas())},
                 {"available", isa_names(available_isas())},
                 {"chosen", name(runtime.isa())}};
  info["kernels"] = nlohmann::ordered_json::array();
  for (const dispatch::KernelRow& row : dispatch::kernel_rows()) {
    info["kernels"].push_back({{"kind", row.kind}, {"isa", name(row.target)}, {"name", row.name}});
  }
  return info;
}

std::string readable_bytes(std::int64_t bytes) {
  if (bytes >= std::int64_t{1} << 20) return fmt::format("{:g} MB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:g} KB", static_cast<double>(bytes) / (1 << 10));
}

void print_for_people(const Runtime& runtime) {
  const dispatch::CpuFeatures& cpu = dispatch::cpu_features();
  fmt::print("polyhead {}\n", POLYHEAD_VERSION_STRING);
  fmt::print("CPU       {} (family {}, model {}, stepping {})\n", cpu.brand.empty() ? cpu.vendor : cpu.brand, cpu.family,
             cpu.model, cpu.stepping);
  fmt::print("features  {}\n", cpu.feature_list());
  std::vector<std::string> caches;
  for (const dispatch::CacheInfo& cache : cpu.caches) {
    caches.push_back(fmt::format("{} {}{}", cache_name(cache), readable_bytes(cache.bytes),
                                 cache.shared_by > 1 ? fmt::format(" for {} CPUs", cache.shared_by) : ""));
  }
  fmt::print("caches    {}\n", caches.empty() ? "unknown" : fmt::format("{}", fmt::join(caches, ", ")));
  fmt::print("threads   {}\n", runtime.threads());
  fmt::print("built     {}\n", fmt::join(isa_names(dispatch::built_isas()), ", "));
  fmt::print("available {}\n", fmt::join(isa_names(available_isas()), ", "));
  fmt::print("chosen    {}\n", name(runtime.isa()));

  const dispatch::KernelTable& table = dispatch::kernel_table(runtime.isa());
  fmt::print("\nKernels that serve {}:\n", name(runtime.isa()));
  std::vector<const char*> others;
  for (const DType dtype : dispatch::attention_dtypes()) {
    const dispatch::AttentionKernels attention = dispatch::attention_kernels(table, dtype);
    for (const simd::AttentionKernel* kernel : {attention.transposed, attention.decode}) {
      fmt::print("  {:<24} rows a block {}, keys a block {}\n", kernel->name, kernel->row_block, kernel->key_block);
    }
    others.push_back(attention.merge->name);
  }
  for (const WeightType weights : dispatch::weight_types()) {
    const simd::GemmKernel& gemm = dispatch::gemm_kernel(table, weights);
    fmt::print("  {:<24} panels of {} columns, tiles of {} rows\n", gemm.name, gemm.panel_width, gemm.row_tile);
  }
  others.insert(others.end(), {table.layer_norm_f32->name, table.softmax_f32->name, table.activation_f32->name});
  for (const char* other : others) fmt::print("  {}\n", other);
}

}  // namespace

Command add_info(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* const app = parent.add_subcommand("info", "CPU, caches, threads, instruction sets and kernels");
  app->add_flag("--json", options->json, "Print JSON, with every kernel of the table");
  options->runtime.add_options(*app);
  app->footer("\nExamples:\n  polyhead info\n  polyhead info --json | python3 -m json.tool\n  POLYHEAD_ISA=sse4 polyhead info");
  return {app, [options] {
            const Runtime runtime = options->runtime.make();
            if (options->json) {
              fmt::print("{}\n", gather(runtime).dump(1));
            } else {
              print_for_people(runtime);
            }
          }};
}

}  // namespace polyhead::cli
