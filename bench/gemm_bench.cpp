// The packed GEMM kernel by itself, on one core: C = A W' + bias.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/kernel_table.hpp"
#include "suite.hpp"
#include "support/aligned_array.hpp"

namespace polyhead::bench {
namespace {

class GemmCase {
 public:
  GemmCase(const simd::GemmKernel& kernel, std::int64_t m, std::int64_t n, std::int64_t k)
      : kernel_(kernel),
        a_(count(m, k)),
        weight_(count(n, k)),
        bias_(count(n, 1)),
        c_(count(m, n)),
        packed_(kernel.packed_bytes(n, k) / sizeof(float) + 1) {
    a_.fill_random(1);
    weight_.fill_random(2, 1.0 / std::sqrt(static_cast<double>(k)));
    bias_.fill_random(3);
    simd::PackF32Args pack;
    pack.weight = weight_.data();
    pack.n_stride = static_cast<std::ptrdiff_t>(k) * 4;
    pack.k_stride = 4;
    pack.n = n;
    pack.k = k;
    pack.packed = packed_.data();
    kernel.pack(pack);
    args_.a = a_.data();
    args_.a_stride = static_cast<std::ptrdiff_t>(k) * 4;
    args_.packed = packed_.data();
    args_.bias = bias_.data();
    args_.c = c_.data();
    args_.c_stride = static_cast<std::ptrdiff_t>(n) * 4;
    args_.m = m;
    args_.n = args_.n_end = n;
    args_.k = k;
  }

  void run() const { kernel_.run(args_); }

  // Up to 16 rows, every column: 1,024 rows of 4,096 x 4,096 in double precision would take longer than all the timing.
  Check check() {
    c_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
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

  double flops() const {
    return 2.0 * static_cast<double>(args_.m) * static_cast<double>(args_.n) * static_cast<double>(args_.k);
  }
  double weight_bytes() const { return 4.0 * static_cast<double>(args_.n) * static_cast<double>(args_.k); }

 private:
  static std::size_t count(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

  const simd::GemmKernel& kernel_;
  AlignedArray a_, weight_, bias_, c_, packed_;
  simd::GemmF32Args args_;
};

}  // namespace

void register_gemm(const SuiteOptions& options) {
  struct Shape {
    std::int64_t m, n, k;
  };
  constexpr Shape shapes[] = {{1, 768, 768},     {16, 768, 768},  {128, 768, 768}, {1024, 768, 768}, {1024, 3072, 768},
                              {1024, 768, 3072}, {128, 384, 384}, {1, 4096, 4096}, {16, 4096, 4096}, {1024, 4096, 4096}};
  static Prepared<GemmCase> prepared;
  for (const Isa isa : options.isas) {
    const simd::GemmKernel* const kernel = dispatch::kernel_table(isa).gemm_f32;
    for (const Shape shape : shapes) {
      const std::string label =
          "gemm/" + std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k) + "/" + name(isa);
      benchmark::RegisterBenchmark(label.c_str(), [kernel, shape, label](benchmark::State& state) {
        GemmCase& gemm = prepared.get(label, [&] { return std::make_unique<GemmCase>(*kernel, shape.m, shape.n, shape.k); });
        if (refuse_if_wrong(state, prepared.check)) return;
        for (auto _ : state) gemm.run();
        rate(state, "GFLOP/s", gemm.flops());
        rate(state, "weight GB/s", gemm.weight_bytes());
      })->UseRealTime();
    }
  }
}

}  // namespace polyhead::bench
