// A plugin that does what plugins should not. POLYHEAD_HOSTILE says what; without it, one right engine.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include "polyhead/bench_plugin.h"

namespace {

std::string wish() {
  const char* const text = std::getenv("POLYHEAD_HOSTILE");
  return text == nullptr ? "" : text;
}

[[noreturn]] void crash() {
  volatile int* const nowhere = nullptr;
  *nowhere = 1;
  std::abort();
}

std::int64_t sink = 0;
// Not a tail call, and each level needs its own frame.
int overflow(volatile char* below) {
  volatile char frame[4096];
  frame[0] = below == nullptr ? '\0' : below[0];
  return overflow(frame) + frame[0];
}

struct Loading {
  Loading() {
    if (wish() == "crash-on-load") crash();
    if (wish() == "throw-on-load") throw std::runtime_error("thrown while loading");
    if (wish() == "exit-on-load") std::exit(0);
  }
} loading;

int calls = 0;
constexpr int calls_before_timing = 4;  // two checks, and two calls that tell how long one takes
std::vector<float> kept;

float* row_of(const polyhead_bench_operand& operand, std::int64_t b, std::int64_t h, std::int64_t position) {
  return reinterpret_cast<float*>(static_cast<char*>(operand.data) + b * operand.strides[0] + h * operand.strides[1] +
                                  position * operand.strides[2]);
}

// Right, for problems without a mask.
void attend(const polyhead_bench_problem& p) {
  std::vector<double> scores(static_cast<std::size_t>(p.key_length));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t g = h / (p.heads / p.kv_heads);
      for (std::int64_t t = 0; t < p.query_length; ++t) {
        const float* const query = row_of(p.query, b, h, t);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t s = 0; s < p.key_length; ++s) {
          const float* const key = row_of(p.key, b, g, s);
          double dot = 0;
          for (std::int64_t d = 0; d < p.head_dim; ++d) dot += static_cast<double>(query[d]) * key[d];
          scores[static_cast<std::size_t>(s)] = dot * p.scale;
          largest = std::fmax(largest, dot * p.scale);
        }
        std::vector<double> out(static_cast<std::size_t>(p.value_dim));
        for (std::int64_t s = 0; s < p.key_length; ++s) {
          const double weight = std::exp(scores[static_cast<std::size_t>(s)] - largest);
          const float* const value = row_of(p.value, b, g, s);
          sum += weight;
          for (std::int64_t e = 0; e < p.value_dim; ++e) out[static_cast<std::size_t>(e)] += weight * value[e];
        }
        for (std::int64_t e = 0; e < p.value_dim; ++e)
          row_of(p.out, b, h, t)[e] = static_cast<float>(out[static_cast<std::size_t>(e)] / sum);
      }
    }
  }
}

#if defined(__x86_64__)
constexpr unsigned flush_modes = 0x8040u;
bool modes_are_changed() {
  return (_mm_getcsr() & flush_modes) != 0;
}
void change_modes() {
  _mm_setcsr(_mm_getcsr() | flush_modes);
}
#else
bool modes_are_changed() {
  return false;
}
void change_modes() {}
#endif

#if defined(__linux__)
int count_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return CPU_COUNT(&set);
}
const int cpus_at_first = count_cpus();
void pin() {
  const int cpu = sched_getcpu();
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}
#else
int count_cpus() {
  return 1;
}
const int cpus_at_first = 1;
void pin() {}
#endif

std::size_t out_count(const polyhead_bench_problem& p) {
  return static_cast<std::size_t>(p.batch * p.heads * p.query_length * p.value_dim);
}

std::int32_t say(polyhead_bench_message message, const std::string& text) {
  std::strncpy(message.text, text.c_str(), message.capacity - 1);
  message.text[message.capacity - 1] = '\0';
  return 1;
}

std::int32_t supports(const polyhead_bench_problem*, polyhead_bench_message message) {
  if (wish() == "crash-when-asked") crash();
  if (wish() == "refuse-without-reason") return 0;
  if (wish() != "refuse") return 1;
  say(message, "only on\nTuesdays");
  return 0;
}

