// BertEncoder: token ids to token embeddings or sentence embeddings.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/bert.hpp"

namespace polyhead::python {

namespace {

BertEncoder load(const std::string& folder, nb::handle weights) {
  const Runtime runtime = default_runtime();
  BertOptions options;
  options.weights = to_weight_type(weights);
  const nb::gil_scoped_release release;
  return BertEncoder::load(folder, runtime, options);
}

void expect_batch(const BorrowedArray& ids) {
  if (ids.view().rank == 2) return;
  throw invalid("token_ids: is " + describe_array(ids.view()) + ", expected [batch, length]");
}

template <class Function>
nb::object call(nb::handle token_ids, nb::handle lengths, nb::handle out, int output_rank, std::int64_t hidden_size,
                Function function) {
  const BorrowedArray ids(token_ids, "token_ids");
  expect_batch(ids);
  const std::optional<BorrowedArray> given_lengths = borrow_integers(lengths, "key_lengths");
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    const std::int64_t full[] = {ids.view().shape[0], ids.view().shape[1], hidden_size};
    const std::int64_t pooled[] = {ids.view().shape[0], hidden_size};
    result = new_f32_array(ids, output_rank, output_rank == 3 ? full : pooled);
  }
  const BorrowedArray target(result, "out", Access::write);
  {
    const nb::gil_scoped_release release;
    function(ids.view(), given_lengths ? given_lengths->view() : TensorView(), target.view());
  }
  return result;
}

nb::object token_embeddings(const BertEncoder& encoder, nb::handle token_ids, nb::handle lengths, nb::handle out) {
  return call(token_ids, lengths, out, 3, encoder.config().hidden_size,
              [&](const TensorView& ids, const TensorView& sizes, const TensorView& target) {
                encoder.token_embeddings(ids, sizes, target);
              });
}

nb::object encode(const BertEncoder& encoder, nb::handle token_ids, nb::handle lengths, bool normalize, nb::handle out) {
  return call(token_ids, lengths, out, 2, encoder.config().hidden_size,
              [&](const TensorView& ids, const TensorView& sizes, const TensorView& target) {
                encoder.encode(ids, sizes, target, normalize);
              });
}

}  // namespace

void register_bert(nb::module_& module) {
  nb::class_<BertEncoder>(
      module, "BertEncoder",
      "A BERT-family encoder from a model folder (config.json, model.safetensors): token ids to embeddings.\n\n"
      "It keeps the number of threads that was set when it was loaded. SentenceEncoder adds the tokenizer.")
      .def_static("load", &load, nb::arg("folder"), nb::kw_only(), nb::arg("weights").none() = "f32",
                  "Loads and packs the weights of a model folder.\n\n"
                  "weights: what they are kept as, 'f32', 'bf16', 'f16', 'int8', 'int4', 'int8_dynamic' or 'bf16_dynamic',\n"
                  "whatever the file has.")
      .def("token_embeddings", &token_embeddings, nb::arg("token_ids"), nb::arg("lengths") = nb::none(), nb::kw_only(),
           nb::arg("out") = nb::none(),
           "token_ids: int32 or int64 [batch, length]; lengths: integers [batch], or None when all positions are real.\n\n"
           "Returns float32 [batch, length, hidden_size], zero at padded positions.")
      .def("encode", &encode, nb::arg("token_ids"), nb::arg("lengths") = nb::none(), nb::arg("normalize") = true, nb::kw_only(),
           nb::arg("out") = nb::none(),
           "Mean of the token embeddings over the real positions, of length 1 when normalize is set: float32 [batch, "
           "hidden_size].")
      .def_prop_ro("hidden_size", [](const BertEncoder& encoder) { return encoder.config().hidden_size; })
      .def_prop_ro("layers", [](const BertEncoder& encoder) { return encoder.config().layers; })
      .def_prop_ro("heads", [](const BertEncoder& encoder) { return encoder.config().heads; })
      .def_prop_ro("vocabulary_size", [](const BertEncoder& encoder) { return encoder.config().vocabulary_size; })
      .def_prop_ro("max_positions", [](const BertEncoder& encoder) { return encoder.config().max_positions; });
}

}  // namespace polyhead::python
