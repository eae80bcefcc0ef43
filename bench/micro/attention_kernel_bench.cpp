// attention_f32 and decode_f32 of every instruction set, alone: one thread, one kv head a call, rows against keys. Each result
// is compared with float64 before it is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "polyhead/runtime.hpp"

namespace {

using polyhead::Isa;
using polyhead::simd::AttentionF32Args;
using polyhead::simd::AttentionKernel;

enum class Extra { none, causal, key_mask, query_key_mask, bias };

struct Shape {
  const char* name;
  std::int64_t rows, keys, head_dim;
  Extra extra;
};

constexpr Shape kPrefill[] = {
    {"bert_512", 512, 512, 64, Extra::none},           {"bert_128", 128, 128, 64, Extra::none},
    {"minilm", 128, 128, 32, Extra::none},             {"vit", 197, 197, 64, Extra::none},
    {"gpt2", 1024, 1024, 64, Extra::causal},           {"llama", 2048, 2048, 128, Extra::causal},
    {"unet", 1024, 4096, 40, Extra::none},             {"tiny", 16, 16, 64, Extra::none},
    {"s512_d32", 512, 512, 32, Extra::none},           {"s512_d32_key_mask", 512, 512, 32, Extra::key_mask},
    {"s512_d32_mask", 512, 512, 32, Extra::query_key_mask}, {"s512_d32_bias", 512, 512, 32, Extra::bias},
};
constexpr Shape kFewRows[] = {
    {"1_row_s1024", 1, 1024, 128, Extra::none},   {"4_rows_s1024", 4, 1024, 128, Extra::none},
    {"8_rows_s1024", 8, 1024, 128, Extra::none},  {"1_row_s16384", 1, 16384, 128, Extra::none},
    {"4_rows_s16384", 4, 16384, 128, Extra::none}, {"8_rows_s16384", 8, 16384, 128, Extra::none},
};

class Problem {
 public:
  Problem(const AttentionKernel& kernel, const Shape& shape)
      : shape_(shape),
        query_(Random(shape.rows * shape.head_dim, 1)),
        key_(Random(shape.keys * shape.head_dim, 2)),
        value_(Random(shape.keys * shape.head_dim, 3)),
        out_(query_.size()),
        scratch_(kernel.scratch_bytes(shape.head_dim, shape.head_dim, shape.keys) + 64) {
    const std::int64_t pitch = shape.head_dim * 4;
    args.query = query_.data();
    args.key = key_.data();
    args.value = value_.data();
    args.out = out_.data();
    args.query_stride = args.key_stride = args.value_stride = args.out_stride = pitch;
    args.row_end = shape.rows;
    args.key_end = shape.keys;
    args.head_dim = args.value_dim = shape.head_dim;
    args.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(scratch_.data());
    args.scratch = scratch_.data() + (64 - at % 64) % 64;
    if (shape.extra == Extra::causal) args.visible_end = 1;
    if (shape.extra == Extra::key_mask || shape.extra == Extra::query_key_mask) {
      const std::int64_t rows = shape.extra == Extra::key_mask ? 1 : shape.rows;
      mask_.resize(static_cast<std::size_t>(rows * shape.keys));
      for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = i % 7 != 3;
      args.boolean_mask = mask_.data();
      args.mask_key_stride = 1;
      args.mask_stride = rows == 1 ? 0 : shape.keys;
    }
    if (shape.extra == Extra::bias) {
      bias_ = Random(shape.rows * shape.keys, 4);
      args.bias = bias_.data();
      args.bias_key_stride = 4;
      args.bias_stride = shape.keys * 4;
    }
  }

  double Operations() const {
    const double all = 4.0 * static_cast<double>(shape_.rows * shape_.keys * shape_.head_dim);
    return shape_.extra == Extra::causal ? all / 2 : all;
  }
  double Bytes() const { return 8.0 * static_cast<double>(shape_.keys * shape_.head_dim); }

  // The first, a middle and the last row against the formula in float64.
  bool Right() const {
    for (const std::int64_t row : {std::int64_t{0}, shape_.rows / 2, shape_.rows - 1}) {
      std::vector<double> sum(static_cast<std::size_t>(shape_.head_dim), 0.0);
      double denominator = 0;
      for (std::int64_t key = 0; key < shape_.keys; ++key) {
        if (shape_.extra == Extra::causal && key > row) continue;
        if (args.boolean_mask && args.boolean_mask[row * args.mask_stride + key] == 0) continue;
        double score = 0;
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) score += static_cast<double>(At(query_, row, d)) * At(key_, key, d);
        score *= args.scale;
        if (args.bias) score += bias_[static_cast<std::size_t>(row * shape_.keys + key)];
        const double weight = std::exp(score);
        denominator += weight;
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) sum[static_cast<std::size_t>(d)] += weight * At(value_, key, d);
      }
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        if (!(std::fabs(sum[static_cast<std::size_t>(d)] / denominator - At(out_, row, d)) <= 1e-5)) return false;
      }
    }
    return true;
  }

  AttentionF32Args args;

 private:
  float At(const std::vector<float>& matrix, std::int64_t row, std::int64_t column) const {
    return matrix[static_cast<std::size_t>(row * shape_.head_dim + column)];
  }
  static std::vector<float> Random(std::int64_t count, std::uint32_t seed) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      seed = seed * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<double>(seed >> 8) * 0x1p-23 - 1.0);
    }
    return values;
  }

  Shape shape_;
  std::vector<float> query_, key_, value_, out_, bias_;
  std::vector<std::uint8_t> mask_;
  std::vector<unsigned char> scratch_;
};

void Run(benchmark::State& state, const AttentionKernel& kernel, const Shape& shape) {
  Problem problem(kernel, shape);
  kernel.run(problem.args);
  if (!problem.Right()) {
    state.SkipWithError("the result is wrong");
    return;
  }
  for (auto _ : state) kernel.run(problem.args);
  state.counters["flops"] = benchmark::Counter(problem.Operations(), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["read"] = benchmark::Counter(problem.Bytes(), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Isa isa : polyhead::available_isas()) {
    const polyhead::dispatch::KernelTable& table = polyhead::dispatch::kernel_table(isa);
    const auto add = [](const AttentionKernel& kernel, const Shape& shape) {
      const std::string name = std::string(kernel.name) + "/" + shape.name;
      benchmark::RegisterBenchmark(name.c_str(), [&kernel, shape](benchmark::State& state) { Run(state, kernel, shape); });
    };
    for (const Shape& shape : kPrefill) add(*table.attention_f32, shape);
    for (const Shape& shape : kFewRows) add(*table.attention_f32, shape), add(*table.decode_f32, shape);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return EXIT_FAILURE;
  benchmark::RunSpecifiedBenchmarks();
  return EXIT_SUCCESS;
}
