// What is done to scores, built in and as score modifications through xsimd, beside plain attention of the same shape: all in
// the group masks/, for comparing in pairs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "polyhead/attention.hpp"
#include "suite.hpp"
#include "support/aligned_array.hpp"
#include "support/evict.hpp"
#if defined(POLYHEAD_BENCH_SCORE_MODS)
#include "score_mod/mods.hpp"  // the examples'
#endif

namespace polyhead::bench {
namespace {

constexpr std::int64_t heads = 8, dim = 64, length = 1024, side = 32;  // an image of side x side
constexpr float cap = 3.0f;

// boolean: seven in ten pairs, thrown about. shown: all of them, half: the first half of the keys, padding: the same by one
// row.
enum class Change { none, bias, boolean, shown, half, padding, alibi, softcap, t5, swin };

struct Changed {
  const char* name;
  Change change;
  bool by_mod = false;
};

// The bucket of key s for query t: 8 distances have buckets of their own, 8 more share up to 128, likewise behind the query.
std::int64_t t5_bucket(std::int64_t t, std::int64_t s) {
  const std::int64_t distance = std::abs(s - t), above = s > t ? 16 : 0;
  if (distance < 8) return above + distance;
  std::int64_t bucket = 8;  // + floor(8 * log(distance / 8) / log(16)), which is floor(log2(distance^2 / 64))
  while (bucket < 15 && distance * distance >= std::int64_t{64} << (bucket - 7)) ++bucket;
  return above + bucket;
}

std::int64_t swin_place(std::int64_t t, std::int64_t s) {
  return (t / side - s / side + side - 1) * (2 * side - 1) + t % side - s % side + side - 1;
}

// 8 heads x 1,024 queries and keys.
class ChangeCase final : public BenchCase {
 public:
  ChangeCase(const Changed& changed, const Runtime& runtime)
      : changed_(changed), query_(operand(1)), key_(operand(2)), value_(operand(3)), out_(query_.size()) {
    AttentionSpec spec;
    spec.heads = heads;
    spec.query_length = spec.key_length = length;
    spec.head_dim = dim;
    const auto view = [&](const AlignedArray& array) { return TensorView::of(array.data(), {1, heads, length, dim}); };
    inputs_.query = view(query_), inputs_.key = view(key_), inputs_.value = view(value_), inputs_.out = view(out_);
    for (std::int64_t h = 0; h < heads; ++h) slopes_[h] = std::exp2(-static_cast<float>(h + 1));
    if (!changed.by_mod) build_in(spec);
#if defined(POLYHEAD_BENCH_SCORE_MODS)
    if (changed.by_mod) spec.score_mod = changed.change == Change::alibi ? alibi_mod(alibi_) : softcap_mod(softcap_);
#endif
    plan_ = std::make_unique<AttentionPlan>(spec, runtime);
  }

  void run() const override { plan_->run(inputs_); }

  Check check() override {
    out_.fill(std::numeric_limits<float>::quiet_NaN());
    run();
    disturb(out_[0]);
    Check result;
    std::vector<double> score(length);
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = h * 7; t < length; t += 89) {
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, magnitude = 0, most = 0;
        for (std::int64_t s = 0; s < length; ++s) {
          double dot = 0, absolute = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            const double term = static_cast<double>(row(query_, h, t)[d]) * static_cast<double>(row(key_, h, s)[d]);
            dot += term, absolute += std::fabs(term);
            most = std::max(most, std::fabs(static_cast<double>(row(value_, h, s)[d])));
          }
          const double changed = change(dot / 8, h, t, s);
          score[static_cast<std::size_t>(s)] = changed;
          largest = std::max(largest, changed);
          magnitude = std::max(magnitude, absolute / 8);
          if (std::isfinite(changed)) magnitude = std::max(magnitude, std::fabs(changed));
        }
        for (double& s : score) sum += s = std::exp(s - largest);
        for (std::int64_t d = 0; d < dim; ++d) {
          double expected = 0;
          for (std::int64_t s = 0; s < length; ++s)
            expected += score[static_cast<std::size_t>(s)] * static_cast<double>(row(value_, h, s)[d]);
          result.take(row(out_, h, t)[d], expected / sum, most * (2e-6 + 0x1p-22 * magnitude) + 2.4e-38);
        }
      }
    return result;
  }

  void evict() const override {
    for (const AlignedArray* array : {&query_, &key_, &value_, &out_, &table_})
      bench::evict(array->data(), array->size() * sizeof(float));
    bench::evict(allowed_.data(), allowed_.size());
  }
  // Of all pairs, but where half of the keys are padding.
  double flops() const override {
    const bool halved = changed_.change == Change::half || changed_.change == Change::padding;
    return (halved ? 2.0 : 4.0) * static_cast<double>(heads * length * length * dim);
  }
  double bytes() const override {
    return 16.0 * static_cast<double>(out_.size()) + 4.0 * static_cast<double>(table_.size()) +
           static_cast<double>(allowed_.size());
  }

