#include "cache/storage_type.hpp"

#include <cstring>

namespace polyhead::cache {
namespace {

// How one element is stored.
struct Float32 {
  using Element = float;
  static constexpr DType dtype = DType::f32;
  static float to_element(float value) { return value; }
  static float to_float(float element) { return element; }
};

template <class Type>
void store(const float* from, std::ptrdiff_t step, std::int64_t count, void* to) {
  using Element = typename Type::Element;
  auto* const elements = static_cast<Element*>(to);
  for (std::int64_t i = 0; i < count; ++i) elements[i] = Type::to_element(from[i * step]);
}

template <class Type>
void load(const void* from, std::int64_t count, float* to, std::ptrdiff_t step) {
  const auto* const elements = static_cast<const typename Type::Element*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i * step] = Type::to_float(elements[i]);
}

// Most rows are contiguous floats on both sides.
template <>
void store<Float32>(const float* from, std::ptrdiff_t step, std::int64_t count, void* to) {
  if (step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  auto* const elements = static_cast<float*>(to);
  for (std::int64_t i = 0; i < count; ++i) elements[i] = from[i * step];
}

template <class Type>
constexpr StorageType storage_type = {Type::dtype, sizeof(typename Type::Element), &store<Type>, &load<Type>};

}  // namespace

const StorageType* find_storage_type(DType dtype) noexcept {
  static constexpr const StorageType* all[] = {&storage_type<Float32>};
  for (const StorageType* type : all) {
    if (type->dtype == dtype) return type;
  }
  return nullptr;
}

}  // namespace polyhead::cache
