// merge: one attention out of two over different keys.
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "attention_geometry.hpp"
#include "attention_operands.hpp"
#include "borrowed_array.hpp"
#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"
#include "polyhead/merge.hpp"

namespace polyhead::python {

namespace {

// The last `inner` dimensions, behind a batch dimension that BatchWalk fills in; missing ones are of size 1.
TensorView inner_dimensions(const TensorView& view, int inner) {
  TensorView result;
  result.data = view.data;
  result.dtype = view.dtype;
  result.rank = inner + 1;
  result.shape[0] = 1;
  for (int i = 0; i < inner; ++i) {
    const int source = view.rank - inner + i;
    result.shape[i + 1] = source >= 0 ? view.shape[source] : 1;
    result.strides[i + 1] = source >= 0 ? view.strides[source] : 0;
  }
  return result;
}

void expect_like(const TensorView& view, const char* argument, const TensorView& model, int rank) {
  bool equal = view.rank == rank;
  for (int i = 0; i < rank && equal; ++i) equal = view.shape[i] == model.shape[i];
  if (equal) return;
  TensorView wanted;
  wanted.rank = rank;
  wanted.shape = model.shape;
  throw invalid(std::string(argument) + ": is " + describe_array(view) + ", expected " + describe_array(wanted));
}

nb::object merge_parts(nb::handle out1, nb::handle lse1, nb::handle out2, nb::handle lse2, nb::handle sink, nb::handle out,
                       nb::handle lse) {
  const BorrowedArray first(out1, "out1"), first_lse(lse1, "lse1"), second(out2, "out2"), second_lse(lse2, "lse2");
  const TensorView& model = first.view();
  if (model.rank < 2) {
    throw invalid("out1: is " + describe_array(model) + ", expected [..., heads, length, dim] (at least 2 dimensions)");
  }
  expect_attention_type(first, "out1");
  expect_f32(first_lse, "lse1");
  expect_same_type(second, "out2", first, "out1");
  expect_f32(second_lse, "lse2");
  expect_like(second.view(), "out2", model, model.rank);
  expect_like(first_lse.view(), "lse1", model, model.rank - 1);
  expect_like(second_lse.view(), "lse2", model, model.rank - 1);
  const std::int64_t heads = model.rank >= 3 ? model.shape[model.rank - 3] : 1;
  const std::optional<BorrowedArray> sinks = borrow_head_numbers(sink, "sink", heads);
  nb::object out_result = out.is_none() ? new_array_like(out1, first, model.rank, model.shape.data()) : nb::borrow(out);
  nb::object lse_result = lse.is_none() ? new_f32_array(first, model.rank - 1, model.shape.data()) : nb::borrow(lse);
  const BorrowedArray out_array(out_result, "out", Access::write), lse_array(lse_result, "lse", Access::write);
  expect_same_type(out_array, "out", first, "out1");
  expect_f32(lse_array, "lse");
  expect_like(out_array.view(), "out", model, model.rank);
  expect_like(lse_array.view(), "lse", model, model.rank - 1);

  MergeInputs inputs;
  const int batch_rank = model.rank > 3 ? model.rank - 3 : 0;
  BatchWalk walk(batch_rank, model.shape);
  const auto add = [&](TensorView* view, const BorrowedArray& array, int inner) {
    *view = inner_dimensions(array.view(), inner);
    walk.add(view, array.view().strides);
  };
  add(&inputs.out1, first, 3);
  add(&inputs.lse1, first_lse, 2);
  add(&inputs.out2, second, 3);
  add(&inputs.lse2, second_lse, 2);
  add(&inputs.out, out_array, 3);
  add(&inputs.lse, lse_array, 2);
  if (sinks) inputs.sink = sinks->view();
  walk.begin();
  const Runtime runtime = default_runtime();
  {
    const nb::gil_scoped_release release;
    do {
      merge(runtime, inputs);
    } while (walk.next());
  }
  return nb::make_tuple(out_result, lse_result);
}

constexpr const char* documentation =
    R"(Brings together attention over two sets of keys: returns (out, lse) as if it had been computed over both at once.

out1, out2: float32, float16 or bfloat16 [..., heads, L, E], both of one type, which out has too, rounded once; lse1, lse2: float32
[..., heads, L], the natural logs of the softmax denominators, as return_lse=True gives them. A part whose lse is -inf saw no key and counts for nothing; where both are so out is 0 and lse -inf.
sink: float32, float16 or bfloat16 [heads], logits that join the denominators; the parts are computed without it.
out, lse: written to and returned; out may be out1 or out2 itself, and lse lse1 or lse2.)";

}  // namespace

void register_merge(nb::module_& module) {
  module.def("merge", &merge_parts, nb::sig("def merge(out1, lse1, out2, lse2, *, sink=None, out=None, lse=None)"),
             nb::arg("out1").none(), nb::arg("lse1").none(), nb::arg("out2").none(), nb::arg("lse2").none(), nb::kw_only(),
             nb::arg("sink") = nb::none(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(), documentation);
}

}  // namespace polyhead::python
