#include "support/gemm_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "support/evict.hpp"

namespace polyhead::bench {
namespace {

std::size_t count(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

}  // namespace

GemmWeights::GemmWeights(const simd::GemmKernel& kernel, std::int64_t n, std::int64_t k, WeightType type)
    : k_(k), weight_(count(n, k)), bias_(count(n, 1)), packed_(kernel.packed_bytes(n, k)), type_(type) {
  weight_.fill_random(2, 1.0 / std::sqrt(static_cast<double>(k)));
  bias_.fill_random(3);
  simd::PackF32Args pack;
  pack.weight = weight_.data();
  pack.n_stride = static_cast<std::ptrdiff_t>(k) * 4;
  pack.k_stride = 4;
  pack.n = n;
  pack.k = k;
  pack.packed = packed_.as<void>();
  kernel.pack(pack);
  switch (type) {
    case WeightType::f32:
      return;
    case WeightType::bf16:
    case WeightType::bf16_dynamic:
      factor_ = 0x1p-8;
      break;
    case WeightType::f16:
      factor_ = 0x1p-11;  // of normal numbers; the others are too small to count
      break;
    case WeightType::int8:
    case WeightType::int8_dynamic:
      factor_ = 1.0 / 253;
      block_ = k;
      break;
    case WeightType::int4:
      factor_ = 2.0 / 15;
      block_ = 32;
      break;
  }
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t begin = 0; begin < k; begin += block_) {
      float largest = 0;
      for (std::int64_t i = begin; i < std::min(begin + block_, k); ++i) {
        largest = std::max(largest, std::abs(weight_[static_cast<std::size_t>(row * k + i)]));
      }
      largest_.push_back(largest);
    }
  }
}

double GemmWeights::rounding(std::int64_t n, std::int64_t k) const {
  if (largest_.empty()) return 0;
  const std::int64_t blocks = (k_ + block_ - 1) / block_;
  return factor_ * static_cast<double>(largest_[static_cast<std::size_t>(n * blocks + k / block_)]) + 0x1p-25;
}

double GemmWeights::row_rounding(double number, double largest) const {
  if (type_ == WeightType::int8_dynamic) return largest / 253;
  return type_ == WeightType::bf16_dynamic ? std::abs(number) * 0x1p-8 : 0;
}

GemmCase::GemmCase(const simd::GemmKernel& kernel, GemmShape shape, int threads, std::shared_ptr<const GemmWeights> weights)
    : kernel_(kernel), weights_(std::move(weights)), a_(count(shape.m, shape.k)), c_(count(shape.m, shape.n)) {
  a_.fill_random(1);
  args_.a = a_.data();
  args_.a_stride = static_cast<std::ptrdiff_t>(shape.k) * 4;
  args_.packed = weights_->packed();
  args_.bias = weights_->bias().data();
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

void GemmCase::run() const {
  if (pieces_ == 1) return kernel_.run(args_);
  scheduler_->parallel_for(
      static_cast<std::size_t>(pieces_),
      [](void* context, std::size_t index, int) {
        static_cast<const GemmCase*>(context)->run_piece(static_cast<std::int64_t>(index));
      },
      const_cast<GemmCase*>(this));
}

Check GemmCase::check() {
  c_.fill(std::numeric_limits<float>::quiet_NaN());
  run();
  disturb(c_[0]);
  Check result;
  const std::int64_t step = std::max<std::int64_t>(1, args_.m / 16);
  for (std::int64_t m = 0; m < args_.m; m += step) {
    double largest = 0;
    for (std::int64_t k = 0; k < args_.k; ++k) {
      largest = std::max(largest, std::abs(static_cast<double>(a_[static_cast<std::size_t>(m * args_.k + k)])));
    }
    for (std::int64_t n = 0; n < args_.n; ++n) {
      double sum = weights_->bias()[static_cast<std::size_t>(n)], magnitude = std::abs(sum), rounding = 0;
      for (std::int64_t k = 0; k < args_.k; ++k) {
        const double number = a_[static_cast<std::size_t>(m * args_.k + k)];
        const double weight = weights_->weight()[static_cast<std::size_t>(n * args_.k + k)];
        sum += number * weight;
        magnitude += std::abs(number * weight);
        rounding += std::abs(number) * weights_->rounding(n, k);
        rounding += weights_->row_rounding(number, largest) * (std::abs(weight) + weights_->rounding(n, k));
      }
      // One chain of k + 1 roundings, each of half a unit of at most the sum of magnitudes.
      result.take(c_[static_cast<std::size_t>(m * args_.n + n)], sum,
                  rounding + std::ldexp((magnitude + rounding) * static_cast<double>(args_.k + 1), -24));
    }
  }
  return result;
}

void GemmCase::evict() const {
  for (const AlignedArray* array : {&a_, &weights_->bias(), &c_}) bench::evict(array->data(), array->size() * sizeof(float));
  bench::evict(weights_->packed(), weights_->packed_bytes());
}

double GemmCase::flops() const {
  return 2.0 * static_cast<double>(args_.m) * static_cast<double>(args_.n) * static_cast<double>(args_.k);
}

double GemmCase::bytes() const {
  return 4.0 * static_cast<double>(a_.size() + weights_->bias().size() + c_.size()) +
         static_cast<double>(weights_->packed_bytes());
}

void GemmCase::cut(std::int64_t wanted) {
  by_rows_ = args_.m >= wanted * kernel_.row_tile;
  const std::int64_t unit = by_rows_ ? kernel_.row_tile : kernel_.panel_width, size = by_rows_ ? args_.m : args_.n;
  const std::int64_t units = (size + unit - 1) / unit;
  step_ = (units + wanted - 1) / wanted * unit;
  pieces_ = (size + step_ - 1) / step_;
}

void GemmCase::run_piece(std::int64_t piece) const {
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

}  // namespace polyhead::bench