std::int32_t prepare(const polyhead_bench_problem* p, void** handle, polyhead_bench_message message) {
  if (wish() == "fail-to-prepare") return say(message, "no licence");
  if (wish() == "compute-while-preparing") {
    attend(*p);
    const float* const out = row_of(p->out, 0, 0, 0);
    kept.assign(out, out + out_count(*p));
  }
  if (wish() == "write-input-while-preparing") row_of(p->key, 0, 0, 0)[0] = 7;
  if (wish() == "pin-while-preparing") pin();
  *handle = new int(1);
  return 0;
}

std::int32_t run(const polyhead_bench_problem* p, void*, polyhead_bench_message message) {
  const std::string how = wish();
  ++calls;
  float* const out = row_of(p->out, 0, 0, 0);
  if (how == "crash") crash();
  if (how == "crash-in-a-thread") std::thread([] { crash(); }).join();
  if (how == "abort") std::abort();
  if (how == "overflow-the-stack") sink += overflow(nullptr);
  if (how == "exit") std::exit(0);
  if (how == "throw") throw std::runtime_error("out of\nideas");
  if (how == "throw-an-int") throw 1;
  if (how == "throw-in-a-thread") std::thread([] { throw std::runtime_error("unseen"); }).join();
  if (how == "fail") return say(message, "the moon is wrong");
  if (how == "fail-without-reason") return -3;
  if (how == "fail-later" && calls > calls_before_timing) return say(message, "tired");
  if (how == "endless-message") {
    std::memset(message.text, 'x', message.capacity);  // no end
    return 1;
  }
  if (how == "do-nothing" || (how == "lazy" && calls > calls_before_timing)) return 0;
  if (how == "compute-while-preparing" || (how == "keep-the-first-result" && !kept.empty())) {
    std::memcpy(out, kept.data(), kept.size() * sizeof(float));
    return 0;
  }
  if (modes_are_changed()) return say(message, "floating-point modes stayed changed");
  if (count_cpus() != cpus_at_first) return say(message, "the thread stayed pinned");
  attend(*p);
  if (how == "change-modes") change_modes();
  if (how == "keep-the-first-result") kept.assign(out, out + out_count(*p));
  if (how == "wrong") out[0] += 0.01f;
  if (how == "wrong-in-one-element") out[out_count(*p) / 2 + 1] += 0.01f;  // of a row that is not sampled
  if (how == "nan") out[out_count(*p) - 1] = std::numeric_limits<float>::quiet_NaN();
  if (how == "write-before") out[-1] = 0;
  if (how == "write-behind") out[out_count(*p)] = 0;
  if (how == "write-input") row_of(p->value, 0, 0, 0)[0] = 7;
  return 0;
}

void destroy(void* handle) {
  if (wish() == "throw-at-the-end") throw std::runtime_error("at the end");
  delete static_cast<int*>(handle);
}

polyhead_bench_engine engine{
    sizeof(polyhead_bench_engine), POLYHEAD_BENCH_PLUGIN_VERSION, "hostile", "for tests", supports, prepare, run, destroy};

}  // namespace

const polyhead_bench_engine* polyhead_bench_plugin(std::int32_t index) {
  const std::string how = wish();
  if (how == "endless-engines") {
    static std::string names[100];
    static polyhead_bench_engine engines[100];
    names[index] = "engine" + std::to_string(index);
    engines[index] = engine;
    engines[index].name = names[index].c_str();
    return &engines[index];
  }
  if (how == "no-engine" || index > (how == "same-name-twice" ? 1 : 0)) return nullptr;
  if (how == "throw-when-listed") throw std::runtime_error("thrown while listing");
  if (how == "wild-pointer") return reinterpret_cast<const polyhead_bench_engine*>(static_cast<std::uintptr_t>(16));
  if (how == "newer-version") engine.version = POLYHEAD_BENCH_PLUGIN_VERSION + 1;
  if (how == "small-structure") engine.struct_size = 16;
  if (how == "no-name") engine.name = nullptr;
  if (how == "name-with-blanks") engine.name = "a name\nof two lines";
  if (how == "long-name") engine.name = "a-name-of-more-than-forty-characters-is-too-long";
  if (how == "name-of-an-isa") engine.name = "avx2";
  if (how == "no-run") engine.run = nullptr;
  if (how == "run-alone") {
    engine.supports = nullptr;
    engine.prepare = nullptr;
    engine.destroy = nullptr;
    engine.description = nullptr;
  }
  return &engine;
}
