// An image of 12 x 17 pixels: scores fall with the distance in rows and columns. Against a bias tensor of the same numbers,
// which takes 204 x 204 floats a head.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  const std::int64_t width = 17, pixels = 12 * width, heads = 3;
  Problem problem(1, heads, heads, pixels, pixels, 40, 4);
  const float weights[] = {1.0f, 0.25f, 0.05f};
  const Manhattan manhattan = {weights, static_cast<std::int32_t>(width)};
  const auto distance = [&](std::int64_t t, std::int64_t s) {
    return static_cast<double>(std::abs(t / width - s / width) + std::abs(t % width - s % width));
  };
  const polyhead::Runtime runtime;

  std::vector<float> bias;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t t = 0; t < pixels; ++t)
      for (std::int64_t s = 0; s < pixels; ++s) bias.push_back(-weights[h] * static_cast<float>(distance(t, s)));
  polyhead::AttentionOptions options;
  options.mask = polyhead::Mask::bias();
  polyhead::AttentionInputs inputs = problem.inputs();
  inputs.bias = polyhead::TensorView::of(bias.data(), {1, heads, pixels, pixels});
  polyhead::attention(runtime, inputs, options);
  const std::vector<float> by_bias = problem.out;

  options.mask = polyhead::Mask::none();
  options.score_mod = manhattan_mod(manhattan);
  polyhead::attention(runtime, problem.inputs(), options);
  const bool close = problem.is_close("a bias tensor", by_bias);
  return problem.is_close("the formula", problem.by_formula([&](double score, auto, auto h, auto t, auto s) {
    return score - static_cast<double>(weights[h]) * distance(t, s);
  })) && close
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
