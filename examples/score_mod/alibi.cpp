// ALiBi as a score modification, against the built-in one and the formula.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  Problem problem(2, 8, 2, 100, 130, 64, 1);
  std::vector<float> slopes;
  for (int h = 0; h < 8; ++h) slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
  const Alibi alibi = {slopes.data(), 30};
  const polyhead::Runtime runtime;
  polyhead::AttentionOptions options;
  options.mask = polyhead::Mask::causal(polyhead::Causal::bottom_right);

  options.has_alibi = true;
  polyhead::AttentionInputs inputs = problem.inputs();
  inputs.alibi_slopes = polyhead::TensorView::of(slopes.data(), {8});
  polyhead::attention(runtime, inputs, options);
  const std::vector<float> built_in = problem.out;

  options.has_alibi = false;
  options.score_mod = alibi_mod(alibi);
  polyhead::attention(runtime, problem.inputs(), options);
  const bool close = problem.is_close("the built-in", built_in);
  return problem.is_close("the formula", problem.by_formula([&](double score, auto, auto h, auto t, auto s) {
    if (s > t + 30) return -std::numeric_limits<double>::infinity();
    return score - static_cast<double>(slopes[static_cast<std::size_t>(h)]) * static_cast<double>(std::abs(t + 30 - s));
  })) && close
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
