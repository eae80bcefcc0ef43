// The softcap as a score modification, against the built-in one and the formula.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  Problem problem(1, 4, 4, 90, 200, 48, 2);
  const Softcap softcap = {1.5f};
  const polyhead::Runtime runtime;
  polyhead::AttentionOptions options;
  options.softcap = 1.5;
  polyhead::attention(runtime, problem.inputs(), options);
  const std::vector<float> built_in = problem.out;

  options.softcap = 0;
  options.score_mod = softcap_mod(softcap);
  polyhead::attention(runtime, problem.inputs(), options);
  const bool close = problem.is_close("the built-in", built_in);
  return problem.is_close("the formula", problem.by_formula([](double score, auto, auto, auto, auto) {
    return 1.5 * std::tanh(score / 1.5);
  })) && close
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
