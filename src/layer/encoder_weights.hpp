// From the public weights of an encoder block, already checked, to the packed ones that a stack runs on.
#pragma once

#include "layer/encoder_stack.hpp"
#include "polyhead/transformer.hpp"

namespace polyhead::layer {

simd::Activation activation_of(ActivationKind kind);
// spec has no field left at its default.
EncoderShape encoder_shape(const EncoderBlockSpec& spec, double scale);
EncoderLayer pack_encoder_layer(const EncoderBlockWeights& weights, const simd::GemmKernel& kernel);

}  // namespace polyhead::layer
