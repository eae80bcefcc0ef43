// Time against the area that a mask allows: the same attention dense, causal, in a window, with a prefix, as documents, as
// packed sequences, by a block mask, over a block table. GFLOP/s count the allowed pairs of query and key only, so that all of
// them would be equal if what is hidden cost nothing. score_changes_bench.cpp has what is done to scores.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "polyhead/attention.hpp"
#include "polyhead/merge.hpp"
#include "suite.hpp"
#include "support/aligned_array.hpp"
#include "support/evict.hpp"

namespace polyhead::bench {
namespace {

constexpr std::int64_t heads = 8, dim = 64, block = 128;
constexpr std::int64_t prefix = 1024, page = 128;

// One head's queries and keys, `total` of each, and which pairs are allowed.
struct Masked {
  const char* name;
  std::int64_t total;
  std::vector<std::int64_t> lengths;  // of documents or sequences; one otherwise
  Mask mask;
  bool scattered = false;  // segments are numbers that are thrown about instead
  bool in_pages = false;   // keys and values lie in pages, in any order
};

std::vector<std::int64_t> uneven_lengths(std::int64_t count) {
  // 16 to 512 queries each, in no order, the same on every machine.
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back(16 + i * i * 37 % 497);
  return lengths;
}

class MaskCase final : public BenchCase {
 public:
  MaskCase(const Masked& masked, const Runtime& runtime)
      : masked_(masked),
        query_(operand(masked.total, 1)),
        key_(operand(masked.total, 2)),
        value_(operand(masked.total, 3)),
        out_(static_cast<std::size_t>(heads * masked.total * dim)),
        ends_(masked.lengths.size() + 1),
        document_(static_cast<std::size_t>(masked.total)) {
    for (std::size_t i = 0; i < masked.lengths.size(); ++i) {
      ends_[i + 1] = ends_[i] + masked.lengths[i];
      std::fill(document_.begin() + ends_[i], document_.begin() + ends_[i + 1], static_cast<std::int64_t>(i));
    }
    if (masked.scattered) {
      for (std::size_t i = 0; i < document_.size(); ++i) document_[i] = static_cast<std::int64_t>(i * 2654435761u >> 9 & 3);
    }
    const std::int64_t blocks = (masked.total + block - 1) / block;
    if (masked.mask.block_queries) {  // the diagonal, and a quarter in all
      blocks_.resize(static_cast<std::size_t>(blocks * blocks));
      for (std::int64_t i = 0; i < blocks; ++i)
        for (std::int64_t j = 0; j < blocks; ++j) blocks_[static_cast<std::size_t>(i * blocks + j)] = (i * 5 + j * 3) % 4 == 0;
    }
    AttentionSpec spec;
    spec.batch = masked.mask.is_packed ? static_cast<std::int64_t>(masked.lengths.size()) : 1;
    spec.heads = heads;
    spec.query_length = spec.key_length =
        masked.mask.is_packed ? *std::max_element(masked.lengths.begin(), masked.lengths.end()) : masked.total;
    spec.head_dim = dim;
    spec.mask = masked.mask;
    plan_ = std::make_unique<AttentionPlan>(spec, runtime);
    const auto view = [&](const AlignedArray& array) { return TensorView::of(array.data(), {1, heads, masked.total, dim}); };
    inputs_.query = view(query_);
    inputs_.key = view(key_);
    inputs_.value = view(value_);
    inputs_.out = view(out_);
    if (masked.mask.is_packed) {
      inputs_.cumulative_query_lengths = inputs_.cumulative_key_lengths =
          TensorView(ends_.data(), DType::i64, {static_cast<std::int64_t>(ends_.size())});
    }
    if (masked.mask.has_segments) {
      inputs_.query_segments = inputs_.key_segments = TensorView(document_.data(), DType::i64, {1, masked.total});
    }
    if (masked.mask.block_queries) inputs_.block_mask = TensorView(blocks_.data(), DType::u8, {blocks, blocks});
    if (masked.mask.has_prefix) inputs_.prefix_lengths = TensorView(&prefix_length_, DType::i64, {1});
    if (masked.in_pages) deal_into_pages();
    for (std::int64_t t = 0; t < masked.total; ++t)
      for (std::int64_t s = 0; s < masked.total; ++s) area_ += allowed(t, s);
  }

  void run() const override { plan_->run(inputs_); }

