// layer_norm_f32, softmax_f32 and activation_f32 of one instruction set.
#include "simd/contract/rowwise.hpp"
#include "simd/floating_point.hpp"
#include "simd/hwy/activation-inl.h"
#include "simd/hwy/kernel_name.h"
#include "simd/hwy/layer_norm-inl.h"
#include "simd/hwy/partial_vector-inl.h"
#include "simd/hwy/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace polyhead::simd::HWY_NAMESPACE {
namespace {

template <Activation kActivation>
HWY_NOINLINE void ActivateAll(const ActivationF32Args& args) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= args.count; i += lanes) hn::StoreU(Activate<kActivation>(d, hn::LoadU(d, args.x + i)), d, args.y + i);
  if (i < args.count) {
    const std::size_t left = static_cast<std::size_t>(args.count - i);
    StorePartial(Activate<kActivation>(d, LoadPartial(d, args.x + i, left)), d, args.y + i, left);
  }
}

void ActivateAny(const ActivationF32Args& args) {
  const FlushDenormals environment;
  switch (args.activation) {
    case Activation::none:
      return ActivateAll<Activation::none>(args);
    case Activation::relu:
      return ActivateAll<Activation::relu>(args);
    case Activation::gelu_erf:
      return ActivateAll<Activation::gelu_erf>(args);
    case Activation::gelu_tanh:
      return ActivateAll<Activation::gelu_tanh>(args);
  }
}

}  // namespace

extern const LayerNormKernel layer_norm_f32;
extern const SoftmaxKernel softmax_f32;
extern const ActivationKernel activation_f32;
const LayerNormKernel layer_norm_f32 = {POLYHEAD_KERNEL_NAME("layer_norm_f32"), LayerNorm};
const SoftmaxKernel softmax_f32 = {POLYHEAD_KERNEL_NAME("softmax_f32"), Softmax};
const ActivationKernel activation_f32 = {POLYHEAD_KERNEL_NAME("activation_f32"), ActivateAny};

}  // namespace polyhead::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
