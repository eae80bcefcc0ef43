// MultiHeadAttention: projections, attention and output projection as one operator.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/multi_head_attention.hpp"

namespace polyhead::python {

namespace {

std::optional<BorrowedArray> borrow_f32(nb::handle array, const char* argument) {
  if (array.is_none()) return std::nullopt;
  std::optional<BorrowedArray> borrowed(std::in_place, array, argument);
  expect_f32(*borrowed, argument);
  return borrowed;
}

// A matrix that lives only while the operator is made: the operator packs its own copy.
std::optional<BorrowedArray> borrow_weight(nb::handle array, const char* argument) {
  if (array.is_none()) return std::nullopt;
  std::optional<BorrowedArray> weight(std::in_place, array, argument);
  expect_attention_type(*weight, argument);
  return weight;
}

TensorView view_of(const std::optional<BorrowedArray>& array) {
  return array ? array->view() : TensorView();
}

// Sizes that the weights themselves do not tell: heads and kv_heads. The others follow from the weights' shapes.
MultiHeadAttention make(nb::handle query_weight, nb::handle key_weight, nb::handle value_weight, nb::handle output_weight,
                        std::int64_t heads, std::int64_t kv_heads, nb::handle query_bias, nb::handle key_bias,
                        nb::handle value_bias, nb::handle output_bias, std::optional<double> scale, bool causal,
                        bool key_lengths, bool boolean, bool bias, nb::handle precision, nb::handle weight_type) {
  const std::optional<BorrowedArray> arrays[] = {
      borrow_weight(query_weight, "query_weight"), borrow_weight(key_weight, "key_weight"),
      borrow_weight(value_weight, "value_weight"), borrow_weight(output_weight, "output_weight"),
      borrow_f32(query_bias, "query_bias"),        borrow_f32(key_bias, "key_bias"),
      borrow_f32(value_bias, "value_bias"),        borrow_f32(output_bias, "output_bias")};
  static constexpr const char* names[] = {"query_weight", "key_weight", "value_weight", "output_weight"};
  for (int i = 0; i < 4; ++i) {
    const TensorView view = view_of(arrays[i]);
    if (view.rank != 2)
      throw invalid(std::string(names[i]) + ": is " + describe_array(view) + ", expected [output width, input width]");
  }
  if (heads < 1) throw invalid("heads: is " + std::to_string(heads) + ", expected at least 1");
  if (kv_heads == 0) kv_heads = heads;
  if (kv_heads < 1 || heads % kv_heads != 0) {
    throw invalid("kv_heads: is " + std::to_string(kv_heads) + ", expected a divisor of heads, " + std::to_string(heads));
  }
  const auto share = [](const std::optional<BorrowedArray>& weight, const char* argument, std::int64_t parts) {
    const std::int64_t rows = weight->view().shape[0];
    if (rows % parts == 0) return rows / parts;
    throw invalid(std::string(argument) + ": has " + std::to_string(rows) + " rows, expected a multiple of its " +
                  std::to_string(parts) + " heads");
  };
  MultiHeadAttentionSpec spec;
  spec.d_model = arrays[0]->view().shape[1];
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = share(arrays[0], names[0], heads);
  spec.value_dim = share(arrays[2], names[2], kv_heads);
  spec.key_input_dim = arrays[1]->view().shape[1];
  spec.value_input_dim = arrays[2]->view().shape[1];
  spec.scale = scale;
  spec.precision = to_precision(precision);
  spec.weights = to_weight_type(weight_type);
  spec.mask.causality = causal ? Causal::top_left : Causal::none;
  spec.mask.has_key_lengths = key_lengths;
  spec.mask.has_boolean = boolean;
  spec.mask.has_bias = bias;
  MultiHeadAttentionWeights weights;
  weights.query = view_of(arrays[0]);
  weights.key = view_of(arrays[1]);
  weights.value = view_of(arrays[2]);
  weights.output = view_of(arrays[3]);
  weights.query_bias = view_of(arrays[4]);
  weights.key_bias = view_of(arrays[5]);
  weights.value_bias = view_of(arrays[6]);
  weights.output_bias = view_of(arrays[7]);
  const Runtime runtime = default_runtime();
  const nb::gil_scoped_release release;
  return MultiHeadAttention(spec, weights, runtime);
}

std::optional<BorrowedArray> borrow_input(nb::handle array, const char* argument) {
  std::optional<BorrowedArray> input = borrow_f32(array, argument);
  if (input && input->view().rank != 3) {
    throw invalid(std::string(argument) + ": is " + describe_array(input->view()) + ", expected [batch, length, width]");
  }
  return input;
}

nb::object run(const MultiHeadAttention& operation, nb::handle query, nb::handle key, nb::handle value, nb::handle boolean_mask,
               nb::handle bias, nb::handle key_lengths, nb::handle out) {
  const std::optional<BorrowedArray> query_input = borrow_input(query, "query"), key_input = borrow_input(key, "key"),
                                     value_input = borrow_input(value, "value"), mask = borrow_mask(boolean_mask),
                                     added = borrow_mask(bias), lengths = borrow_integers(key_lengths, "key_lengths");
  if (!query_input) throw_type_error("query: is None, expected an array [batch, length, width]");
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    const TensorView& model = query_input->view();
    const std::int64_t shape[] = {model.shape[0], model.shape[1], operation.spec().d_model};
    result = new_f32_array(*query_input, 3, shape);
  }
  const BorrowedArray target(result, "out", Access::write);
  expect_f32(target, "out");
  MultiHeadAttentionInputs inputs;
  inputs.query = query_input->view();
  inputs.key = view_of(key_input);
  inputs.value = view_of(value_input);
  inputs.out = target.view();
  inputs.boolean_mask = view_of(mask);
  inputs.bias = view_of(added);
  inputs.key_lengths = view_of(lengths);
  {
    const nb::gil_scoped_release release;
    operation.run(inputs);
  }
  return result;
}

}  // namespace

void register_multi_head_attention(nb::module_& module) {
  nb::class_<MultiHeadAttention>(
      module, "MultiHeadAttentionOperator",
      "One packed operator for one kind of mask; polyhead.MultiHeadAttention makes them as they are needed.")
      .def_static("make", &make, nb::arg("query_weight"), nb::arg("key_weight"), nb::arg("value_weight"),
                  nb::arg("output_weight"), nb::kw_only(), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("query_bias").none(),
                  nb::arg("key_bias").none(), nb::arg("value_bias").none(), nb::arg("output_bias").none(),
                  nb::arg("scale").none(), nb::arg("causal"), nb::arg("key_lengths"), nb::arg("boolean"), nb::arg("bias"),
                  nb::arg("precision").none(), nb::arg("weights").none())
      .def("run", &run, nb::arg("query"), nb::arg("key").none(), nb::arg("value").none(), nb::arg("boolean_mask").none(),
           nb::arg("bias").none(), nb::arg("key_lengths").none(), nb::arg("out").none());
}

}  // namespace polyhead::python
