// What the task graph costs: bert-128's heads by it, and by plain parallel_for.
#include "suite.hpp"
#include "support/head_pieces.hpp"

namespace polyhead::bench {
namespace {

class HeadPiecesCase final : public BenchCase {
 public:
  HeadPiecesCase(Isa isa, int threads, bool by_graph) : heads_(isa, threads), by_graph_(by_graph) {}

  void run() const override {
    if (by_graph_) {
      heads_.run_graph();
    } else {
      heads_.run_plain();
    }
  }
  Check check() override {
    heads_.attention().poison();
    run();
    disturb(*static_cast<float*>(heads_.attention().inputs().out.data));
    return heads_.attention().compare();
  }
  void evict() const override {}
  double flops() const override { return heads_.attention().flops(); }
  double bytes() const override { return heads_.attention().bytes(); }

 private:
  HeadPieces heads_;
  bool by_graph_;
};

}  // namespace

void register_task_graph(const SuiteOptions& options) {
  for (const Isa isa : options.isas) {
    for (const int threads : options.threads) {
      for (const bool by_graph : {false, true}) {
        SuiteCase suite_case;
        suite_case.name = by_graph ? "task_graph/graph" : "task_graph/parallel_for";
        suite_case.isa = isa;
        suite_case.threads = threads;
        suite_case.make = [isa, threads, by_graph] { return std::make_unique<HeadPiecesCase>(isa, threads, by_graph); };
        suite_case.warm_only = true;
        register_case(options, suite_case);
      }
    }
  }
}

}  // namespace polyhead::bench
