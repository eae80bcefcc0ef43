#include "attention_operands.hpp"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "errors.hpp"

namespace polyhead::python {

std::optional<BorrowedArray> borrow_mask(nb::handle attn_mask) {
  if (attn_mask.is_none()) return std::nullopt;
  std::optional<BorrowedArray> mask(std::in_place, attn_mask, "attn_mask");
  switch (mask->view().dtype) {
    case DType::boolean:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return mask;
    case DType::f64:
      mask->convert_to_f32();
      return mask;
    default:
      throw_type_error(std::string("attn_mask: data type is ") + python_name(mask->view().dtype) +
                       ", expected bool (True = attend) or a floating-point type (added to the scores)");
  }
}

std::optional<BorrowedArray> borrow_integers(nb::handle integers, const char* argument) {
  if (integers.is_none()) return std::nullopt;
  std::optional<BorrowedArray> result;
  if (PyList_Check(integers.ptr()) || PyTuple_Check(integers.ptr()) || PyLong_Check(integers.ptr())) {
    nb::object array = nb::module_::import_("numpy").attr("asarray")(integers);
    if (nb::cast<std::int64_t>(array.attr("size")) == 0) array = array.attr("astype")("int64");  // NumPy takes none for floats
    result.emplace(array, argument);
  } else {
    result.emplace(integers, argument);
  }
  const DType dtype = result->view().dtype;
  if (dtype != DType::i32 && dtype != DType::i64) {
    throw_type_error(std::string(argument) + ": data type is " + python_name(dtype) + ", expected int32 or int64");
  }
  return result;
}

std::optional<BorrowedArray> borrow_head_numbers(nb::handle numbers, const char* argument, std::int64_t heads) {
  if (numbers.is_none()) return std::nullopt;
  std::optional<BorrowedArray> result(std::in_place, numbers, argument);
  expect_attention_type(*result, argument);
  const TensorView& view = result->view();
  if (view.rank < 1 || view.shape[view.rank - 1] != heads) {
    throw invalid(std::string(argument) + ": is " + describe_array(view) + ", expected float32[" + std::to_string(heads) +
                  "], a number for each query head");
  }
  result->convert_to_f32();
  return result;
}

void expect_both_or_neither(bool first, bool second, const char* names) {
  if (first != second) throw invalid(std::string(names) + ": one of them is given, expected both or neither");
}

Mask to_causal(bool is_causal, nb::handle causal, bool has_offsets) {
  Mask mask;
  std::string written = "is_causal=True";
  if (is_causal) mask = Mask::causal(Causal::top_left);
  if (!causal.is_none()) {
    const std::string given = nb::repr(causal).c_str();
    const std::string expected = "causal: is " + given + ", expected None, 'top_left', 'bottom_right' or 'offset'";
    if (!PyUnicode_Check(causal.ptr())) throw_type_error(expected);
    if (is_causal) throw invalid("causal: is " + given + " together with is_causal=True, expected only one of them");
    const auto* found = std::find_if(std::begin(causal_alignments), std::end(causal_alignments), [&](const auto& alignment) {
      return PyUnicode_CompareWithASCIIString(causal.ptr(), alignment.first) == 0;
    });
    if (found == std::end(causal_alignments)) throw invalid(expected);
    mask = Mask::causal(found->second);
    written = "causal=" + given;
  }
  if (mask.causality == Causal::offset && !has_offsets) {
    throw invalid("offsets: is None, expected an integer for each batch item, since causal is 'offset'");
  }
  if (!has_offsets) return mask;
  if (mask.causality == Causal::top_left || mask.causality == Causal::bottom_right) {
    throw invalid("offsets: is given together with " + written +
                  ", expected it with causal='offset', or without a causal alignment");
  }
  return mask & Mask::offsets();
}

Mask to_window(std::pair<std::int64_t, std::int64_t> window_size, std::int64_t sink_token_length) {
  const auto [left, right] = window_size;
  if (left < -1 || right < -1) {
    throw invalid("window_size: is (" + std::to_string(left) + ", " + std::to_string(right) +
                  "), expected two numbers of keys, each 0 or more, or -1 for no limit");
  }
  if (sink_token_length < 0) {
    throw invalid("sink_token_length: is " + std::to_string(sink_token_length) + ", expected 0 or more keys");
  }
  return Mask::window(left, right, sink_token_length);
}

std::optional<BorrowedArray> borrow_blocks(nb::handle block_mask,
                                           std::optional<std::pair<std::int64_t, std::int64_t>> block_size, Mask& mask) {
  expect_both_or_neither(!block_mask.is_none(), block_size.has_value(), "block_mask and block_size");
  if (block_mask.is_none()) return std::nullopt;
  std::optional<BorrowedArray> blocks(std::in_place, block_mask, "block_mask");
  const DType dtype = blocks->view().dtype;
  if (dtype != DType::boolean && dtype != DType::u8) {
    throw_type_error(std::string("block_mask: data type is ") + python_name(dtype) +
                     ", expected bool or uint8 (True = attend)");
  }
  mask = mask & Mask::blocks(block_size->first, block_size->second);
  return blocks;
}

std::optional<BorrowedArray> borrow_relative_bias(nb::handle relative_bias, RelativeBias& bias) {
  if (relative_bias.is_none()) return std::nullopt;
  const nb::module_ package = nb::module_::import_("polyhead.relative_bias");
  const bool is_t5 = nb::isinstance(relative_bias, package.attr("T5Bias"));
  if (!is_t5 && !nb::isinstance(relative_bias, package.attr("SwinBias"))) {
    throw_type_error("relative_bias: is " + std::string(nb::repr(relative_bias).c_str()) +
                     ", expected polyhead.T5Bias, polyhead.SwinBias or None");
  }
  std::optional<BorrowedArray> table(std::in_place, relative_bias.attr("table"), "relative_bias.table");
  expect_attention_type(*table, "relative_bias.table");
  if (table->view().rank != 2) {
    throw invalid("relative_bias.table: is " + describe_array(table->view()) + ", expected float32[rows, heads]");
  }
  table->convert_to_f32();
  try {
    if (is_t5) {
      bias = RelativeBias::t5(table->view().shape[0], nb::cast<std::int64_t>(relative_bias.attr("max_distance")),
                              nb::cast<bool>(relative_bias.attr("bidirectional")));
    } else {
      const auto window = nb::cast<std::pair<std::int64_t, std::int64_t>>(relative_bias.attr("window"));
      bias = RelativeBias::swin(window.first, window.second);
    }
  } catch (const nb::cast_error&) {
    throw_type_error(
        "relative_bias: is " + std::string(nb::repr(relative_bias).c_str()) +
        (is_t5 ? ", expected a bool as bidirectional and an integer as max_distance" : ", expected two integers as window"));
  }
  return table;
}

Precision to_precision(nb::handle precision) {
  const char* const expected = ", expected 'strict' or 'fast'";
  if (!PyUnicode_Check(precision.ptr())) {
    throw_type_error("precision: is " + std::string(nb::repr(precision).c_str()) + expected);
  }
  for (const Precision known : {Precision::strict, Precision::fast}) {
    if (PyUnicode_CompareWithASCIIString(precision.ptr(), name(known)) == 0) return known;
  }
  throw invalid("precision: is " + std::string(nb::repr(precision).c_str()) + expected);
}

WeightType to_weight_type(nb::handle weights) {
  const char* const expected = ", expected 'f32', 'bf16', 'f16', 'int8', 'int4', 'int8_dynamic' or 'bf16_dynamic'";
  if (!PyUnicode_Check(weights.ptr())) {
    throw_type_error("weights: is " + std::string(nb::repr(weights).c_str()) + expected);
  }
  for (const WeightType known : {WeightType::f32, WeightType::bf16, WeightType::f16, WeightType::int8, WeightType::int4,
                                 WeightType::int8_dynamic, WeightType::bf16_dynamic}) {
    if (PyUnicode_CompareWithASCIIString(weights.ptr(), name(known)) == 0) return known;
  }
  throw invalid("weights: is " + std::string(nb::repr(weights).c_str()) + expected);
}

void expect_attention_type(const BorrowedArray& array, const char* argument) {
  const DType dtype = array.view().dtype;
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return;
  throw_type_error(std::string(argument) + ": data type is " + python_name(dtype) + ", expected float32, float16 or bfloat16");
}

void expect_same_type(const BorrowedArray& array, const char* argument, const BorrowedArray& other,
                      const char* other_argument) {
  if (array.view().dtype == other.view().dtype) return;
  throw_type_error(std::string(argument) + ": data type is " + python_name(array.view().dtype) + ", expected " +
                   python_name(other.view().dtype) + ", " + other_argument + "'s");
}

void expect_f32(const BorrowedArray& array, const char* argument) {
  if (array.view().dtype == DType::f32) return;
  throw_type_error(std::string(argument) + ": data type is " + python_name(array.view().dtype) +
                   ", expected float32 (the data type that this version computes in)");
}

}  // namespace polyhead::python
