// Decoding over a KvCache: each call appends a token to every sequence and attends to all of it. Beside it, decode/* is the
// same loop over plain arrays. cache/<shape>-contiguous; -paged: pages of 128 tokens that lie anywhere in memory; -ring: a ring
// that has gone round, whose window is all that it holds. Caches of bf16 and f16 have that in their names (--dtypes); -i8 is a
// cache of integers under queries of f32.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/kernel_table.hpp"
#include "polyhead/kv_cache.hpp"
#include "suite.hpp"
#include "support/attention_case.hpp"
#include "support/evict.hpp"

namespace polyhead::bench {
namespace {

constexpr std::int64_t most_steps = 64;  // a sequence's last so many tokens are appended again and again
constexpr std::int64_t page_tokens = 128;

class CacheCase final : public BenchCase {
 public:
  CacheCase(const AttentionWorkload& workload, CacheKind kind, DType stored, const Runtime& runtime)
      : workload_(as_loop(workload)),
        attention_(std::make_unique<AttentionCase>(workload_, runtime)),
        steps_(std::min(most_steps, workload.key_length)),
        cache_(cache_spec(workload_, kind, stored)),
        plan_(plan_spec(workload_, cache_), runtime) {
    if (kind == CacheKind::paged) scatter_pages();
    if (kind == CacheKind::ring) append(0, workload_.key_length);  // once round before
    append(0, workload_.key_length - steps_);
    attention_->set_key_length(workload_.key_length - (kind == CacheKind::ring ? 0 : steps_ / 2));  // the average
    flops_ = attention_->flops();
    bytes_ = attention_->bytes();
    if (stored != workload.dtype) {
      const double of_tokens = static_cast<double>(size_in_bytes(workload.dtype) * (workload.head_dim + workload.value_dim));
      bytes_ *= static_cast<double>(workload.head_dim + workload.value_dim + 8) / of_tokens;  // a byte each, and two scales
      attention_->allow(0.02);
    }
  }

  void run() const override {
    const std::int64_t token = cache_.length(0) % workload_.key_length;
    append(token, token + 1);
    CachedAttentionInputs inputs;
    inputs.cache = &cache_;
    inputs.query = attention_->inputs().query;
    inputs.out = attention_->inputs().out;
    plan_.run(inputs);
    if (cache_.spec().kind == CacheKind::ring || token + 1 < workload_.key_length) return;
    for (std::int64_t b = 0; b < workload_.batch; ++b) cache_.trim(b, cache_.length(b) - steps_);
  }

  // The last step: a ring then holds the operands' keys and nothing else.
  Check check() override {
    for (std::int64_t step = 0; step < steps_; ++step) {
      attention_->poison();
      run();
    }
    attention_->set_key_length(workload_.key_length);
    return attention_->compare_disturbed([this](float& element) { disturb(element); });
  }

  void evict() const override { evict_all(); }
  double flops() const override { return flops_; }
  double bytes() const override { return bytes_; }

 private:
  static AttentionWorkload as_loop(AttentionWorkload workload) {
    workload.padded = true;
    workload.causal = Causal::bottom_right;
    return workload;
  }

  static std::int64_t pages(const AttentionWorkload& w) { return w.batch * ((w.key_length + page_tokens - 1) / page_tokens); }

  static KvCacheSpec cache_spec(const AttentionWorkload& w, CacheKind kind, DType stored) {
    KvCacheSpec spec;
    spec.kind = kind;
    spec.sequences = kind == CacheKind::paged ? w.batch + pages(w) : w.batch;
    spec.kv_heads = w.kv_heads;
    spec.head_dim = w.head_dim;
    spec.value_dim = w.value_dim;
    spec.dtype = stored;
    if (kind != CacheKind::paged) spec.capacity = w.key_length;
    if (kind == CacheKind::ring) spec.window = w.key_length;
    if (kind == CacheKind::paged) spec.page_tokens = page_tokens;
    return spec;
  }

