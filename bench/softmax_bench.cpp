// Softmax over rows, layer norm's neighbour among the row-wise kernels; attention has its own inside.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/kernel_table.hpp"
#include "suite.hpp"
#include "support/aligned_array.hpp"

namespace polyhead::bench {
namespace {

class SoftmaxCase {
 public:
  SoftmaxCase(const simd::SoftmaxKernel& kernel, std::int64_t rows, std::int64_t dim)
      : kernel_(kernel), x_(static_cast<std::size_t>(rows * dim)), y_(static_cast<std::size_t>(rows * dim)) {
    x_.fill_random(1, 3.0);
    args_.x = x_.data();
    args_.y = y_.data();
    args_.x_stride = args_.y_stride = static_cast<std::ptrdiff_t>(dim) * 4;
    args_.rows = rows;
    args_.dim = dim;
    args_.scale = 0.5;
  }

  void run() const { kernel_.run(args_); }

  Check check() {
    y_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
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

  double elements() const { return static_cast<double>(x_.size()); }

 private:
  const simd::SoftmaxKernel& kernel_;
  AlignedArray x_, y_;
  simd::SoftmaxF32Args args_;
};

}  // namespace

void register_softmax(const SuiteOptions& options) {
  struct Shape {
    std::int64_t rows, dim;
  };
  static Prepared<SoftmaxCase> prepared;
  for (const Isa isa : options.isas) {
    const simd::SoftmaxKernel* const kernel = dispatch::kernel_table(isa).softmax_f32;
    for (const Shape shape : {Shape{1536, 128}, Shape{512, 512}, Shape{64, 4096}, Shape{1024, 197}}) {
      const std::string label = "softmax/" + std::to_string(shape.rows) + "x" + std::to_string(shape.dim) + "/" + name(isa);
      benchmark::RegisterBenchmark(label.c_str(), [kernel, shape, label](benchmark::State& state) {
        SoftmaxCase& softmax =
            prepared.get(label, [&] { return std::make_unique<SoftmaxCase>(*kernel, shape.rows, shape.dim); });
        if (refuse_if_wrong(state, prepared.check)) return;
        for (auto _ : state) softmax.run();
        rate(state, "Gelement/s", softmax.elements());
      })->UseRealTime();
    }
  }
}

}  // namespace polyhead::bench
