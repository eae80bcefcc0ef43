#include "polyhead/transformer.hpp"

#include <cmath>
#include <utility>

#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/layer_checks.hpp"
#include "api/layer_rows.hpp"
#include "api/runtime_state.hpp"
#include "layer/encoder_stack.hpp"
#include "layer/encoder_weights.hpp"
#include "layer/layer_norm.hpp"

namespace polyhead {
namespace {

using api::check_size;
using api::check_tensor;
using api::check_vector;
using api::fail;

void check_activation(const char* name, ActivationKind kind) {
  if (static_cast<int>(kind) > static_cast<int>(ActivationKind::gelu_tanh)) {
    fail(name, std::to_string(static_cast<int>(kind)), "an ActivationKind");
  }
}

void check_epsilon(const char* name, double epsilon) {
  if (!std::isfinite(epsilon) || epsilon < 0) fail(name, std::to_string(epsilon), "a finite number of at least 0");
}

EncoderBlockSpec resolve_block(EncoderBlockSpec spec) {
  spec.attention = api::resolve("EncoderBlockSpec.attention", spec.attention);
  const MultiHeadAttentionSpec& attention = spec.attention;
  const std::pair<const char*, std::int64_t> widths[] = {
      {"EncoderBlockSpec.attention.key_input_dim", attention.key_input_dim},
      {"EncoderBlockSpec.attention.value_input_dim", attention.value_input_dim}};
  for (const auto& [width_name, width] : widths) {
    if (width != attention.d_model)
      fail(width_name, std::to_string(width), "d_model (" + std::to_string(attention.d_model) + ")");
  }
  const Mask& mask = attention.mask;
  if (mask.has_boolean || mask.has_bias || mask.has_offsets) {
    fail("EncoderBlockSpec.attention.mask",
         mask.has_boolean ? "boolean"
         : mask.has_bias  ? "a bias"
                          : "one with offsets",
         "key lengths, causal and window parts only");
  }
  check_size("EncoderBlockSpec.feed_forward_dim", spec.feed_forward_dim, 1);
  check_activation("EncoderBlockSpec.activation", spec.activation);
  if (static_cast<int>(spec.norm) > static_cast<int>(NormPlacement::pre)) {
    fail("EncoderBlockSpec.norm", std::to_string(static_cast<int>(spec.norm)), "a NormPlacement");
  }
  check_epsilon("EncoderBlockSpec.norm_epsilon", spec.norm_epsilon);
  return spec;
}

void check_block(const std::string& prefix, const EncoderBlockSpec& spec, const EncoderBlockWeights& weights) {
  const std::int64_t hidden = spec.attention.d_model, between = spec.feed_forward_dim;
  api::check_weights(prefix + "attention.", spec.attention, weights.attention);
  api::check_matrix(prefix + "feed_forward_in", weights.feed_forward_in, between, hidden);
  api::check_matrix(prefix + "feed_forward_out", weights.feed_forward_out, hidden, between);
  check_vector(prefix + "feed_forward_in_bias", weights.feed_forward_in_bias, between);
  check_vector(prefix + "feed_forward_out_bias", weights.feed_forward_out_bias, hidden);
  check_vector(prefix + "attention_norm_gamma", weights.attention_norm_gamma, hidden);
  check_vector(prefix + "attention_norm_beta", weights.attention_norm_beta, hidden);
  check_vector(prefix + "feed_forward_norm_gamma", weights.feed_forward_norm_gamma, hidden);
  check_vector(prefix + "feed_forward_norm_beta", weights.feed_forward_norm_beta, hidden);
}

}  // namespace

namespace detail {

class EncoderState {
 public:
  EncoderState(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const Runtime& runtime)
      : spec_(resolve_block(spec)), stack_(make_stack(spec_, blocks, *runtime.state())) {}

  const EncoderBlockSpec& spec() const noexcept { return spec_; }
  const layer::EncoderStack& stack() const noexcept { return stack_; }