 private:
  // What the change needs of spec and inputs; table_ holds the numbers that it adds.
  void build_in(AttentionSpec& spec) {
    switch (changed_.change) {
      case Change::none:
        break;
      case Change::bias:
        spec.mask = Mask::bias();
        table_ = AlignedArray(static_cast<std::size_t>(heads * length * length));
        inputs_.bias = TensorView::of(table_.data(), {1, heads, length, length});
        break;
      case Change::boolean:
        spec.mask = Mask::boolean();
        for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(length * length); ++i)
          allowed_.push_back((i * 0x9E3779B97F4A7C15u >> 40) % 10 < 7 ? 1 : 0);
        inputs_.boolean_mask = TensorView(allowed_.data(), DType::u8, {1, 1, length, length});
        break;
      case Change::shown:
      case Change::half:
      case Change::padding: {
        const std::int64_t rows = changed_.change == Change::padding ? 1 : length;
        spec.mask = Mask::boolean();
        for (std::int64_t i = 0; i < rows * length; ++i)
          allowed_.push_back(changed_.change == Change::shown || i % length < length / 2 ? 1 : 0);
        inputs_.boolean_mask = TensorView(allowed_.data(), DType::u8, {1, 1, rows, length});
        break;
      }
      case Change::alibi:
        spec.has_alibi = true;
        inputs_.alibi_slopes = TensorView::of(slopes_, {heads});
        break;
      case Change::softcap:
        spec.softcap = static_cast<double>(cap);
        break;
      case Change::t5:
      case Change::swin:
        spec.relative_bias = changed_.change == Change::t5 ? RelativeBias::t5() : RelativeBias::swin(side, side);
        table_ = AlignedArray(static_cast<std::size_t>(spec.relative_bias.table_rows() * heads));
        inputs_.relative_bias_table = TensorView::of(table_.data(), {spec.relative_bias.table_rows(), heads});
        break;
    }
    table_.fill_random(4);
  }

  double change(double score, std::int64_t h, std::int64_t t, std::int64_t s) const {
    const auto added = [&](std::int64_t at) { return score + static_cast<double>(table_[static_cast<std::size_t>(at)]); };
    switch (changed_.change) {
      case Change::none:
        break;
      case Change::bias:
        return added((h * length + t) * length + s);
      case Change::boolean:
      case Change::shown:
      case Change::half:
        return allowed_[static_cast<std::size_t>(t * length + s)] ? score : -std::numeric_limits<double>::infinity();
      case Change::padding:
        return allowed_[static_cast<std::size_t>(s)] ? score : -std::numeric_limits<double>::infinity();
      case Change::alibi:
        return score - static_cast<double>(slopes_[h]) * std::fabs(static_cast<double>(t - s));
      case Change::softcap:
        return static_cast<double>(cap) * std::tanh(score / static_cast<double>(cap));
      case Change::t5:
        return added(t5_bucket(t, s) * heads + h);
      case Change::swin:
        return added(swin_place(t, s) * heads + h);
    }
    return score;
  }

  static AlignedArray operand(std::uint64_t seed) {
    AlignedArray array(static_cast<std::size_t>(heads * length * dim));
    array.fill_random(seed);
    return array;
  }
  const float* row(const AlignedArray& array, std::int64_t h, std::int64_t t) const {
    return array.data() + (h * length + t) * dim;
  }

  Changed changed_;
  AlignedArray query_, key_, value_, out_, table_;
  std::vector<std::uint8_t> allowed_;
  float slopes_[heads] = {};
#if defined(POLYHEAD_BENCH_SCORE_MODS)
  const Alibi alibi_ = {slopes_, 0};
  const Softcap softcap_ = {cap};
#endif
  std::unique_ptr<AttentionPlan> plan_;
  AttentionInputs inputs_;
};

constexpr Changed changed_cases[] = {
    {"masks/plain-1024", Change::none},
    {"masks/bias-1024", Change::bias},
    {"masks/boolean-1024", Change::boolean},
    {"masks/boolean-shown-1024", Change::shown},
    {"masks/boolean-half-1024", Change::half},
    {"masks/padding-1024", Change::padding},
    {"masks/alibi-1024", Change::alibi},
    {"masks/softcap-1024", Change::softcap},
    {"masks/t5-1024", Change::t5},
    {"masks/swin-1024", Change::swin},
#if defined(POLYHEAD_BENCH_SCORE_MODS)
    {"masks/alibi-score-mod-1024", Change::alibi, true},
    {"masks/softcap-score-mod-1024", Change::softcap, true},
#endif
};

}  // namespace

void register_score_changes(const SuiteOptions& options) {
  for (const Isa isa : options.isas) {
    if (too_slow(isa, 4.0 * static_cast<double>(heads * dim * length * length))) continue;
    for (const int threads : options.threads)
      for (const Changed& changed : changed_cases) {
        register_case(options, {changed.name, isa, threads, [&changed, isa, threads] {
                                  return std::make_unique<ChangeCase>(changed, make_runtime(isa, threads));
                                }});
      }
  }
}

}  // namespace polyhead::bench
