// Softmax over rows, layer norm's neighbour among the row-wise kernels; attention has its own inside. Bound by memory: what is
// counted are the bytes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/kernel_table.hpp"
#include "graph/task_graph.hpp"
#include "suite.hpp"
#include "support/aligned_array.hpp"
#include "support/evict.hpp"

namespace polyhead::bench {
namespace {

class SoftmaxCase final : public BenchCase {
 public:
  SoftmaxCase(const simd::SoftmaxKernel& kernel, std::int64_t rows, std::int64_t dim, int threads)
      : kernel_(kernel), x_(static_cast<std::size_t>(rows * dim)), y_(static_cast<std::size_t>(rows * dim)) {
    x_.fill_random(1, 3.0);
    args_.x = x_.data();
    args_.y = y_.data();
    args_.x_stride = args_.y_stride = static_cast<std::ptrdiff_t>(dim) * 4;
    args_.rows = rows;
    args_.dim = dim;
    args_.scale = 0.5;
    RuntimeOptions runtime;
    runtime.threads = threads;
    scheduler_ = graph::Scheduler::create(runtime);
    const std::int64_t pieces = threads == 1 ? 1 : 4 * threads;
    rows_per_piece_ = (rows + pieces - 1) / pieces;
  }

  void run() const override {
    if (rows_per_piece_ == args_.rows) return kernel_.run(args_);
    scheduler_->parallel_for(
        static_cast<std::size_t>((args_.rows + rows_per_piece_ - 1) / rows_per_piece_),
        [](void* context, std::size_t index, int) {
          const SoftmaxCase& self = *static_cast<const SoftmaxCase*>(context);
          const std::int64_t begin = static_cast<std::int64_t>(index) * self.rows_per_piece_;
          simd::SoftmaxF32Args args = self.args_;
          args.rows = std::min(self.rows_per_piece_, args.rows - begin);
          args.x += begin * args.dim;
          args.y += begin * args.dim;
          self.kernel_.run(args);
        },
        const_cast<SoftmaxCase*>(this));
  }

  Check check() override {
    y_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
    disturb(y_[0]);
    Check result;
    for (std::int64_t row = 0; row < args_.rows; ++row) {
      const float* const x = x_.data() + row * args_.dim;
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t i = 0; i < args_.dim; ++i) largest = std::max(largest, args_.scale * x[i]);
      for (std::int64_t i = 0; i < args_.dim; ++i) sum += std::exp(args_.scale * x[i] - largest);
      for (std::int64_t i = 0; i < args_.dim; ++i) {
        const double expected = std::exp(args_.scale * x[i] - largest) / sum;
        result.take(y_[static_cast<std::size_t>(row * args_.dim + i)], expected, 1e-37 + expected * 4e-6);
      }
    }
    return result;
  }

  void evict() const override {
    for (const AlignedArray* array : {&x_, &y_}) bench::evict(array->data(), array->size() * sizeof(float));
  }

  double flops() const override { return 0; }
  double bytes() const override { return 4.0 * static_cast<double>(x_.size() + y_.size()); }

 private:
  const simd::SoftmaxKernel& kernel_;
  AlignedArray x_, y_;
  simd::SoftmaxF32Args args_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  std::int64_t rows_per_piece_ = 0;
};

}  // namespace

void register_softmax(const SuiteOptions& options) {
  struct Shape {
    std::int64_t rows, dim;
  };
  for (const Isa isa : options.isas) {
    const simd::SoftmaxKernel* const kernel = dispatch::kernel_table(isa).softmax_f32;
    for (const Shape shape : {Shape{1536, 128}, Shape{512, 512}, Shape{64, 4096}, Shape{1024, 197}}) {
      const std::string name = "softmax/" + std::to_string(shape.rows) + "x" + std::to_string(shape.dim);
      for (const int threads : options.threads) {
        register_case(options, {name, isa, threads, [kernel, shape, threads] {
                                  return std::make_unique<SoftmaxCase>(*kernel, shape.rows, shape.dim, threads);
                                }});
      }
    }
  }
}

}  // namespace polyhead::bench
