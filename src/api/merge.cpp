#include "polyhead/merge.hpp"

#include <algorithm>

#include "api/attention_spec.hpp"
#include "api/checks.hpp"
#include "api/entry.hpp"
#include "api/head_operands.hpp"
#include "api/runtime_state.hpp"
#include "plan/merge_parts.hpp"

namespace polyhead {
namespace {

using api::check_no_overlap;
using api::check_output;
using api::check_tensor;

void byte_strides(const TensorView& view, std::ptrdiff_t* strides) {
  for (int i = 0; i < view.rank; ++i) {
    strides[i] = view.shape[i] == 1 ? 0 : view.strides[i] * size_in_bytes(view.dtype);
  }
}

bool is_same(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

// `own`: the parts' tensors that the output may take the place of.
void check_result(const char* name, const TensorView& output, const TensorView& own1, const TensorView& own2,
                  const MergeInputs& inputs) {
  check_output(name, output);
  const std::pair<const char*, const TensorView*> others[] = {
      {"out1", &inputs.out1}, {"lse1", &inputs.lse1}, {"out2", &inputs.out2}, {"lse2", &inputs.lse2}, {"sink", &inputs.sink}};
  for (const auto& [other_name, other] : others) {
    const bool may_replace = (other == &own1 || other == &own2) && is_same(output, *other);
    if (!may_replace) check_no_overlap(name, output, other_name, *other);
  }
}

plan::PartOperands part_of(const TensorView& out, const TensorView& lse) {
  plan::PartOperands part;
  part.out = out.data;
  part.lse = static_cast<const float*>(lse.data);
  byte_strides(out, part.out_strides);
  byte_strides(lse, part.lse_strides);
  return part;
}

}  // namespace

void merge(const Runtime& runtime, const MergeInputs& inputs) {
  const DType dtype = inputs.out1.dtype;
  if (!api::is_served(dtype)) {
    api::fail("out1", inputs.out1.describe(), api::served_dtypes() + " [batch, heads, length, value_dim]");
  }
  check_tensor("out1", inputs.out1, dtype, {-1, -1, -1, -1});
  const auto& shape = inputs.out1.shape;
  const std::int64_t batch = shape[0], heads = shape[1], length = shape[2], value_dim = shape[3];
  check_tensor("lse1", inputs.lse1, DType::f32, {batch, heads, length});
  check_tensor("out2", inputs.out2, dtype, {batch, heads, length, value_dim});
  check_tensor("lse2", inputs.lse2, DType::f32, {batch, heads, length});
  check_tensor("out", inputs.out, dtype, {batch, heads, length, value_dim});
  if (!inputs.lse.empty()) check_tensor("lse", inputs.lse, DType::f32, {batch, heads, length});
  plan::MergeOperands operands;
  if (!inputs.sink.empty()) operands.sink = api::read_heads("sink", inputs.sink, heads, true, &operands.sink_stride);
  check_result("out", inputs.out, inputs.out1, inputs.out2, inputs);
  if (!inputs.lse.empty()) {
    check_result("lse", inputs.lse, inputs.lse1, inputs.lse2, inputs);
    check_no_overlap("lse", inputs.lse, "out", inputs.out);
  }
  if (value_dim == 0) api::fail("out1's value_dim", "0", "1 or more");
  operands.batch = batch;
  operands.heads = heads;
  operands.length = length;
  operands.value_dim = value_dim;
  operands.dtype = dtype;
  operands.parts[0] = part_of(inputs.out1, inputs.lse1);
  operands.parts[1] = part_of(inputs.out2, inputs.lse2);
  operands.out = inputs.out.data;
  byte_strides(inputs.out, operands.out_strides);
  if (!inputs.lse.empty()) {
    operands.lse = static_cast<float*>(inputs.lse.data);
    byte_strides(inputs.lse, operands.lse_strides);
  }
  api::entry([&] { plan::merge_parts(operands, runtime.state()->kernels(), *runtime.state()->scheduler()); });
}

}  // namespace polyhead
