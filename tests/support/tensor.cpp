#include "support/tensor.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <sstream>

namespace polyhead::testing {
namespace {

std::size_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

template <typename T>
T read(const unsigned char* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

template <typename T>
void write(unsigned char* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

// Elements of 16 bits are what the tests read most often: powers of two are put together rather than asked for.
double power_of_two(int exponent) {  // a normal number
  const std::uint64_t bits = static_cast<std::uint64_t>(1023 + exponent) << 52;
  return read<double>(reinterpret_cast<const unsigned char*>(&bits));
}
int exponent_of(double magnitude) {  // magnitude in [2^exponent, 2^(exponent+1)); -1023 below the normal numbers
  return static_cast<int>(read<std::uint64_t>(reinterpret_cast<const unsigned char*>(&magnitude)) >> 52) - 1023;
}

// Rounds a double to a binary format of few bits by way of its own arithmetic: to nearest, ties to even.
std::uint16_t narrow(double value, int mantissa_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto all_ones = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(all_ones | (1 << (mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  const int lowest = 1 - bias, used = std::max(exponent_of(magnitude), lowest);
  if (std::isinf(value) || used > bias) return static_cast<std::uint16_t>(sign | all_ones);
  // Counted in units of the last place, normal numbers carry the implied bit, which moves into the exponent field by addition.
  const auto units = static_cast<std::uint32_t>(std::nearbyint(magnitude * power_of_two(mantissa_bits - used)));
  const auto encoded = units + (static_cast<std::uint32_t>(used - lowest) << mantissa_bits);
  return static_cast<std::uint16_t>(sign | std::min<std::uint32_t>(encoded, all_ones));
}

double widen(std::uint16_t bits, int mantissa_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1), field = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  double value = 0;
  if (field == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (field == 0) {
    value = mantissa * power_of_two(1 - bias - mantissa_bits);
  } else {
    value = (mantissa + (1 << mantissa_bits)) * power_of_two(field - bias - mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

unsigned char* address_of(const TensorView& view, std::int64_t offset) {
  return static_cast<unsigned char*>(view.data) + offset * static_cast<std::int64_t>(element_bytes(view.dtype));
}

constexpr std::size_t surrounding_bytes = 256;

}  // namespace

double load(const TensorView& view, std::int64_t offset) {
  const unsigned char* address = address_of(view, offset);
  switch (view.dtype) {
    case DType::f32:
      return static_cast<double>(read<float>(address));
    case DType::f64:
      return read<double>(address);
    case DType::f16:
      return widen(read<std::uint16_t>(address), 10, 5);
    case DType::bf16:
      return widen(read<std::uint16_t>(address), 7, 8);
    case DType::i8:
      return read<std::int8_t>(address);
    case DType::u8:
      return read<std::uint8_t>(address);
    case DType::boolean:
      return read<std::uint8_t>(address) != 0;
    case DType::i32:
      return read<std::int32_t>(address);
    case DType::i64:
      return static_cast<double>(read<std::int64_t>(address));
  }
  return 0;
}

void store(const TensorView& view, std::int64_t offset, double value) {
  unsigned char* address = address_of(view, offset);
  switch (view.dtype) {
    case DType::f32:
      return write(address, static_cast<float>(value));
    case DType::f64:
      return write(address, value);
    case DType::f16:
      return write(address, narrow(value, 10, 5));
    case DType::bf16:
      return write(address, narrow(value, 7, 8));
    case DType::i8:
      return write(address, static_cast<std::int8_t>(value));
    case DType::u8:
      return write(address, static_cast<std::uint8_t>(value));
    case DType::boolean:
      return write(address, static_cast<std::uint8_t>(value != 0));
    case DType::i32:
      return write(address, static_cast<std::int32_t>(value));
    case DType::i64:
      return write(address, static_cast<std::int64_t>(value));
  }
}

std::int64_t offset_of(const TensorView& view, std::initializer_list<std::int64_t> index) {
  assert(static_cast<int>(index.size()) == view.rank);
  std::int64_t offset = 0;
  std::size_t dimension = 0;
  for (const std::int64_t i : index) {
    if (view.shape[dimension] != 1) offset += i * view.strides[dimension];
    ++dimension;
  }
  return offset;
}

TensorView select(const TensorView& view, std::int64_t index) {
  TensorView part = view;
  part.data = address_of(view, view.shape[0] == 1 ? 0 : index * view.strides[0]);
  part.rank = view.rank - 1;
  std::copy(view.shape.begin() + 1, view.shape.end(), part.shape.begin());
  std::copy(view.strides.begin() + 1, view.strides.end(), part.strides.begin());
  return part;
}

TensorView slice(const TensorView& view, int dimension, std::int64_t begin, std::int64_t end) {
  TensorView part = view;
  const auto i = static_cast<std::size_t>(dimension);
  if (begin > 0) part.data = address_of(view, begin * view.strides[i]);
  part.shape[i] = end - begin;
  return part;
}

TensorView transposed(const TensorView& view, int a, int b) {
  TensorView turned = view;
  std::swap(turned.shape[static_cast<std::size_t>(a)], turned.shape[static_cast<std::size_t>(b)]);
  std::swap(turned.strides[static_cast<std::size_t>(a)], turned.strides[static_cast<std::size_t>(b)]);
  return turned;
}

TensorView reversed(const TensorView& view, int dimension) {
  TensorView turned = view;
  const auto i = static_cast<std::size_t>(dimension);
  if (view.shape[i] > 0) turned.data = address_of(view, (view.shape[i] - 1) * view.strides[i]);
  turned.strides[i] = -view.strides[i];
  return turned;
}

TensorView expanded(const TensorView& view, int dimension, std::int64_t size) {
  TensorView repeated = view;
  const auto i = static_cast<std::size_t>(dimension);
  assert(view.shape[i] == 1);
  repeated.shape[i] = size;
  repeated.strides[i] = 0;
  return repeated;
}

void fill(const TensorView& view, double value) {
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, value); });
}

void fill(const TensorView& view, const std::function<double()>& next) {
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, next()); });
}

void fill_normal(const TensorView& view, Random& random, double scale) {
  for_each_offset(view, [&](std::int64_t offset) { store(view, offset, scale * random.normal()); });
}

void copy(const TensorView& from, const TensorView& to) {
  std::vector<double> values;
  for_each_offset(from, [&](std::int64_t offset) { values.push_back(load(from, offset)); });
  std::size_t next = 0;
  for_each_offset(to, [&](std::int64_t offset) { store(to, offset, values[next++]); });
}

std::string first_difference(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || a.rank != b.rank || !std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin()))
    return "shapes or dtypes differ: " + a.describe() + " and " + b.describe();
  std::vector<std::int64_t> offsets;
  for_each_offset(b, [&](std::int64_t offset) { offsets.push_back(offset); });
  std::size_t next = 0, count = 0, first = 0;
  double first_a = 0, first_b = 0;
  for_each_offset(a, [&](std::int64_t offset) {
    if (std::memcmp(address_of(a, offset), address_of(b, offsets[next]), element_bytes(a.dtype)) != 0 && count++ == 0) {
      first = next;
      first_a = load(a, offset);
      first_b = load(b, offsets[next]);
    }
    ++next;
  });
  if (count == 0) return {};
  std::vector<std::int64_t> index(static_cast<std::size_t>(a.rank));
  for (int i = a.rank - 1; i >= 0; --i) {
    const auto dimension = static_cast<std::size_t>(i);
    index[dimension] = static_cast<std::int64_t>(first) % a.shape[dimension];
    first /= static_cast<std::size_t>(a.shape[dimension]);
  }
  std::ostringstream text;
  text.precision(9);
  text << count << " of " << next << " elements differ, the first at [";
  for (std::size_t i = 0; i < index.size(); ++i) text << (i == 0 ? "" : ", ") << index[i];
  text << "]: " << first_a << " and " << first_b;
  return text.str();
}

bool same_bits(const TensorView& a, const TensorView& b) {
  return first_difference(a, b).empty();
}

Tensor::Tensor(DType dtype, const Sizes& shape) {
  Sizes strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  *this = Tensor(dtype, shape, strides);
}

Tensor::Tensor(DType dtype, const Sizes& shape, const Sizes& strides, std::int64_t misalignment) {
  const std::size_t element = element_bytes(dtype);
  std::int64_t lowest = 0, highest = 0;
  bool empty = false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    empty = empty || shape[i] == 0;
    const std::int64_t reach = shape[i] > 1 ? (shape[i] - 1) * strides[i] : 0;
    (reach < 0 ? lowest : highest) += reach;
  }
  const std::int64_t elements = empty ? 0 : highest - lowest + 1;
  // 64-byte aligned surroundings, then the misalignment, then the elements, then surroundings again.
  bytes_ = 2 * surrounding_bytes + static_cast<std::size_t>(elements + misalignment) * element;
  void* memory = std::aligned_alloc(64, (bytes_ + 63) / 64 * 64);
  if (memory == nullptr) throw std::bad_alloc();
  owner_ = std::shared_ptr<void>(memory, std::free);
  begin_ = static_cast<unsigned char*>(memory);
  unsigned char* data = begin_ + surrounding_bytes + static_cast<std::size_t>(misalignment - (empty ? 0 : lowest)) * element;
  view_ = TensorView(data, dtype, static_cast<int>(shape.size()), shape.data(), strides.data());
  poison();
}