  // A row of each head in every stretch of 97.
  Check check() override {
    out_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
    disturb(out_[0]);
    Check result;
    std::vector<double> weight(static_cast<std::size_t>(masked_.total));
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = h == 0 ? 0 : h * 11; t < masked_.total; t += 97) {
        const float* const q = row(query_, h, t);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, magnitude = 0, most = 0;
        for (std::int64_t s = 0; s < masked_.total; ++s) {
          if (!allowed(t, s)) continue;
          double dot = 0, absolute = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            dot += static_cast<double>(q[d]) * row(key_, h, s)[d];
            absolute += std::fabs(static_cast<double>(q[d]) * row(key_, h, s)[d]);
          }
          weight[static_cast<std::size_t>(s)] = dot / 8;
          largest = std::max(largest, dot / 8);
          magnitude = std::max(magnitude, absolute / 8);
          for (std::int64_t d = 0; d < dim; ++d) most = std::max(most, std::fabs(static_cast<double>(row(value_, h, s)[d])));
        }
        std::vector<double> expected(dim);
        for (std::int64_t s = 0; s < masked_.total; ++s) {
          if (!allowed(t, s)) continue;
          const double w = std::exp(weight[static_cast<std::size_t>(s)] - largest);
          sum += w;
          for (std::int64_t d = 0; d < dim; ++d) expected[static_cast<std::size_t>(d)] += w * row(value_, h, s)[d];
        }
        const double bound = most * (2e-6 + 0x1p-22 * magnitude) + 2.4e-38;
        for (std::int64_t d = 0; d < dim; ++d) {
          result.take(row(out_, h, t)[d], sum > 0 ? expected[static_cast<std::size_t>(d)] / sum : 0.0, bound);
        }
      }
    return result;
  }

  void evict() const override {
    for (const AlignedArray* array : {&query_, &key_, &value_, &out_, &key_pages_, &value_pages_})
      bench::evict(array->data(), array->size() * sizeof(float));
  }
  double flops() const override { return 4.0 * static_cast<double>(dim * heads) * area_; }
  double bytes() const override { return 16.0 * static_cast<double>(out_.size()); }

 private:
  static AlignedArray operand(std::int64_t total, std::uint64_t seed) {
    AlignedArray array(static_cast<std::size_t>(heads * total * dim));
    array.fill_random(seed);
    return array;
  }
  const float* row(const AlignedArray& array, std::int64_t h, std::int64_t t) const {
    return array.data() + (h * masked_.total + t) * dim;
  }
  // Page p holds the keys of all heads from pages_[i] == p on, i * page being the first.
  void deal_into_pages() {
    const std::int64_t count = masked_.total / page;
    key_pages_ = AlignedArray(key_.size());
    value_pages_ = AlignedArray(value_.size());
    for (std::int64_t i = 0; i < count; ++i) pages_.push_back((i * 13 + 5) % count);  // each once, 13 and count being coprime
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t to = (pages_[static_cast<std::size_t>(i)] * heads + h) * page * dim;
        std::copy_n(row(key_, h, i * page), page * dim, key_pages_.data() + to);
        std::copy_n(row(value_, h, i * page), page * dim, value_pages_.data() + to);
      }
    inputs_.key = TensorView::of(key_pages_.data(), {count, heads, page, dim});
    inputs_.value = TensorView::of(value_pages_.data(), {count, heads, page, dim});
    inputs_.block_table = TensorView(pages_.data(), DType::i64, {1, count});
    inputs_.key_lengths = TensorView(&masked_.total, DType::i64, {1});
  }
  bool allowed(std::int64_t t, std::int64_t s) const {
    if (document_[static_cast<std::size_t>(t)] != document_[static_cast<std::size_t>(s)]) return false;
    if (masked_.mask.causality != Causal::none && s > t) return masked_.mask.has_prefix && s < prefix;
    if (masked_.mask.window_left != Mask::unbounded && s < t - masked_.mask.window_left) return false;
    if (blocks_.empty()) return true;
    return blocks_[static_cast<std::size_t>(t / block * ((masked_.total + block - 1) / block) + s / block)] != 0;
  }

  Masked masked_;
  AlignedArray query_, key_, value_, out_, key_pages_, value_pages_;
  std::vector<std::int64_t> ends_, document_, pages_;
  std::int64_t prefix_length_ = prefix;
  std::vector<std::uint8_t> blocks_;
  std::unique_ptr<AttentionPlan> plan_;
  AttentionInputs inputs_;
  double area_ = 0;
};

