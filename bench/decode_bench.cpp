// Decoding as a loop does it: each call appends a token's keys and values to the cache and attends to all of it with one plan,
// whose key length is the cache's capacity. Beside it, attention/decode-* is the same shape at one fixed length.
#include <algorithm>
#include <cstring>
#include <utility>

#include "suite.hpp"
#include "support/attention_case.hpp"

namespace polyhead::bench {
namespace {

// The last so many positions of the cache are filled again and again.
constexpr std::int64_t most_steps = 64;

class DecodeCase final : public BenchCase {
 public:
  DecodeCase(const AttentionWorkload& workload, const Runtime& runtime)
      : workload_(as_loop(workload)),
        attention_(std::make_unique<AttentionCase>(workload_, runtime)),
        key_(random_row(workload.dtype, workload.head_dim, 4)),
        value_(random_row(workload.dtype, workload.value_dim, 5)),
        steps_(std::min(most_steps, workload.key_length)) {
    attention_->set_key_length(workload_.key_length - steps_ / 2);  // the average
    flops_ = attention_->flops();
    bytes_ = attention_->bytes();
  }

  void run() const override {
    const std::int64_t length = workload_.key_length - steps_ + 1 + step_;
    step_ = (step_ + 1) % steps_;
    append(attention_->inputs().key, key_, length - 1);
    append(attention_->inputs().value, value_, length - 1);
    attention_->set_key_length(length);
    attention_->run();
  }

  // The first step and the last one.
  Check check() override {
    Check result;
    for (const std::int64_t step : {std::int64_t{0}, steps_ - 1}) {
      step_ = step;
      attention_->poison();
      run();
      const Check one = attention_->compare_disturbed([this](float& element) { disturb(element); });
      result.error = std::max(result.error, one.error);
      result.share_of_bound = std::max(result.share_of_bound, one.share_of_bound);
    }
    return result;
  }

  void evict() const override { attention_->evict(); }
  double flops() const override { return flops_; }
  double bytes() const override { return bytes_; }

 private:
  static AttentionWorkload as_loop(AttentionWorkload workload) {
    workload.padded = true;
    workload.causal = Causal::bottom_right;
    return workload;
  }

  static Operand random_row(DType dtype, std::int64_t width, std::uint64_t seed) {
    AlignedArray numbers(static_cast<std::size_t>(width));
    numbers.fill_random(seed);
    return Operand(dtype, std::move(numbers));
  }

  void append(const TensorView& cache, const Operand& row, std::int64_t position) const {
    auto* const memory = static_cast<char*>(cache.data);
    const auto width = static_cast<std::int64_t>(row.bytes());
    for (std::int64_t head = 0; head < workload_.batch * workload_.kv_heads; ++head) {
      std::memcpy(memory + (head * workload_.key_length + position) * width, row.data(), row.bytes());
    }
  }

  AttentionWorkload workload_;
  std::unique_ptr<AttentionCase> attention_;
  Operand key_, value_;
  std::int64_t steps_;
  mutable std::int64_t step_ = 0;
  double flops_ = 0, bytes_ = 0;
};

}  // namespace

void register_decode(const SuiteOptions& options) {
  for (const AttentionWorkload& named : attention_workloads()) {
    if (named.query_length != 1) continue;
    for (const DType dtype : options.dtypes) {
      const AttentionWorkload workload = named.of_dtype(dtype);
      for (const Isa isa : options.isas) {
        if (too_slow(isa, workload.flops())) continue;
        for (const int threads : options.threads) {
          register_case(options,
                        {"decode/" + workload.name.substr(workload.name.find('-') + 1), isa, threads, [workload, isa, threads] {
                           return std::make_unique<DecodeCase>(workload, make_runtime(isa, threads));
                         }});
        }
      }
    }
  }
}

}  // namespace polyhead::bench
