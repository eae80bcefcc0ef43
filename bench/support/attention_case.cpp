#include "support/attention_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "polyhead/error.hpp"
#include "support/evict.hpp"
#include "support/machine.hpp"

namespace polyhead::bench {
namespace {

std::set<std::int64_t> samples(std::int64_t count, std::int64_t wanted) {
  std::set<std::int64_t> chosen;
  for (std::int64_t i = 0; i < wanted; ++i) chosen.insert(wanted == 1 ? 0 : i * (count - 1) / (wanted - 1));
  return chosen;
}

// Keys from `first` to `last`, both inclusive, that one query may see; none when first > last.
struct Visible {
  std::int64_t first, last;
};

Visible visible_keys(const AttentionWorkload& workload, std::int64_t key_length, std::int64_t query) {
  const std::int64_t offset = workload.causal == Causal::bottom_right ? key_length - workload.query_length : 0;
  Visible visible{0, key_length - 1};
  if (workload.causal != Causal::none) visible.last = std::min(visible.last, query + offset);
  if (workload.window_left != Mask::unbounded) visible.first = std::max(visible.first, query + offset - workload.window_left);
  if (workload.window_right != Mask::unbounded) {  // which may be as large as a number can be
    visible.last = std::min(visible.last, query + offset + std::min(workload.window_right, key_length + workload.query_length));
  }
  return visible;
}

std::size_t count_of(const std::vector<std::int64_t>& sizes) {
  std::size_t count = 1;
  for (const std::int64_t size : sizes) count *= static_cast<std::size_t>(size);
  return count;
}

// The workload, when its operands fit into the memory there is: a system that grants more than it has ends the process, or a
// neighbour's, when the memory is written to.
const AttentionWorkload& fitting(const AttentionWorkload& w) {
  const auto product = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
  };
  const double queries = product(w.batch, w.heads, w.query_length), keys = product(w.batch, w.kv_heads, w.key_length);
  const double element = static_cast<double>(size_in_bytes(w.dtype));
  const double bytes = element * (queries + keys) * (static_cast<double>(w.head_dim) + static_cast<double>(w.value_dim)) +
                       (w.padded ? sizeof(std::int64_t) * static_cast<double>(w.batch) : 0.0);
  const std::int64_t available = available_memory(platform::read_file);
  if (available > 0 && bytes > static_cast<double>(available)) {
    std::ostringstream text;
    text.precision(3);
    text << "its operands take " << bytes * 1e-9 << " GB, and " << static_cast<double>(available) * 1e-9
         << " GB of memory are available";
    throw Error(ErrorCode::out_of_memory, text.str());
  }
  return w;
}

Operand given_or_random(const char* name, DType dtype, AlignedArray given, const std::vector<std::int64_t>& sizes,
                        std::uint64_t seed) {
  if (given.size() == 0) {
    given = AlignedArray(count_of(sizes));
    given.fill_random(seed);
  }
  if (given.size() != count_of(sizes)) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + ": has " + std::to_string(given.size()) +
                                                 " elements; expected " + std::to_string(count_of(sizes)));
  }
  return Operand(dtype, std::move(given));
}

}  // namespace

AttentionCase::AttentionCase(const AttentionWorkload& workload, const Runtime& runtime)
    : AttentionCase(workload, runtime, Operands{}) {}

AttentionCase::AttentionCase(const AttentionWorkload& workload, const Runtime& runtime, Operands operands)
    : workload_(fitting(workload)),
      key_lengths_(operands.key_lengths.empty() ? workload.key_lengths() : std::move(operands.key_lengths)) {
  const auto& w = workload_;
  query_ = given_or_random("query", w.dtype, std::move(operands.query), {w.batch, w.heads, w.query_length, w.head_dim}, 1);
  key_ = given_or_random("key", w.dtype, std::move(operands.key), {w.batch, w.kv_heads, w.key_length, w.head_dim}, 2);
  value_ = given_or_random("value", w.dtype, std::move(operands.value), {w.batch, w.kv_heads, w.key_length, w.value_dim}, 3);
  out_ = Operand(w.dtype, count_of({w.batch, w.heads, w.query_length, w.value_dim}));
  if (w.padded && key_lengths_.size() != static_cast<std::size_t>(w.batch)) {
    throw Error(ErrorCode::invalid_argument, "key lengths: there are " + std::to_string(key_lengths_.size()) +
                                                 "; expected one for each of " + std::to_string(w.batch) + " batch items");
  }

  AttentionSpec spec;
  spec.batch = w.batch;
  spec.heads = w.heads;
  spec.kv_heads = w.kv_heads;
  spec.query_length = w.query_length;
  spec.key_length = w.key_length;
  spec.head_dim = w.head_dim;
  spec.value_dim = w.value_dim;
  spec.dtype = w.dtype;
  spec.mask = w.mask();
  plan_ = std::make_unique<AttentionPlan>(spec, runtime);

  inputs_.query = TensorView(query_.data(), w.dtype, {w.batch, w.heads, w.query_length, w.head_dim});
  inputs_.key = TensorView(key_.data(), w.dtype, {w.batch, w.kv_heads, w.key_length, w.head_dim});
  inputs_.value = TensorView(value_.data(), w.dtype, {w.batch, w.kv_heads, w.key_length, w.value_dim});
  inputs_.out = TensorView(out_.data(), w.dtype, {w.batch, w.heads, w.query_length, w.value_dim});
  if (w.padded) inputs_.key_lengths = TensorView(key_lengths_.data(), DType::i64, {w.batch});
}