  static AttentionSpec plan_spec(const AttentionWorkload& w, const KvCache& cache) {
    AttentionSpec spec;
    spec.batch = w.batch;
    spec.heads = w.heads;
    spec.kv_heads = w.kv_heads;
    spec.query_length = w.query_length;
    spec.key_length = std::max(w.key_length, cache.plan_key_length());
    spec.head_dim = w.head_dim;
    spec.value_dim = w.value_dim;
    spec.dtype = w.dtype;
    spec.key_dtype = cache.spec().dtype;
    spec.mask = w.mask() & Mask::key_lengths();
    return spec;
  }

  // Pages are handed out in the order in which they came back: each in a sequence of its own, given back in random order.
  void scatter_pages() {
    std::vector<std::int64_t> sequences(static_cast<std::size_t>(pages(workload_)));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      sequences[i] = workload_.batch + static_cast<std::int64_t>(i);
      CacheAppend token = tokens(0, 1);
      for (TensorView* view : {&token.key, &token.value}) view->shape[0] = 1;
      token.sequences = TensorView(&sequences[i], DType::i64, {1});
      cache_.append(token);
    }
    std::mt19937_64 generator(6);
    for (std::size_t i = sequences.size(); i > 1; --i) std::swap(sequences[i - 1], sequences[generator() % i]);
    for (const std::int64_t sequence : sequences) cache_.trim(sequence, 0);
  }

  // The operands' tokens [begin, end).
  CacheAppend tokens(std::int64_t begin, std::int64_t end) const {
    CacheAppend fresh;
    fresh.key = attention_->inputs().key;
    fresh.value = attention_->inputs().value;
    for (TensorView* view : {&fresh.key, &fresh.value}) {
      view->data = static_cast<char*>(view->data) + begin * view->strides[2] * size_in_bytes(view->dtype);
      view->shape[2] = end - begin;
    }
    return fresh;
  }
  void append(std::int64_t begin, std::int64_t end) const { cache_.append(tokens(begin, end)); }

  AttentionWorkload workload_;
  std::unique_ptr<AttentionCase> attention_;
  std::int64_t steps_;
  mutable KvCache cache_;
  AttentionPlan plan_;
  double flops_ = 0, bytes_ = 0;
};

std::vector<DType> stored_types(const SuiteOptions& options) {
  std::vector<DType> stored = options.dtypes;
  const std::vector<DType>& all = dispatch::cache_dtypes();
  const bool with_f32 = std::find(stored.begin(), stored.end(), DType::f32) != stored.end();
  if (with_f32 && all.back() == DType::i8) stored.push_back(DType::i8);
  return stored;
}

}  // namespace

void register_caches(const SuiteOptions& options) {
  for (const AttentionWorkload& named : attention_workloads()) {
    if (named.query_length != 1) continue;
    // Caches of the operands' own type, and of integers beside f32.
    for (const DType stored : stored_types(options)) {
      const AttentionWorkload workload = named.of_dtype(stored == DType::i8 ? DType::f32 : stored);
      const std::string suffix = stored == DType::i8 ? "-i8" : "";
      for (const auto& named_kind : {std::pair(CacheKind::contiguous, "contiguous"), std::pair(CacheKind::paged, "paged"),
                                     std::pair(CacheKind::ring, "ring")}) {
        const CacheKind kind = named_kind.first;
        const std::string name = named_kind.second;
        for (const Isa isa : options.isas) {
          if (too_slow(isa, workload.flops())) continue;
          for (const int threads : options.threads) {
            register_case(options, {"cache/" + workload.name.substr(workload.name.find('-') + 1) + "-" + name + suffix, isa,
                                    threads, [workload, kind, stored, isa, threads] {
                                      return std::make_unique<CacheCase>(workload, kind, stored, make_runtime(isa, threads));
                                    }});
          }
        }
      }
    }
  }
}

}  // namespace polyhead::bench
