#include "api/layer_rows.hpp"

#include <cstring>

#include "api/checks.hpp"
#include "layer/geometry.hpp"

namespace polyhead::api {

void StridedSource::load(std::int64_t b, std::int64_t begin, std::int64_t end, float* rows, std::ptrdiff_t stride) const {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* from = static_cast<const float*>(view_.data) + b * view_.strides[0] + t * view_.strides[1];
    float* to = layer::row_at(rows, stride, t - begin);
    if (view_.strides[2] == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(view_.shape[2]) * sizeof(float));
    } else {
      for (std::int64_t i = 0; i < view_.shape[2]; ++i) to[i] = from[i * view_.strides[2]];
    }
  }
}

void StridedSink::store(std::int64_t b, std::int64_t begin, std::int64_t end, const float* rows, std::ptrdiff_t stride) const {
  for (std::int64_t t = begin; t < end; ++t) {
    const float* from = layer::row_at(rows, stride, t - begin);
    float* to = static_cast<float*>(view_.data) + b * view_.strides[0] + t * view_.strides[1];
    if (view_.strides[2] == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(view_.shape[2]) * sizeof(float));
    } else {
      for (std::int64_t i = 0; i < view_.shape[2]; ++i) to[i * view_.strides[2]] = from[i];
    }
  }
}

void read_lengths(const TensorView& view, std::int64_t batch, std::int64_t length, std::vector<std::int64_t>* lengths) {
  lengths->assign(static_cast<std::size_t>(batch), length);
  if (!view.empty()) read_integers("lengths", view, batch, 0, length, lengths->data());
}

void zero_padding(const TensorView& view, const std::vector<std::int64_t>& lengths) {
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t t = lengths[static_cast<std::size_t>(b)]; t < view.shape[1]; ++t) {
      float* to = static_cast<float*>(view.data) + b * view.strides[0] + t * view.strides[1];
      for (std::int64_t i = 0; i < view.shape[2]; ++i) to[i * view.strides[2]] = 0.0f;
    }
  }
}

}  // namespace polyhead::api
