#include "api/packed_copy.hpp"

#include <cstdint>

#include "platform/rounding.hpp"

namespace polyhead::api {

namespace {

// A [batch, heads, length, dim] copy job, cut over (batch, head) so that threads share it.
struct CopyJob {
  const TensorView* from;
  const TensorView* to;
};

// Element is any type of the dtype's size: bits are moved, whatever they mean.
template <class Element>
void copy_elements(graph::Scheduler& scheduler, const TensorView& from, const TensorView& to) {
  CopyJob job{&from, &to};
  scheduler.parallel_for(
      static_cast<std::size_t>(from.shape[0] * from.shape[1]),
      [](void* context, std::size_t index, int) {
        const CopyJob& copy = *static_cast<const CopyJob*>(context);
        const TensorView &source = *copy.from, &target = *copy.to;
        const std::int64_t batch = static_cast<std::int64_t>(index) / source.shape[1],
                           head = static_cast<std::int64_t>(index) % source.shape[1];
        const Element* read = static_cast<const Element*>(source.data) + batch * source.strides[0] + head * source.strides[1];
        Element* write = static_cast<Element*>(target.data) + batch * target.strides[0] + head * target.strides[1];
        for (std::int64_t t = 0; t < source.shape[2]; ++t) {
          for (std::int64_t d = 0; d < source.shape[3]; ++d) {
            write[t * target.strides[2] + d * target.strides[3]] = read[t * source.strides[2] + d * source.strides[3]];
          }
        }
      },
      &job);
}

}  // namespace

void byte_strides(const TensorView& view, std::ptrdiff_t strides[3]) {
  const std::int64_t item = size_in_bytes(view.dtype);
  for (int i = 0; i < 3; ++i) strides[i] = view.shape[i] == 1 ? 0 : view.strides[i] * item;
}

bool last_is_contiguous(const TensorView& view) {
  return view.shape[3] <= 1 || view.strides[3] == 1;
}

std::size_t packed_bytes(const TensorView& view) {
  return last_is_contiguous(view) ? 0 : whole_lines(static_cast<std::size_t>(view.element_count() * size_in_bytes(view.dtype)));
}

void copy_tensor(graph::Scheduler& scheduler, const TensorView& from, const TensorView& to) {
  if (size_in_bytes(from.dtype) == sizeof(std::uint16_t)) return copy_elements<std::uint16_t>(scheduler, from, to);
  copy_elements<float>(scheduler, from, to);
}

TensorView stand_in(const TensorView& view, char** memory) {
  TensorView packed(*memory, view.dtype, view.rank, view.shape.data());
  *memory += packed_bytes(view);
  return packed;
}

}  // namespace polyhead::api
