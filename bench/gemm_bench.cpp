// The packed GEMM kernel: C = A W' + bias. With several threads the rows are shared out, and where there are few of them the
// columns.
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

struct Shape {
  std::int64_t m, n, k;
};

class GemmCase final : public BenchCase {
 public:
  GemmCase(const simd::GemmKernel& kernel, Shape shape, int threads)
      : kernel_(kernel),
        a_(count(shape.m, shape.k)),
        weight_(count(shape.n, shape.k)),
        bias_(count(shape.n, 1)),
        c_(count(shape.m, shape.n)),
        packed_(kernel.packed_bytes(shape.n, shape.k) / sizeof(float) + 1) {
    a_.fill_random(1);
    weight_.fill_random(2, 1.0 / std::sqrt(static_cast<double>(shape.k)));
    bias_.fill_random(3);
    simd::PackF32Args pack;
    pack.weight = weight_.data();
    pack.n_stride = static_cast<std::ptrdiff_t>(shape.k) * 4;
    pack.k_stride = 4;
    pack.n = shape.n;
    pack.k = shape.k;
    pack.packed = packed_.data();
    kernel.pack(pack);
    args_.a = a_.data();
    args_.a_stride = static_cast<std::ptrdiff_t>(shape.k) * 4;
    args_.packed = packed_.data();
    args_.bias = bias_.data();
    args_.c = c_.data();
    args_.c_stride = static_cast<std::ptrdiff_t>(shape.n) * 4;
    args_.m = shape.m;
    args_.n = args_.n_end = shape.n;
    args_.k = shape.k;
    RuntimeOptions runtime;
    runtime.threads = threads;
    scheduler_ = graph::Scheduler::create(runtime);
    cut(threads == 1 ? 1 : 4 * threads);
  }

  void run() const override {
    if (pieces_ == 1) return kernel_.run(args_);
    scheduler_->parallel_for(
        static_cast<std::size_t>(pieces_),
        [](void* context, std::size_t index, int) {
          static_cast<const GemmCase*>(context)->run_piece(static_cast<std::int64_t>(index));
        },
        const_cast<GemmCase*>(this));
  }

  // Up to 16 rows, every column: 1,024 rows of 4,096 x 4,096 in double precision would take longer than all the timing.
  Check check() override {
    c_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
    disturb(c_[0]);
    Check result;
    const std::int64_t step = std::max<std::int64_t>(1, args_.m / 16);
    for (std::int64_t m = 0; m < args_.m; m += step) {
      for (std::int64_t n = 0; n < args_.n; ++n) {
        double sum = bias_[static_cast<std::size_t>(n)], magnitude = std::abs(sum);
        for (std::int64_t k = 0; k < args_.k; ++k) {
          const double product = static_cast<double>(a_[static_cast<std::size_t>(m * args_.k + k)]) *
                                 weight_[static_cast<std::size_t>(n * args_.k + k)];
          sum += product;
          magnitude += std::abs(product);
        }
        // One chain of k + 1 roundings, each of half a unit of at most the sum of magnitudes.
        result.take(c_[static_cast<std::size_t>(m * args_.n + n)], sum,
                    std::ldexp(magnitude * static_cast<double>(args_.k + 1), -24));
      }
    }
    return result;
  }

  void evict() const override {
    for (const AlignedArray* array : {&a_, &packed_, &bias_, &c_}) bench::evict(array->data(), array->size() * sizeof(float));
  }

  double flops() const override {
    return 2.0 * static_cast<double>(args_.m) * static_cast<double>(args_.n) * static_cast<double>(args_.k);
  }
  double bytes() const override { return 4.0 * static_cast<double>(a_.size() + weight_.size() + bias_.size() + c_.size()); }

 private:
  static std::size_t count(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

  // Into at most `wanted` pieces of whole row tiles, or of whole panels where there are fewer tiles than pieces.
  void cut(std::int64_t wanted) {
    by_rows_ = args_.m >= wanted * kernel_.row_tile;
    const std::int64_t unit = by_rows_ ? kernel_.row_tile : kernel_.panel_width, size = by_rows_ ? args_.m : args_.n;
    const std::int64_t units = (size + unit - 1) / unit;
    step_ = (units + wanted - 1) / wanted * unit;
    pieces_ = (size + step_ - 1) / step_;
  }

  void run_piece(std::int64_t piece) const {
    simd::GemmF32Args args = args_;
    const std::int64_t begin = piece * step_;
    if (by_rows_) {
      args.m = std::min(args_.m - begin, step_);
      args.a += begin * args_.k;
      args.c += begin * args_.n;
    } else {
      args.n_begin = begin;
      args.n_end = std::min(args_.n, begin + step_);
    }
    kernel_.run(args);
  }

  const simd::GemmKernel& kernel_;
  AlignedArray a_, weight_, bias_, c_, packed_;
  simd::GemmF32Args args_;
  std::shared_ptr<graph::Scheduler> scheduler_;
  bool by_rows_ = true;
  std::int64_t step_ = 0, pieces_ = 1;
};

}  // namespace

void register_gemm(const SuiteOptions& options) {
  constexpr Shape shapes[] = {{1, 768, 768},     {16, 768, 768},  {128, 768, 768}, {1024, 768, 768}, {1024, 3072, 768},
                              {1024, 768, 3072}, {128, 384, 384}, {1, 4096, 4096}, {16, 4096, 4096}, {1024, 4096, 4096}};
  for (const Isa isa : options.isas) {
    const simd::GemmKernel* const kernel = dispatch::kernel_table(isa).gemm_f32;
    for (const Shape shape : shapes) {
      const std::string name =
          "gemm/" + std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k);
      if (too_slow(isa, 2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k))) continue;
      for (const int threads : options.threads) {
        register_case(options, {name, isa, threads,
                                [kernel, shape, threads] { return std::make_unique<GemmCase>(*kernel, shape, threads); }});
      }
    }
  }
}

}  // namespace polyhead::bench
