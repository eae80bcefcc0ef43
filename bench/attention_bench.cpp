// Attention through the public interface: a plan made once, its runs timed.
#include "suite.hpp"
#include "support/attention_case.hpp"

namespace polyhead::bench {

void register_attention(const SuiteOptions& options) {
  for (const AttentionWorkload& named : attention_workloads()) {
    for (const DType dtype : options.dtypes) {
      const AttentionWorkload workload = named.of_dtype(dtype);
      for (const Isa isa : options.isas) {
        if (too_slow(isa, workload.flops())) continue;
        for (const int threads : options.threads) {
          register_case(options, {"attention/" + workload.name, isa, threads, [workload, isa, threads] {
                                    return std::make_unique<AttentionCase>(workload, make_runtime(isa, threads));
                                  }});
        }
      }
    }
  }
}

}  // namespace polyhead::bench
