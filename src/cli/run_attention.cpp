// polyhead run attention
#include <fmt/format.h>

#include <memory>

#include "command.hpp"
#include "polyhead/attention.hpp"
#include "run_files.hpp"

namespace polyhead::cli {
namespace {

struct Options {
  RuntimeChoice runtime;
  MaskOptions mask;
  std::string query, key, value, out, lse;
  std::optional<double> scale;
  std::string precision = "strict";
  bool explain = false;
};

void run_attention(Options& options) {
  const io::Array query = read_operand("--query", options.query);
  const io::Array key = read_operand("--key", options.key);
  const io::Array value = read_operand("--value", options.value);
  options.mask.read();
  const TensorView& q = query.view();

  AttentionSpec spec;
  spec.batch = q.shape[0];
  spec.heads = q.shape[1];
  spec.kv_heads = key.view().shape[1];
  spec.query_length = q.shape[2];
  spec.key_length = key.view().shape[2];
  spec.head_dim = q.shape[3];
  spec.value_dim = value.view().shape[3];
  spec.dtype = q.dtype;
  spec.scale = options.scale;
  spec.precision = parse_precision(options.precision);
  spec.mask = options.mask.mask();
  const Runtime runtime = options.runtime.make();
  const AttentionPlan plan(spec, runtime);
  if (options.explain) fmt::print("{}\n", plan.explain());

  const io::Array out(spec.dtype, {spec.batch, spec.heads, spec.query_length, spec.value_dim});
  const io::Array lse = options.lse.empty() ? io::Array() : io::Array(DType::f32, {spec.batch, spec.heads, spec.query_length});
  AttentionInputs inputs;
  inputs.query = q;
  inputs.key = key.view();
  inputs.value = value.view();
  inputs.out = out.view();
  inputs.lse = lse.view();
  inputs.key_lengths = options.mask.key_lengths();
  inputs.boolean_mask = options.mask.boolean_mask();
  inputs.bias = options.mask.bias();
  plan.run(inputs);
  io::write_npy(options.out, out.view());
  if (!options.lse.empty()) io::write_npy(options.lse, lse.view());
  fmt::print("{}: {}\n", options.out, shape_text(out.view()));
}

}  // namespace

Command add_run_attention(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* const app = parent.add_subcommand("attention", "Scaled dot-product attention on .npy files");
  app->add_option("--query", options->query, "float32 or float16 [B, H, T, D]")->required()->type_name("NPY");
  app->add_option("--key", options->key, "[B, G, S, D] of query's type; G divides H")->required()->type_name("NPY");
  app->add_option("--value", options->value, "[B, G, S, E] of query's type")->required()->type_name("NPY");
  app->add_option("--out", options->out, "Written: [B, H, T, E] of query's type")->required()->type_name("NPY");
  app->add_option("--lse", options->lse, "Written: float32 [B, H, T], the natural log of each softmax denominator")
      ->type_name("NPY");
  app->add_option("--scale", options->scale, "Factor on the scores (1 / sqrt(D))")->type_name("X");
  app->add_option("--precision", options->precision, "strict, or fast: a larger, stated error where there is a faster kernel")
      ->type_name("NAME");
  options->mask.add_options(*app);
  app->add_flag("--explain", options->explain, "Print the plan: which kernel, why, and how the work is cut");
  options->runtime.add_options(*app);
  app->footer(
      "\nB batch, H query heads, G key/value heads, T queries, S keys, D and E head sizes. Parts of the mask intersect; a "
      "query\n"
      "that may see no key gives zeros, and -inf in --lse.\n"
      "\nExamples:\n"
      "  polyhead run attention --query q.npy --key k.npy --value v.npy --out o.npy\n"
      "  polyhead run attention --query q.npy --key k.npy --value v.npy --out o.npy --causal bottom-right --window 255,0\n"
      "  polyhead run attention --query q.npy --key k.npy --value v.npy --out o.npy --key-lengths n.npy --lse l.npy --explain");
  return {app, [options] { run_attention(*options); }};
}

}  // namespace polyhead::cli
