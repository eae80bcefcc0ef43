#include "polyhead/weight_type.hpp"

namespace polyhead {

const char* name(WeightType weights) noexcept {
  switch (weights) {
    case WeightType::f32:
      return "f32";
    case WeightType::bf16:
      return "bf16";
    case WeightType::f16:
      return "f16";
    case WeightType::int8:
      return "int8";
    case WeightType::int4:
      return "int4";
    case WeightType::int8_dynamic:
      return "int8_dynamic";
    case WeightType::bf16_dynamic:
      return "bf16_dynamic";
  }
  return "unknown";
}

}  // namespace polyhead
