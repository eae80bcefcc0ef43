// An i32 or i64 tensor [batch] or [batch, 1] that is read in place, element by element.
#pragma once

#include <cstdint>
#include <string>

#include "api/checks.hpp"

namespace polyhead::api {

class IntegerList {
 public:
  // Checks shape and memory; the values are checked as they are read. A list that is not given has no values.
  IntegerList(const char* name, const TensorView& view, std::int64_t batch) : name_(name), view_(view) {
    if (!given()) return;
    const bool fits = (view.rank == 1 || (view.rank == 2 && view.shape[1] == 1)) && view.shape[0] == batch &&
                      (view.dtype == DType::i32 || view.dtype == DType::i64);
    if (!fits) fail(name, view.describe(), "i32 or i64 [" + std::to_string(batch) + "]");
    check_memory(name, view);
    stride_ = batch > 1 ? view.strides[0] : 0;
  }

  bool given() const noexcept { return !view_.empty(); }

  // Element b, which must lie in [low, high].
  std::int64_t at(std::int64_t b, std::int64_t low, std::int64_t high) const {
    const std::int64_t value = view_.dtype == DType::i32 ? static_cast<const std::int32_t*>(view_.data)[b * stride_]
                                                         : static_cast<const std::int64_t*>(view_.data)[b * stride_];
    if (value < low || value > high) {
      fail((std::string(name_) + "[" + std::to_string(b) + "]").c_str(), std::to_string(value),
           std::to_string(low) + " to " + std::to_string(high));
    }
    return value;
  }

 private:
  const char* name_;
  const TensorView& view_;
  std::int64_t stride_ = 0;
};

}  // namespace polyhead::api
