// Attention and decode kernels of every instruction set and data type, alone: one thread, one kv head a call, rows against
// keys. Each result is compared with float64 before it is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "platform/aligned_memory.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/runtime.hpp"
#include "support/aligned_array.hpp"
#include "support/check.hpp"
#include "support/operand.hpp"

namespace polyhead::bench {
namespace {

enum class Extra { none, causal, key_mask, query_key_mask, bias };

struct Shape {
  const char* name;
  std::int64_t rows, keys, head_dim;
  Extra extra;
};

constexpr Shape prefill[] = {
    {"bert_512", 512, 512, 64, Extra::none},
    {"bert_128", 128, 128, 64, Extra::none},
    {"minilm", 128, 128, 32, Extra::none},
    {"vit", 197, 197, 64, Extra::none},
    {"gpt2", 1024, 1024, 64, Extra::causal},
    {"llama", 2048, 2048, 128, Extra::causal},
    {"unet", 1024, 4096, 40, Extra::none},
    {"tiny", 16, 16, 64, Extra::none},
    {"s512_d32", 512, 512, 32, Extra::none},
    {"s512_d32_key_mask", 512, 512, 32, Extra::key_mask},
    {"s512_d32_mask", 512, 512, 32, Extra::query_key_mask},
    {"s512_d32_bias", 512, 512, 32, Extra::bias},
};
constexpr Shape few_rows[] = {
    {"1_row_s1024", 1, 1024, 128, Extra::none},    {"4_rows_s1024", 4, 1024, 128, Extra::none},
    {"8_rows_s1024", 8, 1024, 128, Extra::none},   {"1_row_s16384", 1, 16384, 128, Extra::none},
    {"4_rows_s16384", 4, 16384, 128, Extra::none}, {"8_rows_s16384", 8, 16384, 128, Extra::none},
};

class Problem {
 public:
  Problem(const simd::AttentionKernel& kernel, const Shape& shape)
      : shape_(shape),
        dtype_(dtype_of(kernel.element)),
        query_(dtype_, random(count(shape.rows, shape.head_dim), 1)),
        key_(dtype_, random(count(shape.keys, shape.head_dim), 2)),
        value_(dtype_, random(count(shape.keys, shape.head_dim), 3)),
        out_(dtype_, count(shape.rows, shape.head_dim)),
        scratch_(kernel.scratch_bytes(shape.head_dim, shape.head_dim, shape.keys) + 64) {
    out_.fill(std::numeric_limits<float>::quiet_NaN());
    args.query = query_.data();
    args.key = key_.data();
    args.value = value_.data();
    args.out = out_.data();
    args.query_stride = args.key_stride = args.value_stride = args.out_stride = shape.head_dim * size_in_bytes(dtype_);
    args.row_end = shape.rows;
    args.key_end = shape.keys;
    args.head_dim = args.value_dim = shape.head_dim;
    args.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    args.scratch = scratch_.data();
    if (shape.extra == Extra::causal) args.visible_end = 1;
    if (shape.extra == Extra::key_mask || shape.extra == Extra::query_key_mask) {
      const std::int64_t rows = shape.extra == Extra::key_mask ? 1 : shape.rows;
      mask_.resize(count(rows, shape.keys));
      for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = i % 7 != 3;
      args.boolean_mask = mask_.data();
      args.mask_key_stride = 1;
      args.mask_stride = rows == 1 ? 0 : shape.keys;
    }
    if (shape.extra == Extra::bias) {
      bias_ = AlignedArray(count(shape.rows, shape.keys));
      bias_.fill_random(4);
      args.bias = bias_.data();
      args.bias_key_stride = 4;
      args.bias_stride = shape.keys * 4;
    }
  }

  double flops() const {
    double pairs = static_cast<double>(shape_.rows * shape_.keys);
    if (shape_.extra == Extra::causal)
      pairs = static_cast<double>(shape_.rows * (shape_.rows + 1)) / 2;  // as many keys as rows
    return 4.0 * pairs * static_cast<double>(shape_.head_dim);
  }
  double bytes() const { return static_cast<double>(query_.bytes() + key_.bytes() + value_.bytes() + out_.bytes()); }

