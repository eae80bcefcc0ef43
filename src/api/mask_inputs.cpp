#include "api/mask_inputs.hpp"

#include <string>

#include "api/checks.hpp"

namespace polyhead::api {

void check_mask_given(const Mask& mask, const MaskInputs& inputs) {
  check_given("key_lengths", inputs.key_lengths, mask.has_key_lengths, "key lengths");
  check_given("offsets", inputs.offsets, mask.has_offsets, "offsets");
  check_given("boolean_mask", inputs.boolean_mask, mask.has_boolean, "boolean part");
  check_given("bias", inputs.bias, mask.has_bias, "bias");
}

plan::ScoreOperands read_mask_inputs(const Mask& mask, const MaskInputs& inputs, const ScoreShape& shape,
                                     std::int64_t* key_lengths, std::int64_t* offsets) {
  if (mask.has_key_lengths) {
    read_integers("key_lengths", inputs.key_lengths, shape.batch, 0, shape.key_length, key_lengths);
  }
  if (mask.has_offsets) {
    constexpr std::int64_t far = std::int64_t{1} << 60;  // beyond any key, and far from overflow
    read_integers("offsets", inputs.offsets, shape.batch, -far, far, offsets);
  }
  plan::ScoreOperands operands;
  const std::int64_t scores[4] = {shape.batch, shape.heads, shape.query_length, shape.key_length};
  if (mask.has_boolean) {
    const TensorView& view = inputs.boolean_mask;
    if (view.dtype != DType::boolean && view.dtype != DType::u8) {
      fail("boolean_mask", std::string("of dtype ") + name(view.dtype), "bool or u8");
    }
    broadcast_strides("boolean_mask", view, scores, operands.mask_strides, shape.longer);
    operands.boolean_mask = static_cast<const std::uint8_t*>(view.data);
  }
  if (mask.has_bias) {
    const TensorView& view = inputs.bias;
    if (view.dtype != DType::f32 && view.dtype != DType::bf16 && view.dtype != DType::f16) {
      fail("bias", std::string("of dtype ") + name(view.dtype), "f32, bf16 or f16");
    }
    broadcast_strides("bias", view, scores, operands.bias_strides, shape.longer);
    operands.bias_dtype = view.dtype;
    operands.bias = view.data;
  }
  return operands;
}

void check_no_overlap(const char* output_name, const TensorView& output, const MaskInputs& inputs) {
  check_no_overlap(output_name, output, "key_lengths", inputs.key_lengths);
  check_no_overlap(output_name, output, "offsets", inputs.offsets);
  check_no_overlap(output_name, output, "boolean_mask", inputs.boolean_mask);
  check_no_overlap(output_name, output, "bias", inputs.bias);
}

}  // namespace polyhead::api