Tensor::Tensor(DType dtype, const Sizes& shape, Guard guard) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  auto buffer = std::make_shared<GuardedBuffer>(count * element_bytes(dtype), guard);
  begin_ = buffer->accessible();
  bytes_ = buffer->accessible_bytes();
  view_ = TensorView(buffer->data(), dtype, static_cast<int>(shape.size()), shape.data());
  owner_ = buffer;
  poison();
}

Tensor Tensor::ordered(DType dtype, const Sizes& shape, const std::vector<int>& order, std::int64_t padding,
                       std::int64_t element_stride) {
  Sizes strides(shape.size());
  std::int64_t stride = element_stride;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dimension = static_cast<std::size_t>(order[i]);
    strides[dimension] = stride;
    stride *= std::max<std::int64_t>(shape[dimension], 1);
    if (i + 1 == order.size()) stride += padding;
  }
  return Tensor(dtype, shape, strides);
}

// 0xFFFB: read in twos, fours or eights it is a quiet NaN of f16, bf16, f32 and f64, and a negative number of the integers.
void Tensor::poison() {
  for (std::size_t i = 0; i < bytes_; ++i) begin_[i] = (reinterpret_cast<std::uintptr_t>(begin_ + i) & 1) == 0 ? 0xFB : 0xFF;
}

