#include "polyhead/bert.hpp"

#include <map>
#include <utility>

#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/layer_checks.hpp"
#include "api/layer_rows.hpp"
#include "api/runtime_state.hpp"
#include "io/bert_config.hpp"
#include "io/safetensors.hpp"
#include "layer/bert_embeddings.hpp"
#include "layer/encoder_stack.hpp"
#include "layer/encoder_weights.hpp"
#include "layer/geometry.hpp"

namespace polyhead {
namespace {

// The weights of a model folder, by Hugging Face's names.
class WeightFile {
 public:
  explicit WeightFile(const std::string& path) : file_(path) {
    // A model saved with a task's head has its encoder under "bert.".
    prefix_ = file_.contains("bert.embeddings.word_embeddings.weight") ? "bert." : "";
  }

  // f32 of exactly this shape. Views stay valid as long as this object. Errors: io_error, naming the file and the tensor.
  const TensorView& get(const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::string full = prefix_ + name;
    const auto found = file_.tensors().find(full);
    if (found != file_.tensors().end() && found->second.shape != shape) {
      io::fail(file_.path(), "tensor '" + full + "' is " + text(found->second.shape) + ", config.json asks for " + text(shape));
    }
    return arrays_.emplace(full, file_.read_f32(full)).first->second.view();
  }

  // Frees what get has read so far.
  void forget() { arrays_.clear(); }

 private:
  static std::string text(const std::vector<std::int64_t>& shape) {
    std::string result = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return result + "]";
  }

  io::SafetensorsFile file_;
  std::string prefix_;
  std::map<std::string, io::Array> arrays_;
};

EncoderBlockSpec block_spec(const BertConfig& config) {
  EncoderBlockSpec spec;
  spec.attention.d_model = config.hidden_size;
  spec.attention.heads = config.heads;
  spec.attention = api::resolve("BertConfig", spec.attention);
  spec.feed_forward_dim = config.intermediate_size;
  spec.activation = config.activation;
  spec.norm = NormPlacement::post;
  spec.norm_epsilon = config.norm_epsilon;
  return spec;
}

EncoderBlockWeights block_weights(WeightFile& file, const BertConfig& config, std::int64_t index) {
  const std::string prefix = "encoder.layer." + std::to_string(index) + ".";
  const std::int64_t hidden = config.hidden_size, between = config.intermediate_size;
  const auto matrix = [&](const char* name, std::int64_t out, std::int64_t in) { return file.get(prefix + name, {out, in}); };
  const auto vector = [&](const char* name, std::int64_t size) { return file.get(prefix + name, {size}); };
  EncoderBlockWeights weights;
  weights.attention.query = matrix("attention.self.query.weight", hidden, hidden);
  weights.attention.key = matrix("attention.self.key.weight", hidden, hidden);
  weights.attention.value = matrix("attention.self.value.weight", hidden, hidden);
  weights.attention.output = matrix("attention.output.dense.weight", hidden, hidden);
  weights.attention.query_bias = vector("attention.self.query.bias", hidden);
  weights.attention.key_bias = vector("attention.self.key.bias", hidden);
  weights.attention.value_bias = vector("attention.self.value.bias", hidden);
  weights.attention.output_bias = vector("attention.output.dense.bias", hidden);
  weights.attention_norm_gamma = vector("attention.output.LayerNorm.weight", hidden);
  weights.attention_norm_beta = vector("attention.output.LayerNorm.bias", hidden);
  weights.feed_forward_in = matrix("intermediate.dense.weight", between, hidden);
  weights.feed_forward_in_bias = vector("intermediate.dense.bias", between);
  weights.feed_forward_out = matrix("output.dense.weight", hidden, between);
  weights.feed_forward_out_bias = vector("output.dense.bias", hidden);
  weights.feed_forward_norm_gamma = vector("output.LayerNorm.weight", hidden);
  weights.feed_forward_norm_beta = vector("output.LayerNorm.bias", hidden);
  return weights;
}

platform::AlignedBuffer copy_rows(const TensorView& table) {
  platform::AlignedBuffer buffer(static_cast<std::size_t>(table.element_count()) * sizeof(float));
  const auto* from = static_cast<const float*>(table.data);
  std::copy(from, from + table.element_count(), buffer.as<float>());
  return buffer;
}

layer::BertEmbeddings read_embeddings(WeightFile& file, const BertConfig& config, const simd::LayerNormKernel& layer_norm) {
  const std::int64_t hidden = config.hidden_size;
  platform::AlignedBuffer words = copy_rows(file.get("embeddings.word_embeddings.weight", {config.vocabulary_size, hidden}));
  file.forget();
  // Every token has type 0, so its embedding is added to the positions' once.
  platform::AlignedBuffer positions =
      copy_rows(file.get("embeddings.position_embeddings.weight", {config.max_positions, hidden}));
  const auto* type =
      static_cast<const float*>(file.get("embeddings.token_type_embeddings.weight", {config.token_types, hidden}).data);
  for (std::int64_t i = 0; i < config.max_positions * hidden; ++i) positions.as<float>()[i] += type[i % hidden];
  platform::AlignedBuffer gamma = layer::copy_vector(file.get("embeddings.LayerNorm.weight", {hidden}));
  platform::AlignedBuffer beta = layer::copy_vector(file.get("embeddings.LayerNorm.bias", {hidden}));
  file.forget();
  return layer::BertEmbeddings(std::move(words), std::move(positions), std::move(gamma), std::move(beta), hidden,
                               config.norm_epsilon, layer_norm);
}

std::vector<layer::EncoderLayer> read_layers(WeightFile& file, const BertConfig& config, const simd::GemmKernel& gemm) {
  std::vector<layer::EncoderLayer> layers;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers.push_back(layer::pack_encoder_layer(block_weights(file, config, i), gemm));
    file.forget();  // one block at a time: the peak is the packed model and one block more
  }
  return layers;
}

}  // namespace

