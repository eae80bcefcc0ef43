// instruction_counts: makes the calls whose instructions are counted, each once after a warm-up, one thread.
//
//   instruction_counts [--check] [--twice=NAME] | --build
//
// `polyhead_perf instructions` runs it under callgrind, which counts what happens inside polyhead_counted_call and writes one
// total for each call; the names printed here, one a line in the order of the calls, say what they are of. --check, for a run
// without callgrind, first compares every result with the right one. --twice, for tests, makes the call NAME
// twice as long. --build says what, besides the sources, decides the counts.
// Shapes are small, since callgrind takes some fifty times as long, and take every kernel through its full tiles and its tails.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/cpu_features.hpp"
#include "dispatch/kernel_table.hpp"
#include "support/aligned_array.hpp"
#include "support/attention_case.hpp"
#include "support/context.hpp"
#include "support/layer_case.hpp"
#include "support/workload.hpp"

// Callgrind starts and stops counting at this name, so the call must stay one.
extern "C" __attribute__((noinline, visibility("default"))) void polyhead_counted_call(const std::function<void()>& call) {
  call();
}

namespace {

using namespace polyhead;

struct Counted {
  std::string name;
  std::function<void()> call;
  std::function<bench::Check()> check;
};

std::size_t count(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

template <typename Case>
Counted counted(const std::string& name, std::shared_ptr<Case> timed) {
  return {name, [timed] { timed->run(); }, [timed] { return timed->check(); }};
}

Runtime runtime_of(Isa isa) {
  RuntimeOptions options;
  options.isa = isa;
  options.threads = 1;
  return Runtime(options);
}

Counted attention(const std::string& name, const std::string& shape, Isa isa, Causal causal = Causal::none,
                  bool padded = false) {
  bench::AttentionWorkload workload = bench::parse_shape(shape);
  workload.causal = causal;
  workload.padded = padded;
  return counted("attention/" + name, std::make_shared<bench::AttentionCase>(workload, runtime_of(isa)));
}

// A kernel's results are compared with the reference kernel's: the tests of kernels hold the float64 comparison.
bench::Check compare(const bench::AlignedArray& got, const bench::AlignedArray& expected) {
  bench::Check check;
  for (std::size_t i = 0; i < got.size(); ++i) check.take(got[i], expected[i], 1e-4 * (1.0 + std::abs(expected[i])));
  return check;
}

struct Gemm {
  bench::AlignedArray a, weight, bias, c, packed;
  simd::GemmF32Args args;
};

std::shared_ptr<Gemm> make_gemm(const simd::GemmKernel& kernel, std::int64_t m, std::int64_t n, std::int64_t k) {
  auto gemm = std::make_shared<Gemm>();
  gemm->a = bench::AlignedArray(count(m, k));
  gemm->weight = bench::AlignedArray(count(n, k));
  gemm->bias = bench::AlignedArray(count(n, 1));
  gemm->c = bench::AlignedArray(count(m, n));
  gemm->packed = bench::AlignedArray(kernel.packed_bytes(n, k) / sizeof(float) + 1);
  gemm->a.fill_random(1);
  gemm->weight.fill_random(2, 1.0 / std::sqrt(static_cast<double>(k)));
  gemm->bias.fill_random(3);
  simd::PackF32Args pack;
  pack.weight = gemm->weight.data();
  pack.n_stride = k * 4;
  pack.k_stride = 4;
  pack.n = n;
  pack.k = k;
  pack.packed = gemm->packed.data();
  kernel.pack(pack);
  gemm->args.a = gemm->a.data();
  gemm->args.a_stride = k * 4;
  gemm->args.packed = gemm->packed.data();
  gemm->args.bias = gemm->bias.data();
  gemm->args.c = gemm->c.data();
  gemm->args.c_stride = n * 4;
  gemm->args.m = m;
  gemm->args.n = gemm->args.n_end = n;
  gemm->args.k = k;
  return gemm;
}

Counted gemm(const std::string& name, Isa isa, std::int64_t m, std::int64_t n, std::int64_t k) {
  const simd::GemmKernel* const kernel = dispatch::kernel_table(isa).gemm_f32;
  const auto gemm = make_gemm(*kernel, m, n, k);
  return {"gemm/" + name, [=] { kernel->run(gemm->args); },
          [=] {
            const simd::GemmKernel& reference = *dispatch::kernel_table(Isa::reference).gemm_f32;
            const auto expected = make_gemm(reference, m, n, k);
            reference.run(expected->args);
            kernel->run(gemm->args);
            return compare(gemm->c, expected->c);
          }};
}

struct Softmax {
  bench::AlignedArray x, y;
  simd::SoftmaxF32Args args;
};

std::shared_ptr<Softmax> make_softmax(std::int64_t rows, std::int64_t dim) {
  auto softmax = std::make_shared<Softmax>();
  softmax->x = bench::AlignedArray(count(rows, dim));
  softmax->y = bench::AlignedArray(count(rows, dim));
  softmax->x.fill_random(1, 3.0);
  softmax->args.x = softmax->x.data();
  softmax->args.y = softmax->y.data();
  softmax->args.x_stride = softmax->args.y_stride = dim * 4;
  softmax->args.rows = rows;
  softmax->args.dim = dim;
  return softmax;
}

Counted softmax(const std::string& name, Isa isa, std::int64_t rows, std::int64_t dim) {
  const simd::SoftmaxKernel* const kernel = dispatch::kernel_table(isa).softmax_f32;
  const auto softmax = make_softmax(rows, dim);
  return {"softmax/" + name, [=] { kernel->run(softmax->args); },
          [=] {
            const auto expected = make_softmax(rows, dim);
            dispatch::kernel_table(Isa::reference).softmax_f32->run(expected->args);
            kernel->run(softmax->args);
            return compare(softmax->y, expected->y);
          }};
}

Counted layer(const std::string& name, Isa isa, bench::LayerKind kind) {
  const bench::LayerWorkload workload = {"counted", 2, 13, 96, 4};
  return counted(name, std::make_shared<bench::LayerCase>(workload, kind, runtime_of(isa)));
}

// Made one at a time, so that a call's count doesn't depend on what else there is.
std::vector<std::function<Counted()>> counted_calls(Isa isa) {
  return {
      [=] { return attention("plain", "b=1,h=2,t=101,s=130,d=64", isa); },
      [=] { return attention("causal", "b=1,h=2,t=101,s=101,d=64", isa, Causal::bottom_right); },
      [=] { return attention("padded", "b=3,h=2,t=70,s=70,d=32", isa, Causal::none, true); },
      [=] { return attention("tiny", "b=1,h=8,t=16,s=16,d=64", isa); },
      [=] { return attention("decode", "b=1,h=8,g=2,t=1,s=515,d=128", isa); },
      [=] { return gemm("33x200x130", isa, 33, 200, 130); },
      [=] { return gemm("1x400x300", isa, 1, 400, 300); },
      [=] { return softmax("20x197", isa, 20, 197); },
      [=] { return layer("layer", isa, bench::LayerKind::attention); },
      [=] { return layer("encoder", isa, bench::LayerKind::encoder); },
  };
}

// Up to what valgrind knows; wider ones have no counts.
bool countable(Isa isa) {
  return isa == Isa::sse4 || isa == Isa::avx2 || isa == Isa::neon;
}

// Compiler, library of vectors, processor: "gcc 12.2.0, Highway 1.0.3, x86-64".
std::string build() {
#if defined(__clang__)
  const std::string compiler = std::string("clang ") + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#else
  const std::string compiler = std::string("gcc ") + __VERSION__;
#endif
#if defined(__x86_64__)
  const char* const processor = "x86-64";
#else
  const char* const processor = "arm64";
#endif
  std::string highway;
  for (const auto& [key, value] : bench::context_entries(default_isa())) {
    if (key == "highway") highway = value;
  }
  return compiler + ", Highway " + highway + ", " + processor;
}

}  // namespace

int main(int argc, char** argv) {
  bool check = false;
  std::string twice;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--build") == 0) {
      std::printf("%s\n", build().c_str());
      return 0;
    }
    if (std::strcmp(argv[i], "--check") == 0) {
      check = true;
    } else if (std::strncmp(argv[i], "--twice=", 8) == 0) {
      twice = argv[i] + 8;
    } else {
      std::fprintf(stderr, "instruction_counts: '%s' is none of --build, --check, --twice=NAME\n", argv[i]);
      return 2;
    }
  }
  try {
    for (const Isa isa : available_isas()) {
      if (!countable(isa)) continue;
      for (const auto& make : counted_calls(isa)) {
        Counted counted = make();
        const std::string name = counted.name + "/" + polyhead::name(isa);
        if (check) {
          if (const bench::Check result = counted.check(); !result.passed()) {
            std::fprintf(stderr, "instruction_counts: %s: wrong result: %s\n", name.c_str(), result.describe().c_str());
            return 1;
          }
        }
        counted.call();
        if (name == twice) counted.call = [call = counted.call] { call(), call(); };
        polyhead_counted_call(counted.call);
        std::printf("%s\n", name.c_str());
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_counts: %s\n", error.what());
    return 2;
  }
}