bool Tensor::surroundings_intact() const {
  std::vector<unsigned char> is_element(bytes_, 0);
  const std::size_t size = element_bytes(view_.dtype);
  // Of rows whose elements lie side by side, a whole one at a time.
  TensorView rows = view_;
  std::size_t row_bytes = size;
  if (view_.rank > 0 && view_.strides[static_cast<std::size_t>(view_.rank - 1)] == 1) {
    rows.rank = view_.rank - 1;
    row_bytes *= static_cast<std::size_t>(view_.shape[static_cast<std::size_t>(rows.rank)]);
  }
  for_each_offset(
      rows, [&](std::int64_t offset) { std::memset(is_element.data() + (address_of(view_, offset) - begin_), 1, row_bytes); });
  for (std::size_t i = 0; i < bytes_; ++i) {
    const unsigned char expected = (reinterpret_cast<std::uintptr_t>(begin_ + i) & 1) == 0 ? 0xFB : 0xFF;
    if (!is_element[i] && begin_[i] != expected) return false;
  }
  return true;
}

Tensor Tensor::clone() const {
  Tensor twin;
  twin.bytes_ = bytes_;
  const auto misalignment = reinterpret_cast<std::uintptr_t>(begin_) % 64;
  void* memory = std::aligned_alloc(64, (bytes_ + misalignment + 63) / 64 * 64);
  if (memory == nullptr) throw std::bad_alloc();
  twin.owner_ = std::shared_ptr<void>(memory, std::free);
  twin.begin_ = static_cast<unsigned char*>(memory) + misalignment;
  std::memcpy(twin.begin_, begin_, bytes_);
  twin.view_ = view_;
  twin.view_.data = twin.begin_ + (static_cast<unsigned char*>(view_.data) - begin_);
  return twin;
}

Tensor integers(DType dtype, const std::vector<std::int64_t>& values) {
  Tensor tensor(dtype, {static_cast<std::int64_t>(values.size())});
  std::size_t next = 0;
  for_each_offset(tensor, [&](std::int64_t offset) {
    const std::int64_t value = values[next++];
    if (dtype == DType::i32) {
      tensor.i32()[offset] = static_cast<std::int32_t>(value);
    } else {
      tensor.i64()[offset] = value;
    }
  });
  return tensor;
}

Tensor converted(const TensorView& from, DType dtype) {
  const Tensor to(dtype, {from.shape.begin(), from.shape.begin() + from.rank});
  copy(from, to);
  return to;
}

}  // namespace polyhead::testing
