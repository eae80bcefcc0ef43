#include "support/plugin_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "platform/cpu_limits.hpp"
#include "polyhead/error.hpp"
#include "support/plugin_guard.hpp"

namespace polyhead::bench {
namespace {

// A float that attention does not compute, compared byte by byte.
constexpr unsigned char margin_byte = 0xA5;
// Of the largest |value|, for elements that float64 is not computed for: an order above rounding, and below any wrong row.
constexpr double near_ours = 1e-4;

class Message {
 public:
  Message() { text_[0] = '\0'; }  // no more: it is made inside what is timed
  polyhead_bench_message view() { return {text_, sizeof text_}; }
  std::string text() const {
    const std::string reason = one_line(text_, sizeof text_);
    return reason.empty() ? "(it gives no reason)" : reason;
  }

 private:
  char text_[1000];
};

std::int64_t count_of(const TensorView& view) {
  return view.element_count();
}

float* data_of(const TensorView& view) {
  return static_cast<float*>(view.data);
}

// [batch, heads, length, dim], contiguous; without data.
polyhead_bench_operand operand(std::int64_t heads, std::int64_t length, std::int64_t dim) {
  const std::int64_t element = sizeof(float);
  polyhead_bench_operand result{};
  result.strides[0] = heads * length * dim * element;
  result.strides[1] = length * dim * element;
  result.strides[2] = dim * element;
  result.strides[3] = element;
  return result;
}

polyhead_bench_causal causal_code(Causal causal) {
  switch (causal) {
    case Causal::top_left:
      return POLYHEAD_BENCH_TOP_LEFT;
    case Causal::bottom_right:
      return POLYHEAD_BENCH_BOTTOM_RIGHT;
    default:
      return POLYHEAD_BENCH_NOT_CAUSAL;
  }
}

polyhead_bench_problem problem_of(const AttentionWorkload& workload, int threads) {
  polyhead_bench_problem problem{};
  problem.struct_size = sizeof problem;
  problem.dtype = POLYHEAD_BENCH_F32;
  problem.threads = threads;
  problem.batch = workload.batch;
  problem.heads = workload.heads;
  problem.kv_heads = workload.kv_heads;
  problem.query_length = workload.query_length;
  problem.key_length = workload.key_length;
  problem.head_dim = workload.head_dim;
  problem.value_dim = workload.value_dim;
  problem.scale = 1.0 / std::sqrt(static_cast<double>(workload.head_dim));
  problem.causal = causal_code(workload.causal);
  problem.window_left = workload.window_left;
  problem.window_right = workload.window_right;
  problem.query = operand(workload.heads, workload.query_length, workload.head_dim);
  problem.key = operand(workload.kv_heads, workload.key_length, workload.head_dim);
  problem.value = operand(workload.kv_heads, workload.key_length, workload.value_dim);
  problem.out = operand(workload.heads, workload.query_length, workload.value_dim);
  return problem;
}

// What a crash or an exception is reported with.
std::string doing(const PluginEngine& engine, const char* what, const AttentionWorkload& workload) {
  return engine.library + ", engine '" + engine.name + "', " + what + " " + workload.describe();
}

// Four chains, so that it keeps up with reading memory.
std::uint64_t hash(const void* data, std::size_t bytes, std::uint64_t seed) {
  constexpr std::uint64_t factor = 0x9E3779B97F4A7C15u;
  std::uint64_t chains[4] = {seed, seed + 1, seed + 2, seed + 3};
  const char* at = static_cast<const char*>(data);
  for (; bytes >= 32; at += 32, bytes -= 32) {
    std::uint64_t words[4];
    std::memcpy(words, at, 32);
    for (int i = 0; i < 4; ++i) chains[i] = (chains[i] ^ words[i]) * factor;
  }
  for (; bytes > 0; ++at, --bytes) chains[0] = (chains[0] ^ static_cast<unsigned char>(*at)) * factor;
  return ((chains[0] * factor + chains[1]) * factor + chains[2]) * factor + chains[3];
}

std::uint64_t hash(const AttentionInputs& inputs) {
  std::uint64_t result = 1;
  for (const TensorView* view : {&inputs.query, &inputs.key, &inputs.value, &inputs.key_lengths}) {
    if (view->empty()) continue;
    result = hash(view->data, static_cast<std::size_t>(count_of(*view) * size_in_bytes(view->dtype)), result);
  }
  return result;
}

// How the calling thread computes (rounding, flushing of denormals), without the flags.
#if defined(__x86_64__) || defined(__i386__)
std::uint64_t floating_point_modes() {
  return __builtin_ia32_stmxcsr() & ~0x3Fu;
}
void set_floating_point_modes(std::uint64_t modes) {
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(modes));
}
#elif defined(__aarch64__)
std::uint64_t floating_point_modes() {
  std::uint64_t modes = 0;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void set_floating_point_modes(std::uint64_t modes) {
  asm volatile("msr fpcr, %0" : : "r"(modes) : "memory");
}
#else
std::uint64_t floating_point_modes() {
  return 0;
}
void set_floating_point_modes(std::uint64_t) {}
#endif

// A plugin may change modes; what runs next must not feel it. A few cycles, since it is inside what is timed.
class KeepModes {
 public:
  KeepModes() : modes_(floating_point_modes()) {}
  ~KeepModes() {
    if (floating_point_modes() != modes_) set_floating_point_modes(modes_);
  }
  KeepModes(const KeepModes&) = delete;
  KeepModes& operator=(const KeepModes&) = delete;

 private:
  std::uint64_t modes_;
};

// Thread pools may pin the thread that starts them.
class KeepCpus {
 public:
  KeepCpus() : cpus_(platform::allowed_cpus()) {}
  ~KeepCpus() {
    if (platform::allowed_cpus() != cpus_) platform::set_current_thread_cpus(cpus_);
  }
  KeepCpus(const KeepCpus&) = delete;
  KeepCpus& operator=(const KeepCpus&) = delete;

 private:
  std::vector<int> cpus_;
};

}  // namespace

std::string plugin_refusal(const PluginEngine& engine, const AttentionWorkload& workload, int threads) {
  if (engine.functions->supports == nullptr) return "";
  polyhead_bench_problem problem = problem_of(workload, threads);
  const std::vector<std::int64_t> key_lengths = workload.key_lengths();
  problem.key_lengths = key_lengths.empty() ? nullptr : key_lengths.data();
  const std::string asking = doing(engine, "asked whether it serves", workload);
  Message message;
  const int answer = call_plugin(asking, [&] { return engine.functions->supports(&problem, message.view()); });
  return answer != 0 ? "" : message.text();
}

PluginCase::PluginCase(const PluginEngine& engine, const AttentionWorkload& workload, const AttentionCase& attention,
                       int threads)
    : engine_(engine),
      attention_(attention),
      out_count_(static_cast<std::size_t>(count_of(attention.inputs().out))),
      problem_(problem_of(workload, threads)),
      preparing_(doing(engine, "preparing", workload)),
      running_(doing(engine, "running on", workload)),
      destroying_(doing(engine, "done with", workload)) {
  out_ = AlignedArray(out_count_ + 2 * margin);
  const AttentionInputs& inputs = attention.inputs();
  problem_.key_lengths = static_cast<const std::int64_t*>(inputs.key_lengths.data);
  problem_.query.data = inputs.query.data;
  problem_.key.data = inputs.key.data;
  problem_.value.data = inputs.value.data;
  problem_.out.data = out();
}

PluginCase::~PluginCase() {
  if (handle_ == nullptr || engine_.functions->destroy == nullptr) return;
  try {
    call_plugin(destroying_, [&] { engine_.functions->destroy(handle_); });
  } catch (const Error&) {
    // What could be measured has been; there is nothing to take back.
  }
}

void PluginCase::prepare() {
  if (engine_.functions->prepare == nullptr) return;
  struct OtherValues {
    const PluginCase& self;
    explicit OtherValues(const PluginCase& plugin) : self(plugin) { self.negate_operands(); }
    ~OtherValues() { self.negate_operands(); }
  };
  const OtherValues other_values(*this);
  const KeepCpus keep_cpus;
  const KeepModes keep_modes;
  const std::uint64_t before = hash(attention_.inputs());
  Message message;
  const int status = call_plugin(preparing_, [&] { return engine_.functions->prepare(&problem_, &handle_, message.view()); });
  if (status != 0) throw Error(ErrorCode::internal, "plugin " + preparing_ + ": " + message.text());
  if (hash(attention_.inputs()) != before)
    throw Error(ErrorCode::internal, "plugin " + preparing_ + ": it writes to its inputs");
}

void PluginCase::run() {
  const KeepModes keep_modes;
  Message message;
  const int status = call_plugin(running_, [&] { return engine_.functions->run(&problem_, handle_, message.view()); });
  if (status != 0) throw Error(ErrorCode::internal, "plugin " + running_ + ": " + message.text());
}

PluginCase::Verdict PluginCase::check() {
  std::memset(out_.data(), margin_byte, margin * sizeof(float));
  std::memset(out() + out_count_, margin_byte, margin * sizeof(float));
  std::fill_n(out(), out_count_, std::numeric_limits<float>::quiet_NaN());
  const std::uint64_t before = hash(attention_.inputs());
  const KeepCpus keep_cpus;
  try {
    run();
  } catch (const Error& error) {
    Verdict verdict;
    verdict.fault = error.what();
    return verdict;
  }
  return judge(before);
}

PluginCase::Verdict PluginCase::judge(std::uint64_t operands_before) {
  Verdict verdict;
  if (hash(attention_.inputs()) != operands_before) {
    verdict.fault = "it writes to its inputs";
    return verdict;
  }
  const auto untouched = [](const float* from) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    return std::all_of(bytes, bytes + margin * sizeof(float), [](unsigned char byte) { return byte == margin_byte; });
  };
  if (!untouched(out_.data()) || !untouched(out() + out_count_)) {
    verdict.fault = "it writes outside its output";
    return verdict;
  }
  float* const ours = data_of(attention_.inputs().out);
  std::copy_n(out(), out_count_, ours);
  const Check sampled = attention_.compare();
  verdict.error = sampled.error;
  if (!sampled.passed()) {
    verdict.fault = "wrong result: " + sampled.describe();
    return verdict;
  }
  attention_.run();
  const TensorView& value = attention_.inputs().value;
  double largest = 0;
  for (std::int64_t i = 0; i < count_of(value); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(data_of(value)[i])));
  for (std::size_t i = 0; i < out_count_; ++i) {
    if (std::abs(static_cast<double>(out()[i]) - ours[i]) <= near_ours * largest) continue;
    std::ostringstream text;
    text << "wrong result: element " << i << " of its output is " << out()[i] << ", ours is " << ours[i];
    verdict.fault = text.str();
    return verdict;
  }
  return verdict;
}

PluginCase::Verdict PluginCase::check_on_other_values() {
  negate_operands();
  Verdict verdict = check();
  negate_operands();
  return verdict;
}

// Exact, needs no memory, and changes every result: the negated query and key leave scores as they are, the negated value
// turns the output round.
void PluginCase::negate_operands() const {
  const AttentionInputs& inputs = attention_.inputs();
  for (const TensorView* view : {&inputs.query, &inputs.key, &inputs.value}) {
    float* const data = data_of(*view);
    for (std::int64_t i = 0; i < count_of(*view); ++i) data[i] = -data[i];
  }
}

}  // namespace polyhead::bench