namespace detail {

class BertState {
 public:
  BertState(const std::string& folder, const Runtime& runtime, const BertOptions& options)
      : BertState(folder, *runtime.state(), kernel_for(options, *runtime.state())) {}

  const BertConfig& config() const noexcept { return config_; }

  void token_embeddings(const TensorView& token_ids, const TensorView& lengths, const TensorView& out,
                        const RunOptions& options) const {
    check_ids(token_ids, lengths, options);
    const std::int64_t batch = token_ids.shape[0], length = token_ids.shape[1];
    api::check_tensor("out", out, DType::f32, {batch, length, config_.hidden_size});
    check_out(out, token_ids, lengths);
    layer::EncoderStack::LeaseHandle lease(stack_.leases());
    api::read_lengths(lengths, batch, length, &lease->lengths);
    const layer::BertEmbeddings::Tokens tokens = checked_tokens(token_ids, lease->lengths);
    api::zero_padding(out, lease->lengths);
    const api::StridedSink sink(out);
    stack_.run(*lease, tokens, &sink, options.cancel);
  }

  void encode(const TensorView& token_ids, const TensorView& lengths, const TensorView& out, bool normalise,
              const RunOptions& options) const {
    check_ids(token_ids, lengths, options);
    const std::int64_t batch = token_ids.shape[0];
    api::check_tensor("out", out, DType::f32, {batch, config_.hidden_size});
    check_out(out, token_ids, lengths);
    layer::EncoderStack::LeaseHandle lease(stack_.leases());
    api::read_lengths(lengths, batch, token_ids.shape[1], &lease->lengths);
    const layer::BertEmbeddings::Tokens tokens = checked_tokens(token_ids, lease->lengths);
    stack_.run(*lease, tokens, nullptr, options.cancel);
    for (std::int64_t b = 0; b < batch; ++b) {
      const auto index = static_cast<std::size_t>(b);
      layer::mean_pool(layer::row_at(lease->hidden, lease->hidden_stride, lease->first_row[index]), lease->hidden_stride,
                       lease->lengths[index], config_.hidden_size, normalise,
                       static_cast<float*>(out.data) + b * out.strides[0], out.strides[1]);
    }
  }

