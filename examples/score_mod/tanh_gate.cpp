// Heads whose scores count the more the farther a key is away; in decoding as well as for many queries.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  const float rates[] = {0.5f, 0.1f, 0.02f, 0.004f};
  const TanhGate gate = {rates};
  const polyhead::Runtime runtime;
  polyhead::AttentionOptions options;
  options.score_mod = tanh_gate_mod(gate);
  bool close = true;
  for (const std::int64_t queries : {1, 3, 70}) {
    Problem problem(2, 4, 2, queries, 300, 32, 3);
    polyhead::attention(runtime, problem.inputs(), options);
    close = problem.is_close("the formula", problem.by_formula([&](double score, auto, auto h, auto t, auto s) {
      return score * std::tanh(static_cast<double>(rates[h]) * static_cast<double>(std::abs(t - s)));
    })) && close;
  }
  return close ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
