// Layers on the kernels of the target amx, with emulated tiles: whole products and attention, both precisions, any threads.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_COMPILE_ONLY_STATIC
#include "simd/x86/attention_tiles-inl.h"
#include "simd/x86/gemm_tiles-inl.h"
#include "simd/x86/tiles_emulated-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/layer_rows.hpp"
#include "dispatch/kernel_table.hpp"
#include "layer/encoder_stack.hpp"
#include "layer/encoder_weights.hpp"
#include "layer/layer_case.hpp"
#include "layer/projected_attention.hpp"

namespace polyhead::testing {
namespace {

namespace target = simd::HWY_NAMESPACE;

template <std::size_t kPieces>
simd::AttentionKernel attention_kernel(const char* name) {
  return target::TileKernel<target::EmulatedTiles, target::F32Pieces<kPieces>>(name);
}
const simd::AttentionKernel strict_attention = attention_kernel<3>("attention_f32_amx_emulated");
const simd::AttentionKernel fast_attention = attention_kernel<2>("fast_attention_f32_amx_emulated");
const simd::GemmKernel gemm = target::TileGemmKernel<target::EmulatedTiles, 3>("gemm_f32_amx_emulated");

// The table of amx as this machine can run it.
const dispatch::KernelTable& kernels() {
  static const dispatch::KernelTable table = [] {
    dispatch::KernelTable made = dispatch::kernel_table(Isa::avx2);
    made.isa = Isa::amx;
    made.attention_f32 = &strict_attention;
    made.fast_attention_f32 = &fast_attention;
    made.gemm_f32 = &gemm;
    return made;
  }();
  return table;
}

// Results of strict with one number of threads and another, then of fast: the same bits for any threads, other ones for fast.
void expect_bits(const std::vector<Tensor>& results) {
  ASSERT_EQ(results.size(), 4u);
  EXPECT_TRUE(same_bits(results[0], results[1])) << first_difference(results[0], results[1]);
  EXPECT_TRUE(same_bits(results[2], results[3])) << first_difference(results[2], results[3]);
  EXPECT_FALSE(same_bits(results[0], results[2])) << "fast has the bits of strict";
}

std::shared_ptr<graph::Scheduler> scheduler(int threads) {
  RuntimeOptions options;
  options.threads = threads;
  return graph::Scheduler::create(options);
}

class LayersOnTiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<Isa> isas = available_isas();
    if (std::find(isas.begin(), isas.end(), Isa::avx2) == isas.end()) GTEST_SKIP() << "this machine lacks avx2";
  }
};

TEST_F(LayersOnTiles, Encoder) {
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    WeightStore store(81);
    EncoderBlockSpec spec = encoder_spec(96, 4, 200, norm, {});
    spec.attention.kv_heads = 2, spec.attention.head_dim = 24, spec.attention.value_dim = 20;
    spec.attention.key_input_dim = spec.attention.value_input_dim = 96;
    const std::vector<EncoderBlockWeights> blocks = {encoder_weights(spec, store), encoder_weights(spec, store)};
    const Tensor x(DType::f32, {3, 230, 96}), lengths(DType::i32, {3}), out(DType::f32, {3, 230, 96});
    fill(x, [&] { return store.random().normal(); });
    const std::int64_t given[] = {230, 1, 77};
    std::size_t next = 0;
    fill(lengths, [&] { return static_cast<double>(given[next++]); });
    const oracle::Array expected = oracle::encoder(spec, blocks, x, lengths);

    std::vector<Tensor> results;
    for (const Precision precision : {Precision::strict, Precision::fast}) {
      spec.attention.precision = precision;
      for (const int threads : {1, 3}) {
        std::vector<layer::EncoderLayer> layers;
        for (const EncoderBlockWeights& block : blocks) layers.push_back(layer::pack_encoder_layer(block, gemm));
        const layer::EncoderStack stack(layer::encoder_shape(spec, 1 / std::sqrt(24.0)), std::move(layers), kernels(),
                                        scheduler(threads));
        const layer::EncoderStack::LeaseHandle lease(stack.leases());
        lease->lengths.assign(given, given + 3);
        fill(out, 0.0);
        const TensorView from = x, to = out;
        const api::StridedSink sink(to);
        stack.run(*lease, api::StridedSource(from), &sink, nullptr);
        const double limit = precision == Precision::fast ? 3e-4 : 3e-5;
        EXPECT_TRUE(
            array_matches(expected, out, limit, limit, std::string(name(precision)) + ", threads " + std::to_string(threads)));
        results.push_back(out.clone());
      }
    }
    expect_bits(results);
  }
}

layer::Tokens tokens_of(const Tensor& tensor) {
  const TensorView view = tensor;
  layer::Tokens tokens;
  tokens.data = static_cast<float*>(view.data);
  tokens.batch_stride = view.strides[0] * static_cast<std::ptrdiff_t>(sizeof(float));
  tokens.row_stride = view.strides[1] * static_cast<std::ptrdiff_t>(sizeof(float));
  tokens.element_stride = sizeof(float);
  tokens.width = view.shape[2];
  return tokens;
}

TEST_F(LayersOnTiles, MultiHeadAttention) {
  WeightStore store(82);
  MultiHeadAttentionSpec spec = attention_layer_spec(72, 6, Mask::causal(Causal::bottom_right));
  spec.kv_heads = 3, spec.head_dim = spec.value_dim = 12;
  const MultiHeadAttentionWeights weights = attention_layer_weights(spec, store, true);
  const Tensor x(DType::f32, {2, 250, 72}), out(DType::f32, {2, 250, 72});
  fill(x, [&] { return store.random().normal(); });
  MultiHeadAttentionInputs inputs;
  inputs.query = x;
  const oracle::Array expected = oracle::multi_head_attention(spec, weights, inputs);

  std::vector<Tensor> results;
  for (const Precision precision : {Precision::strict, Precision::fast}) {
    for (const int threads : {1, 3}) {
      layer::ProjectedAttentionWeights packed;
      packed.packed = layer::pack_together(gemm, {{&packed.query, {{weights.query, weights.query_bias}}},
                                                  {&packed.key, {{weights.key, weights.key_bias}}},
                                                  {&packed.value, {{weights.value, weights.value_bias}}},
                                                  {&packed.output, {{weights.output, weights.output_bias}}}});
      layer::ProjectedAttentionShape shape;
      shape.d_model = 72, shape.heads = 6, shape.kv_heads = 3, shape.head_dim = shape.value_dim = 12;
      shape.scale = 1 / std::sqrt(12.0);
      shape.mask = spec.mask;
      shape.precision = precision;
      const layer::ProjectedAttention attention(shape, std::move(packed), kernels(), scheduler(threads));
      const layer::ProjectedAttention::LeaseHandle lease(attention.leases());
      layer::ProjectedAttentionInputs operands;
      operands.batch = 2, operands.query_length = operands.key_length = 250;
      operands.query = operands.key = operands.value = tokens_of(x);
      operands.out = tokens_of(out);
      operands.is_self = true;
      fill(out, 0.0);
      attention.run(*lease, operands, nullptr);
      const double limit = precision == Precision::fast ? 2e-4 : 2e-5;
      EXPECT_TRUE(
          array_matches(expected, out, limit, limit, std::string(name(precision)) + ", threads " + std::to_string(threads)));
      results.push_back(out.clone());
    }
  }
  expect_bits(results);
}

}  // namespace
}  // namespace polyhead::testing
#endif