// Two parts of 8 heads x `length` rows. Bound by memory: what is counted are the bytes.
class MergeCase final : public BenchCase {
 public:
  MergeCase(std::int64_t length, Runtime runtime) : length_(length), runtime_(std::move(runtime)) {
    for (int part = 0; part < 3; ++part) {
      out_[part] = AlignedArray(static_cast<std::size_t>(heads * length * dim));
      lse_[part] = AlignedArray(static_cast<std::size_t>(heads * length));
      out_[part].fill_random(static_cast<std::uint64_t>(part + 1));
      lse_[part].fill_random(static_cast<std::uint64_t>(part + 4));
    }
    const auto outs = [&](int part) { return TensorView::of(out_[part].data(), {1, heads, length_, dim}); };
    const auto lses = [&](int part) { return TensorView::of(lse_[part].data(), {1, heads, length_}); };
    inputs_.out1 = outs(0), inputs_.lse1 = lses(0);
    inputs_.out2 = outs(1), inputs_.lse2 = lses(1);
    inputs_.out = outs(2), inputs_.lse = lses(2);
  }

  void run() const override { merge(runtime_, inputs_); }
  Check check() override {
    out_[2].fill(std::numeric_limits<float>::quiet_NaN());
    run();
    disturb(out_[2][0]);
    Check result;
    for (std::size_t r = 0; r < lse_[0].size(); ++r) {
      const double a = std::exp(static_cast<double>(lse_[0][r])), b = std::exp(static_cast<double>(lse_[1][r]));
      for (std::size_t d = r * dim; d < (r + 1) * dim; ++d) {
        const double x = static_cast<double>(out_[0][d]), y = static_cast<double>(out_[1][d]);
        result.take(out_[2][d], (a * x + b * y) / (a + b), 5e-7 * std::max(std::fabs(x), std::fabs(y)));
      }
    }
    return result;
  }
  void evict() const override {
    for (int part = 0; part < 3; ++part) {
      bench::evict(out_[part].data(), out_[part].size() * sizeof(float));
      bench::evict(lse_[part].data(), lse_[part].size() * sizeof(float));
    }
  }
  double flops() const override { return 0; }
  double bytes() const override { return 12.0 * static_cast<double>(out_[0].size() + lse_[0].size()); }

 private:
  std::int64_t length_;
  Runtime runtime_;
  AlignedArray out_[3], lse_[3];
  MergeInputs inputs_;
};

const std::vector<Masked>& masked_cases() {
  static const std::vector<Masked> cases = [] {
    const std::vector<std::int64_t> uneven = uneven_lengths(64);
    const std::int64_t total = std::accumulate(uneven.begin(), uneven.end(), std::int64_t{0});
    std::vector<Masked> all;
    all.push_back({"masks/dense-4096", 4096, {4096}, Mask::none()});
    all.push_back({"masks/causal-4096", 4096, {4096}, Mask::causal(Causal::top_left)});
    all.push_back({"masks/quarter-of-blocks-4096", 4096, {4096}, Mask::blocks(block, block)});
    all.push_back({"masks/window-256-16384", 16384, {16384}, Mask::causal(Causal::top_left) & Mask::window(256, 0)});
    all.push_back({"masks/prefix-4096", 4096, {4096}, Mask::causal(Causal::top_left) & Mask::prefix()});
    all.push_back({"masks/scattered-segments-4096", 4096, {4096}, Mask::segments(), true});
    all.push_back({"masks/pages-4096", 4096, {4096}, Mask::key_lengths(), false, true});
    all.push_back({"masks/documents-64", total, uneven, Mask::segments()});
    all.push_back({"masks/packed-64", total, uneven, Mask::packed()});
    all.push_back({"masks/packed-causal-64", total, uneven, Mask::packed() & Mask::causal(Causal::bottom_right)});
    return all;
  }();
  return cases;
}

}  // namespace

void register_masks(const SuiteOptions& options) {
  for (const Isa isa : options.isas) {
    for (const int threads : options.threads) {
      for (const Masked& masked : masked_cases()) {
        const double total = static_cast<double>(masked.total);
        if (too_slow(isa, 4.0 * static_cast<double>(heads * dim) * total * total)) continue;
        register_case(options, {masked.name, isa, threads, [&masked, isa, threads] {
                                  return std::make_unique<MaskCase>(masked, make_runtime(isa, threads));
                                }});
      }
      register_case(options, {"masks/merge-4096", isa, threads,
                              [isa, threads] { return std::make_unique<MergeCase>(4096, make_runtime(isa, threads)); }});
    }
  }
}

}  // namespace polyhead::bench
