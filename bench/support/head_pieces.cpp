#include "support/head_pieces.hpp"

#include <cmath>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "dispatch/select_isa.hpp"

#if defined(POLYHEAD_TBB)
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace polyhead::bench {
namespace {

constexpr const char* workload_name = "bert-128";

RuntimeOptions runtime_options(Isa isa, int threads) {
  RuntimeOptions options;
  options.isa = isa;
  options.threads = threads;
  return options;
}

void byte_strides(const TensorView& view, std::ptrdiff_t (&strides)[3]) {
  for (int i = 0; i < 3; ++i) strides[i] = view.strides[i] * static_cast<std::ptrdiff_t>(sizeof(float));
}

}  // namespace

struct HeadPieces::Arena {
#if defined(POLYHEAD_TBB)
  explicit Arena(int threads) : arena(threads) {}
  oneapi::tbb::task_arena arena;
#else
  explicit Arena(int) {}
#endif
};

HeadPieces::HeadPieces(Isa isa, int threads) {
  const AttentionWorkload& workload = *find_attention_workload(workload_name);
  const RuntimeOptions options = runtime_options(isa, threads);
  attention_ = std::make_unique<AttentionCase>(workload, Runtime(options));
  const AttentionInputs& inputs = attention_->inputs();
  operands_.shape = {workload.batch,      workload.heads,    workload.kv_heads, workload.query_length,
                     workload.key_length, workload.head_dim, workload.value_dim};
  operands_.mask = workload.mask();
  operands_.scale = 1.0 / std::sqrt(static_cast<double>(workload.head_dim));
  operands_.query = inputs.query.data;
  operands_.key = inputs.key.data;
  operands_.value = inputs.value.data;
  operands_.out = inputs.out.data;
  byte_strides(inputs.query, operands_.query_strides);
  byte_strides(inputs.key, operands_.key_strides);
  byte_strides(inputs.value, operands_.value_strides);
  byte_strides(inputs.out, operands_.out_strides);
  const Isa permitted = dispatch::permitted_isa(isa, dispatch::built_isas(), true, dispatch::request_tile_permission);
  choice_ =
      plan::choose_attention(operands_.shape, operands_.mask, false, Precision::strict, dispatch::kernel_table(permitted));

  scheduler_ = graph::Scheduler::create(options);
  auto description = std::make_shared<graph::TaskGraph>();
  const std::int64_t rows = operands_.shape.rows();
  for (int piece = 0; piece < pieces(); ++piece) description->add(plan::piece_cost_ns(choice_, operands_, 0, 0, rows));
  execution_ = std::make_unique<graph::Execution>(std::move(description), scheduler_, false);
  arena_ = std::make_unique<Arena>(scheduler_->threads());
  scratch_bytes_ = (plan::scratch_bytes(choice_, operands_.shape, rows) + 63) / 64 * 64;
  scratch_ = platform::AlignedBuffer(scratch_bytes_ * static_cast<std::size_t>(scheduler_->slots()));
}

HeadPieces::~HeadPieces() = default;

int HeadPieces::pieces() const {
  return static_cast<int>(operands_.shape.batch * operands_.shape.kv_heads);
}

void HeadPieces::run_piece(std::int64_t piece, int slot) const {
  char* const scratch = scratch_.as<char>() + static_cast<std::size_t>(slot) * scratch_bytes_;
  plan::run_rows(choice_, operands_, piece / operands_.shape.kv_heads, piece % operands_.shape.kv_heads, 0,
                 operands_.shape.rows(), scratch);
}

void HeadPieces::run_graph() const {
  execution_->run(
      [](void* context, graph::NodeId node, int slot) { static_cast<const HeadPieces*>(context)->run_piece(node, slot); },
      const_cast<HeadPieces*>(this), nullptr);
}

void HeadPieces::run_plain() const {
#if defined(POLYHEAD_TBB)
  if (scheduler_->threads() > 1) {
    arena_->arena.execute([this] {
      oneapi::tbb::parallel_for(
          0, pieces(), [this](int piece) { run_piece(piece, oneapi::tbb::this_task_arena::current_thread_index()); },
          oneapi::tbb::simple_partitioner());
    });
    return;
  }
#endif
  for (int piece = 0; piece < pieces(); ++piece) run_piece(piece, 0);
}

}  // namespace polyhead::bench