  void run(const TensorView& x, const TensorView& lengths, const TensorView& out, const RunOptions& options) const {
    const std::int64_t hidden = spec_.attention.d_model;
    check_tensor("x", x, DType::f32, {-1, -1, hidden});
    const std::int64_t batch = x.shape[0], length = x.shape[1];
    check_tensor("out", out, DType::f32, {batch, length, hidden});
    api::check_output("out", out);
    api::check_no_overlap("out", out, "x", x);
    if (!lengths.empty()) api::check_no_overlap("out", out, "lengths", lengths);
    api::check_run_options(options);
    layer::EncoderStack::LeaseHandle lease(stack_.leases());
    api::read_lengths(lengths, batch, length, &lease->lengths);
    api::zero_padding(out, lease->lengths);
    const api::StridedSink sink(out);
    stack_.run(*lease, api::StridedSource(x), &sink, options.cancel);
  }

 private:
  static layer::EncoderStack make_stack(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks,
                                        const RuntimeState& runtime) {
    if (blocks.empty()) fail("blocks", "empty", "one block or more");
    std::vector<layer::EncoderLayer> layers;
    for (std::size_t i = 0; i < blocks.size(); ++i) check_block("blocks[" + std::to_string(i) + "].", spec, blocks[i]);
    layers.reserve(blocks.size());
    const simd::GemmKernel& gemm = dispatch::gemm_kernel(runtime.kernels(), spec.attention.weights);
    for (const EncoderBlockWeights& block : blocks) layers.push_back(layer::pack_encoder_layer(block, gemm));
    return layer::EncoderStack(layer::encoder_shape(spec, api::scale_of(spec.attention)), std::move(layers), runtime.kernels(),
                               runtime.scheduler());
  }

  EncoderBlockSpec spec_;
  layer::EncoderStack stack_;
};

}  // namespace detail

const char* name(ActivationKind activation) noexcept {
  switch (activation) {
    case ActivationKind::none:
      return "none";
    case ActivationKind::relu:
      return "relu";
    case ActivationKind::gelu_erf:
      return "gelu_erf";
    case ActivationKind::gelu_tanh:
      return "gelu_tanh";
  }
  return "unknown";
}

ActivationKind activation_from_name(const std::string& text) {
  if (text == "relu") return ActivationKind::relu;
  if (text == "gelu") return ActivationKind::gelu_erf;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh" || text == "gelu_fast") return ActivationKind::gelu_tanh;
  fail("activation", "'" + text + "'", "relu, gelu, gelu_new, gelu_pytorch_tanh or gelu_fast");
}

void layer_norm(const Runtime& runtime, const TensorView& x, const TensorView& gamma, const TensorView& beta, double epsilon,
                const TensorView& y) {
  if (x.rank < 1 || x.dtype != DType::f32) fail("x", x.describe(), "f32 [..., dim]");
  api::check_memory("x", x);
  const auto last = static_cast<std::size_t>(x.rank - 1);
  const std::int64_t dim = x.shape[last];
  check_size("x's last dimension", dim, 1);
  bool fits = y.rank == x.rank && y.dtype == DType::f32;
  for (std::size_t i = 0; fits && i <= last; ++i) fits = y.shape[i] == x.shape[i];
  if (!fits) fail("y", y.describe(), "the shape of x, " + x.describe());
  api::check_memory("y", y);
  api::check_output("y", y);
  check_vector("gamma", gamma, dim);
  check_vector("beta", beta, dim);
  check_epsilon("epsilon", epsilon);
  bool in_place = x.data == y.data;
  for (std::size_t i = 0; in_place && i <= last; ++i) in_place = x.shape[i] == 1 || x.strides[i] == y.strides[i];
  if (!in_place) api::check_no_overlap("y", y, "x", x);
  if (!gamma.empty()) api::check_no_overlap("y", y, "gamma", gamma);
  if (!beta.empty()) api::check_no_overlap("y", y, "beta", beta);
  if (x.element_count() == 0) return;
  api::entry([&] { layer::layer_norm(runtime.state()->kernels(), *runtime.state()->scheduler(), x, gamma, beta, epsilon, y); });
}

Encoder::Encoder(const EncoderBlockSpec& spec, const std::vector<EncoderBlockWeights>& blocks, const Runtime& runtime)
    : state_(api::entry([&] { return std::make_shared<const detail::EncoderState>(spec, blocks, runtime); })) {}

void Encoder::run(const TensorView& x, const TensorView& lengths, const TensorView& out, const RunOptions& options) const {
  api::entry([&] { state_->run(x, lengths, out, options); });
}

const EncoderBlockSpec& Encoder::spec() const noexcept {
  return state_->spec();
}

std::int64_t Encoder::block_count() const noexcept {
  return state_->stack().layer_count();
}

}  // namespace polyhead