  // The first, a middle and the last row of what the kernel has left in the output.
  Check compare(Precision precision) const {
    const double missing = precision == Precision::fast ? 0x1p-15 : 0.0;
    Check result;
    for (const std::int64_t row : {std::int64_t{0}, shape_.rows / 2, shape_.rows - 1}) {
      std::vector<double> sum(static_cast<std::size_t>(shape_.head_dim), 0.0);
      double denominator = 0, largest_product = 0, largest_value = 0;
      for (std::int64_t key = 0; key < shape_.keys; ++key) {
        if (shape_.extra == Extra::causal && key > row) continue;
        if (args.boolean_mask && args.boolean_mask[row * args.mask_stride + key] == 0) continue;
        double score = 0, magnitude = 0;
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          const double product = static_cast<double>(at(query_, row, d)) * at(key_, key, d);
          score += product;
          magnitude += std::fabs(product);
        }
        score *= args.scale;
        if (args.bias) score += bias_[static_cast<std::size_t>(row * shape_.keys + key)];
        largest_product = std::max({largest_product, args.scale * magnitude, std::fabs(score)});
        const double weight = std::exp(score);
        denominator += weight;
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          sum[static_cast<std::size_t>(d)] += weight * at(value_, key, d);
          largest_value = std::max(largest_value, std::fabs(static_cast<double>(at(value_, key, d))));
        }
      }
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        const double right = sum[static_cast<std::size_t>(d)] / denominator;
        result.take(at(out_, row, d), right,
                    largest_value * (2e-6 + missing + (0x1p-22 + missing) * largest_product) +
                        weight_rounding_error(dtype_, largest_value) + rounding_error(dtype_, right));
      }
    }
    return result;
  }

  simd::AttentionF32Args args;

 private:
  static std::size_t count(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }
  static DType dtype_of(simd::Element element) {
    return element == simd::Element::f32 ? DType::f32 : element == simd::Element::bf16 ? DType::bf16 : DType::f16;
  }
  static AlignedArray random(std::size_t size, std::uint64_t seed) {
    AlignedArray numbers(size);
    numbers.fill_random(seed);
    return numbers;
  }
  float at(const Operand& matrix, std::int64_t row, std::int64_t column) const {
    return matrix.get(static_cast<std::size_t>(row * shape_.head_dim + column));
  }

  Shape shape_;
  DType dtype_;
  Operand query_, key_, value_, out_;
  AlignedArray bias_;
  std::vector<std::uint8_t> mask_;
  platform::AlignedBuffer scratch_;
};

void attend(benchmark::State& state, const simd::AttentionKernel& kernel, const Shape& shape, Precision precision) {
  Problem problem(kernel, shape);
  kernel.run(problem.args);
  const Check check = problem.compare(precision);
  if (!check.passed()) return state.SkipWithError(("wrong result: " + check.describe()).c_str());
  for (auto _ : state) kernel.run(problem.args);
  const auto rate = [](double amount) {
    return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GFLOP/s"] = rate(problem.flops());
  state.counters["GB/s"] = rate(problem.bytes());
}

const bool registered = [] {
  const auto add = [](const simd::AttentionKernel& kernel, const Shape& shape, Precision precision = Precision::strict) {
    const std::string label = std::string(kernel.name) + "/" + shape.name;
    static std::set<std::string> labels;  // a kernel may serve several instruction sets
    if (!labels.insert(label).second) return;
    benchmark::RegisterBenchmark(label.c_str(), [&kernel, shape, precision](benchmark::State& state) {
      attend(state, kernel, shape, precision);
    })->Unit(benchmark::kMicrosecond);
  };
  for (const Isa isa : available_isas()) {
    if (isa == Isa::amx && !dispatch::request_tile_permission()) continue;
    const dispatch::KernelTable& table = dispatch::kernel_table(isa);
    if (table.fast_attention_f32 != table.attention_f32) {
      for (const Shape& shape : prefill) add(*table.fast_attention_f32, shape, Precision::fast);
    }
    for (const DType dtype : dispatch::attention_dtypes()) {
      const dispatch::AttentionKernels kernels = dispatch::attention_kernels(table, dtype);
      for (const Shape& shape : prefill) add(*kernels.transposed, shape);
      for (const Shape& shape : few_rows) add(*kernels.transposed, shape), add(*kernels.decode, shape);
    }
  }
  return true;
}();

}  // namespace
}  // namespace polyhead::bench
