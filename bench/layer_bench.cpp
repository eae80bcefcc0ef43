// Multi-head attention with its projections, and the encoder block around it.
#include "suite.hpp"
#include "support/layer_case.hpp"

namespace polyhead::bench {

void register_layers(const SuiteOptions& options) {
  for (const LayerKind kind : {LayerKind::attention, LayerKind::encoder}) {
    const std::string group = kind == LayerKind::attention ? "layer/" : "encoder/";
    for (const LayerWorkload& workload : layer_workloads()) {
      for (const Isa isa : options.isas) {
        const double weights = static_cast<double>(workload.d_model) * static_cast<double>(workload.d_model);
        if (too_slow(isa, 8 * static_cast<double>(workload.batch * workload.length) * weights)) continue;
        for (const int threads : options.threads) {
          register_case(options, {group + workload.name, isa, threads, [&workload, kind, isa, threads] {
                                    return std::make_unique<LayerCase>(workload, kind, make_runtime(isa, threads));
                                  }});
        }
      }
    }
  }
}

}  // namespace polyhead::bench
