// polyhead run layer
#include <fmt/format.h>

#include <memory>

#include "command.hpp"
#include "io/safetensors.hpp"
#include "polyhead/error.hpp"
#include "polyhead/multi_head_attention.hpp"
#include "run_files.hpp"

namespace polyhead::cli {
namespace {

struct Options {
  RuntimeChoice runtime;
  MaskOptions mask;
  std::string weights, prefix, input, key_input, value_input, out;
  std::int64_t heads = 0, kv_heads = 0;
  std::optional<double> scale;
  std::string precision = "strict", weight_type = "f32";
};

// The arrays that own what the views of MultiHeadAttentionWeights show.
struct Weights {
  io::Array query, key, value, output, query_bias, key_bias, value_bias, output_bias;
  MultiHeadAttentionWeights views;
};

// Rows [part * count, (part + 1) * count) of three projections stacked along the first dimension.
TensorView third(const TensorView& stacked, int part) {
  TensorView view = stacked;
  view.shape[0] /= 3;
  view.data = static_cast<float*>(stacked.data) + part * view.shape[0] * stacked.strides[0];
  return view;
}

class WeightReader {
 public:
  WeightReader(io::SafetensorsFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  bool contains(const std::string& tensor) const { return file_.contains(prefix_ + tensor); }

  io::Array read(const std::string& tensor, int rank) {
    io::Array array = file_.read_f32(prefix_ + tensor);
    if (array.view().rank != rank) {
      throw Error(ErrorCode::io_error, fmt::format("{}: {}{} is {}, expected {} dimension{}", file_.path(), prefix_, tensor,
                                                   shape_text(array.view()), rank, rank == 1 ? "" : "s"));
    }
    return array;
  }

  io::Array read_if_there(const std::string& tensor, int rank) { return contains(tensor) ? read(tensor, rank) : io::Array(); }

  // nn.MultiheadAttention's stacked tensors hold query, key and value in equal parts.
  io::Array read_stacked(const std::string& tensor, int rank) {
    io::Array array = read(tensor, rank);
    if (array.view().shape[0] % 3 != 0) {
      throw Error(ErrorCode::io_error, fmt::format("{}: {}{} is {}, expected a first size that three projections share",
                                                   file_.path(), prefix_, tensor, shape_text(array.view())));
    }
    return array;
  }

  [[noreturn]] void no_projections() const {
    throw Error(ErrorCode::io_error,
                fmt::format("{}: no query projection under '{}': looked for in_proj_weight, q_proj_weight and "
                            "q_proj.weight (--prefix names what comes before)",
                            file_.path(), prefix_));
  }

 private:
  io::SafetensorsFile& file_;
  std::string prefix_;
};

Weights read_weights(const std::string& path, const std::string& prefix) {
  io::SafetensorsFile file(path);
  WeightReader reader(file, prefix);
  Weights weights;
  MultiHeadAttentionWeights& views = weights.views;
  if (reader.contains("in_proj_weight")) {
    weights.query = reader.read_stacked("in_proj_weight", 2);
    views.query = third(weights.query.view(), 0);
    views.key = third(weights.query.view(), 1);
    views.value = third(weights.query.view(), 2);
  } else {
    const bool torch_names = reader.contains("q_proj_weight");
    if (!torch_names && !reader.contains("q_proj.weight")) reader.no_projections();
    const char* const ending = torch_names ? "_proj_weight" : "_proj.weight";
    weights.query = reader.read(std::string("q") + ending, 2);
    weights.key = reader.read(std::string("k") + ending, 2);
    weights.value = reader.read(std::string("v") + ending, 2);
    views.query = weights.query.view();
    views.key = weights.key.view();
    views.value = weights.value.view();
  }
  if (reader.contains("in_proj_bias")) {
    weights.query_bias = reader.read_stacked("in_proj_bias", 1);
    views.query_bias = third(weights.query_bias.view(), 0);
    views.key_bias = third(weights.query_bias.view(), 1);
    views.value_bias = third(weights.query_bias.view(), 2);
  } else {
    weights.query_bias = reader.read_if_there("q_proj.bias", 1);
    weights.key_bias = reader.read_if_there("k_proj.bias", 1);
    weights.value_bias = reader.read_if_there("v_proj.bias", 1);
    views.query_bias = weights.query_bias.view();
    views.key_bias = weights.key_bias.view();
    views.value_bias = weights.value_bias.view();
  }
  const std::string output = reader.contains("o_proj.weight") ? "o_proj" : "out_proj";
  weights.output = reader.read(output + ".weight", 2);
  weights.output_bias = reader.read_if_there(output + ".bias", 1);
  views.output = weights.output.view();
  views.output_bias = weights.output_bias.view();
  return weights;
}

std::int64_t divide(std::int64_t rows, std::int64_t parts, const char* projection, const char* what) {
  if (parts < 1 || rows % parts != 0 || rows == 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the {} projection has {} rows, which {} {} do not divide", projection, rows, parts, what));
  }
  return rows / parts;
}

MultiHeadAttentionSpec spec_from(const Options& options, const MultiHeadAttentionWeights& weights) {
  MultiHeadAttentionSpec spec;
  spec.d_model = weights.query.shape[1];
  spec.heads = options.heads;
  spec.head_dim = divide(weights.query.shape[0], options.heads, "query", "heads");
  spec.kv_heads =
      options.kv_heads > 0 ? options.kv_heads : divide(weights.key.shape[0], spec.head_dim, "key", "elements a head");
  spec.value_dim = divide(weights.value.shape[0], spec.kv_heads, "value", "key/value heads");
  spec.key_input_dim = weights.key.shape[1];
  spec.value_input_dim = weights.value.shape[1];
  spec.scale = options.scale;
  spec.precision = parse_precision(options.precision);
  spec.weights = parse_weight_type(options.weight_type);
  spec.mask = options.mask.mask();
  return spec;
}

// [T, width] is a batch of one.
TensorView batched(const TensorView& view) {
  if (view.rank != 2) return view;
  const std::int64_t shape[] = {1, view.shape[0], view.shape[1]};
  const std::int64_t strides[] = {0, view.strides[0], view.strides[1]};
  return TensorView(view.data, view.dtype, 3, shape, strides);
}

void run_layer(Options& options) {
  const io::Array input = read_f32("--input", options.input, 2, 3);
  const io::Array key = options.key_input.empty() ? io::Array() : read_f32("--key-input", options.key_input, 2, 3);
  const io::Array value = options.value_input.empty() ? io::Array() : read_f32("--value-input", options.value_input, 2, 3);
  options.mask.read();
  const Weights weights = read_weights(options.weights, options.prefix);
  const MultiHeadAttentionSpec spec = spec_from(options, weights.views);
  const Runtime runtime = options.runtime.make();
  const MultiHeadAttention layer(spec, weights.views, runtime);

  const TensorView x = batched(input.view());
  io::Array out(DType::f32, input.view().rank == 2 ? std::vector<std::int64_t>{x.shape[1], spec.d_model}
                                                   : std::vector<std::int64_t>{x.shape[0], x.shape[1], spec.d_model});
  MultiHeadAttentionInputs inputs;
  inputs.query = x;
  inputs.key = batched(key.view());
  inputs.value = batched(value.view());
  inputs.out = batched(out.view());
  inputs.key_lengths = options.mask.key_lengths();
  inputs.boolean_mask = options.mask.boolean_mask();
  inputs.bias = options.mask.bias();
  layer.run(inputs);
  io::write_npy(options.out, out.view());
  fmt::print("{}: {}\n", options.out, shape_text(out.view()));
}

}  // namespace

Command add_run_layer(CLI::App& parent) {
  auto options = std::make_shared<Options>();
  CLI::App* const app =
      parent.add_subcommand("layer", "A multi-head attention layer: projections, attention, output projection");
  app->add_option("--weights", options->weights, "Tensors in F32, F16 or BF16, named as below")
      ->required()
      ->type_name("SAFETENSORS");
  app->add_option("--heads", options->heads, "Query heads")->required()->check(CLI::Range(1, 65536))->type_name("H");
  app->add_option("--kv-heads", options->kv_heads, "Key/value heads (rows of the key projection / head size)")
      ->check(CLI::Range(1, 65536))
      ->type_name("G");
  app->add_option("--prefix", options->prefix, "What the tensors' names begin with, as in encoder.layers.0.self_attn.")
      ->type_name("TEXT");
  app->add_option("--input", options->input, "float32 [B, T, d_model] or [T, d_model]")->required()->type_name("NPY");
  app->add_option("--key-input", options->key_input, "float32 [B, S, width]: what keys are made of (the input)")
      ->type_name("NPY");
  app->add_option("--value-input", options->value_input, "float32 [B, S, width]: what values are made of (the key input)")
      ->type_name("NPY");
  app->add_option("--out", options->out, "Written: float32, shaped as the input")->required()->type_name("NPY");
  app->add_option("--scale", options->scale, "Factor on the scores (1 / sqrt(head size))")->type_name("X");
  app->add_option("--precision", options->precision, "strict, or fast: a larger, stated error where there is a faster kernel")
      ->type_name("NAME");
  app->add_option("--weight-type", options->weight_type,
                  "What weights are kept as: f32, bf16, f16, int8, int4, int8_dynamic or bf16_dynamic (the last two round "
                  "inputs too), each with its stated error")
      ->type_name("NAME");
  options->mask.add_options(*app);
  options->runtime.add_options(*app);
  app->footer(
      "\nTensors, each with the prefix before it; rows are output features:\n"
      "  in_proj_weight, in_proj_bias            query, key and value stacked (torch's nn.MultiheadAttention)\n"
      "  q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias   the same class with kdim or vdim\n"
      "  q_proj.weight, q_proj.bias, k_proj..., v_proj...            apart; grouped heads are allowed\n"
      "  out_proj.weight, out_proj.bias, or o_proj...                output projection\n"
      "Biases may be missing.\n"
      "\nExamples:\n"
      "  polyhead run layer --weights layer.safetensors --heads 12 --input x.npy --out y.npy\n"
      "  polyhead run layer --weights model.safetensors --prefix decoder.layers.3.encoder_attn. --heads 8 \\\n"
      "      --input x.npy --key-input memory.npy --key-lengths n.npy --out y.npy");
  return {app, [options] { run_layer(*options); }};
}

}  // namespace polyhead::cli
