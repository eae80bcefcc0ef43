// Neighbourhood attention on an image of 40 x 31 pixels: each sees the 7 x 7 around it. Against a boolean mask, which takes a
// byte for each pair of pixels.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  const std::int64_t width = 31, pixels = 40 * width, radius = 3;
  Problem problem(1, 2, 1, pixels, pixels, 32, 5);
  const Neighbourhood neighbourhood = {static_cast<std::int32_t>(width), static_cast<std::int32_t>(radius)};
  const auto sees = [&](std::int64_t t, std::int64_t s) {
    return std::abs(t / width - s / width) <= radius && std::abs(t % width - s % width) <= radius;
  };
  const polyhead::Runtime runtime;

  std::vector<std::uint8_t> allowed;
  for (std::int64_t t = 0; t < pixels; ++t)
    for (std::int64_t s = 0; s < pixels; ++s) allowed.push_back(sees(t, s));
  polyhead::AttentionOptions options;
  options.mask = polyhead::Mask::boolean();
  polyhead::AttentionInputs inputs = problem.inputs();
  inputs.boolean_mask = polyhead::TensorView(allowed.data(), polyhead::DType::u8, {pixels, pixels});
  polyhead::attention(runtime, inputs, options);
  const std::vector<float> by_mask = problem.out;

  options.mask = polyhead::Mask::none();
  options.score_mod = neighbourhood_mod(neighbourhood);
  polyhead::attention(runtime, problem.inputs(), options);
  const bool close = problem.is_close("a boolean mask", by_mask);
  return problem.is_close("the formula", problem.by_formula([&](double score, auto, auto, auto t, auto s) {
    return sees(t, s) ? score : -std::numeric_limits<double>::infinity();
  })) && close
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