 private:
  // Looked for before anything is read.
  static const simd::GemmKernel& kernel_for(const BertOptions& options, const RuntimeState& runtime) {
    api::check_weight_type("BertOptions.weights", options.weights);
    return dispatch::gemm_kernel(runtime.kernels(), options.weights);
  }

  BertState(const std::string& folder, const RuntimeState& runtime, const simd::GemmKernel& gemm)
      : config_(io::read_bert_config(folder + "/config.json")),
        file_(std::make_unique<WeightFile>(folder + "/model.safetensors")),
        embeddings_(read_embeddings(*file_, config_, *runtime.kernels().layer_norm_f32)),
        stack_(layer::encoder_shape(block_spec(config_), api::scale_of(block_spec(config_).attention)),
               read_layers(*file_, config_, gemm), runtime.kernels(), runtime.scheduler()) {
    file_.reset();
  }

  void check_ids(const TensorView& token_ids, const TensorView& lengths, const RunOptions& options) const {
    const bool is_integer = token_ids.dtype == DType::i32 || token_ids.dtype == DType::i64;
    if (!is_integer || token_ids.rank != 2) {
      api::fail("token_ids", token_ids.empty() ? "not given" : token_ids.describe(), "i32 or i64 [batch, length]");
    }
    api::check_memory("token_ids", token_ids);
    if (token_ids.shape[1] > config_.max_positions) {
      api::fail("token_ids' length", std::to_string(token_ids.shape[1]),
                "at most the model's max_positions (" + std::to_string(config_.max_positions) + ")");
    }
    if (!lengths.empty()) api::check_memory("lengths", lengths);
    api::check_run_options(options);
  }

  static void check_out(const TensorView& out, const TensorView& token_ids, const TensorView& lengths) {
    api::check_output("out", out);
    api::check_no_overlap("out", out, "token_ids", token_ids);
    if (!lengths.empty()) api::check_no_overlap("out", out, "lengths", lengths);
  }

  // Ids at real positions must be words; what lies in the padding is never read.
  layer::BertEmbeddings::Tokens checked_tokens(const TensorView& token_ids, const std::vector<std::int64_t>& lengths) const {
    const layer::BertEmbeddings::Tokens tokens(embeddings_, token_ids.data, token_ids.dtype == DType::i32, token_ids.strides[0],
                                               token_ids.strides[1]);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      for (std::int64_t t = 0; t < lengths[b]; ++t) {
        const std::int64_t id = tokens.id(static_cast<std::int64_t>(b), t);
        if (id < 0 || id >= config_.vocabulary_size) {
          api::fail(("token_ids[" + std::to_string(b) + ", " + std::to_string(t) + "]").c_str(), std::to_string(id),
                    "0 to " + std::to_string(config_.vocabulary_size - 1));
        }
      }
    }
    return tokens;
  }

  BertConfig config_;
  std::unique_ptr<WeightFile> file_;  // while loading
  layer::BertEmbeddings embeddings_;
  layer::EncoderStack stack_;
};

}  // namespace detail

BertEncoder BertEncoder::load(const std::string& folder, const Runtime& runtime, const BertOptions& options) {
  BertEncoder encoder;
  encoder.state_ = api::entry([&] { return std::make_shared<const detail::BertState>(folder, runtime, options); });
  return encoder;
}

const BertConfig& BertEncoder::config() const noexcept {
  return state_->config();
}

void BertEncoder::token_embeddings(const TensorView& token_ids, const TensorView& lengths, const TensorView& out,
                                   const RunOptions& options) const {
  api::entry([&] { state_->token_embeddings(token_ids, lengths, out, options); });
}

void BertEncoder::encode(const TensorView& token_ids, const TensorView& lengths, const TensorView& out, bool normalise,
                         const RunOptions& options) const {
  api::entry([&] { state_->encode(token_ids, lengths, out, normalise, options); });
}

}  // namespace polyhead