void AttentionCase::poison() {
  out_.fill(std::numeric_limits<float>::quiet_NaN());
}

Check AttentionCase::check() {
  poison();
  run();
  return compare_disturbed([this](float& element) { disturb(element); });
}

Check AttentionCase::compare_disturbed(const std::function<void(float&)>& change) {
  float first = out_.get(0);
  change(first);
  out_.set(0, first);
  return compare();
}

Check AttentionCase::compare() const {
  std::vector<float> room;
  return compare(out_.numbers(0, out_.size(), room));
}

void AttentionCase::evict() const {
  for (const Operand* operand : {&query_, &key_, &value_, &out_}) bench::evict(operand->data(), operand->bytes());
}

Check AttentionCase::compare(const float* out) const {
  const auto& w = workload_;
  const double scale = 1.0 / std::sqrt(static_cast<double>(w.head_dim));
  const std::int64_t group = w.heads / w.kv_heads;
  std::vector<float> query_room, key_room, value_room;
  std::vector<double> scores(static_cast<std::size_t>(w.key_length)), row(static_cast<std::size_t>(w.value_dim));
  Check result;
  for (const std::int64_t item : samples(w.batch, 2)) {
    const std::int64_t key_length = w.padded ? key_lengths_[static_cast<std::size_t>(item)] : w.key_length;
    for (const std::int64_t head : samples(w.heads, 3)) {
      const std::int64_t kv_row = (item * w.kv_heads + head / group) * w.key_length;
      const float* const keys = key_.numbers(static_cast<std::size_t>(kv_row * w.head_dim),
                                             static_cast<std::size_t>(w.key_length * w.head_dim), key_room);
      const float* const values = value_.numbers(static_cast<std::size_t>(kv_row * w.value_dim),
                                                 static_cast<std::size_t>(w.key_length * w.value_dim), value_room);
      for (const std::int64_t t : samples(w.query_length, 8)) {
        const std::int64_t query_row = (item * w.heads + head) * w.query_length + t;
        const float* const query =
            query_.numbers(static_cast<std::size_t>(query_row * w.head_dim), static_cast<std::size_t>(w.head_dim), query_room);
        const auto [first, last] = visible_keys(w, key_length, t);
        double largest_score = -std::numeric_limits<double>::infinity(), largest_product = 0, largest_value = 0;
        for (std::int64_t s = first; s <= last; ++s) {
          double dot = 0, magnitude = 0;
          for (std::int64_t d = 0; d < w.head_dim; ++d) {
            const double product = static_cast<double>(query[d]) * keys[s * w.head_dim + d];
            dot += product;
            magnitude += std::abs(product);
          }
          scores[static_cast<std::size_t>(s)] = scale * dot;
          largest_score = std::max(largest_score, scale * dot);
          largest_product = std::max(largest_product, scale * magnitude);
        }
        double denominator = 0;
        std::fill(row.begin(), row.end(), 0.0);
        for (std::int64_t s = first; s <= last; ++s) {
          const double weight = std::exp(scores[static_cast<std::size_t>(s)] - largest_score);
          denominator += weight;
          for (std::int64_t e = 0; e < w.value_dim; ++e) {
            const double value = values[s * w.value_dim + e];
            row[static_cast<std::size_t>(e)] += weight * value;
            largest_value = std::max(largest_value, std::abs(value));
          }
        }
        const double bound = largest_value * (2e-6 + allowed_share_ + std::ldexp(largest_product, -22)) +
                             weight_rounding_error(w.dtype, largest_value);
        for (std::int64_t e = 0; e < w.value_dim; ++e) {
          const double expected = denominator > 0 ? row[static_cast<std::size_t>(e)] / denominator : 0.0;
          result.take(out[query_row * w.value_dim + e], expected, bound + rounding_error(w.dtype, expected));
        }
      }
    }
  }
  return result;
}

double AttentionCase::flops() const {
  double pairs = 0;
  for (std::int64_t item = 0; item < workload_.batch; ++item) {
    const std::int64_t key_length = workload_.padded ? key_lengths_[static_cast<std::size_t>(item)] : workload_.key_length;
    for (std::int64_t t = 0; t < workload_.query_length; ++t) {
      const auto [first, last] = visible_keys(workload_, key_length, t);
      pairs += static_cast<double>(std::max<std::int64_t>(0, last - first + 1));
    }
  }
  return 2.0 * pairs * static_cast<double>(workload_.heads * (workload_.head_dim + workload_.value_dim));
}

double AttentionCase::bytes() const {
  double keys = static_cast<double>(workload_.batch * workload_.key_length);
  if (workload_.padded) {
    keys = 0;
    for (const std::int64_t length : key_lengths_) keys += static_cast<double>(length);
  }
  const auto row = static_cast<double>(workload_.kv_heads * (workload_.head_dim + workload_.value_dim));
  return static_cast<double>(size_in_bytes(workload_.dtype)) * (static_cast<double>(query_.size() + out_.size()) + keys * row);
}

}  // namespace polyhead::bench
