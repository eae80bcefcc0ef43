// Documents one after another, each token seeing its own document up to itself. Against the built-in segments.
#include "mods.hpp"
#include "problem.hpp"

int main() try {
  const std::int64_t length = 700;
  Problem problem(1, 4, 2, length, length, 64, 6);
  std::vector<std::int32_t> document_of(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) document_of[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * i / 60000);
  const Documents documents = {document_of.data()};
  const polyhead::Runtime runtime;

  polyhead::AttentionOptions options;
  options.mask = polyhead::Mask::segments() & polyhead::Mask::causal(polyhead::Causal::top_left);
  polyhead::AttentionInputs inputs = problem.inputs();
  inputs.query_segments = inputs.key_segments = polyhead::TensorView(document_of.data(), polyhead::DType::i32, {1, length});
  polyhead::attention(runtime, inputs, options);
  const std::vector<float> built_in = problem.out;

  options.mask = polyhead::Mask::causal(polyhead::Causal::top_left);
  options.score_mod = document_mod(documents);
  polyhead::attention(runtime, problem.inputs(), options);
  const bool close = problem.is_close("the built-in segments", built_in);
  return problem.is_close("the formula", problem.by_formula([&](double score, auto, auto, auto t, auto s) {
    const bool sees = s <= t && document_of[static_cast<std::size_t>(t)] == document_of[static_cast<std::size_t>(s)];
    return sees ? score : -std::numeric_limits<double>::infinity();
  })) && close
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
