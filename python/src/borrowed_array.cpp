#include "borrowed_array.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "dlpack_exchange.hpp"
#include "errors.hpp"
#include "python_names.hpp"

namespace polyhead::python {

namespace {

// ---- what an object's type offers, looked up once a type

struct TypeTraits {
  PyTypeObject* type = nullptr;  // a strong reference, so that the address cannot be reused by another type
  const dlpack::ExchangeTable* exchange = nullptr;
  bool is_torch = false;
  bool has_buffer = false;
  bool has_dlpack = false;
};

const dlpack::ExchangeTable* find_exchange(nb::handle type) {
  nb::object capsule = nb::getattr(type, dlpack::capsule_attribute, nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::capsule_name)) return nullptr;
  auto* table = static_cast<const dlpack::ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::capsule_name));
  while (table != nullptr && table->version.major != dlpack::abi_major) table = table->previous;
  return table != nullptr && table->tensor_from_object != nullptr ? table : nullptr;
}

bool is_torch_type(nb::handle type) {
  // The module is looked up, never imported: a tensor cannot exist before torch does.
  nb::object torch = nb::steal(PyImport_GetModule(names().torch.ptr()));
  if (!torch.is_valid()) return false;
  nb::object tensor = nb::getattr(torch, "Tensor", nb::none());
  return PyType_Check(tensor.ptr()) && PyObject_IsSubclass(type.ptr(), tensor.ptr()) == 1;
}

const TypeTraits& traits_of(PyTypeObject* type) {
  // A program passes a handful of types; the table is small, scanned in order and cleared when types are made by the dozen.
  static std::vector<TypeTraits> table;
  for (const TypeTraits& entry : table) {
    if (entry.type == type) return entry;
  }
  constexpr std::size_t most_types = 32;
  if (table.size() >= most_types) {
    for (const TypeTraits& entry : table) Py_DECREF(entry.type);
    table.clear();
  }
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  TypeTraits traits;
  traits.type = type;
  traits.is_torch = is_torch_type(handle);
  traits.exchange = find_exchange(handle);
  traits.has_buffer = type->tp_as_buffer != nullptr && type->tp_as_buffer->bf_getbuffer != nullptr;
  traits.has_dlpack = nb::hasattr(handle, "__dlpack__");
  Py_INCREF(type);
  table.push_back(traits);
  return table.back();
}

// ---- element types

[[noreturn]] void unknown_dtype(const char* argument, const std::string& dtype) {
  throw_type_error(std::string(argument) + ": data type " + dtype + " is not supported");
}

std::string text_of(nb::handle object) {
  return nb::cast<std::string>(nb::steal(PyObject_Str(object.ptr())));
}

std::string dtype_text(nb::handle object) {
  return text_of(nb::getattr(object, "dtype", nb::none()));
}

bool dtype_from_dlpack(const dlpack::DataType& type, DType& result) {
  if (type.lanes != 1) return false;
  switch (type.code) {
    case dlpack::code_float:
      result = type.bits == 32 ? DType::f32 : type.bits == 16 ? DType::f16 : DType::f64;
      return type.bits == 32 || type.bits == 16 || type.bits == 64;
    case dlpack::code_bfloat:
      result = DType::bf16;
      return type.bits == 16;
    case dlpack::code_int:
      result = type.bits == 32 ? DType::i32 : type.bits == 64 ? DType::i64 : DType::i8;
      return type.bits == 32 || type.bits == 64 || type.bits == 8;
    case dlpack::code_uint:
      result = DType::u8;
      return type.bits == 8;
    case dlpack::code_bool:
      result = DType::boolean;
      return type.bits == 8;
    default:
      return false;
  }
}

// A struct-module format of one element. foreign is set for the other byte order.
bool dtype_from_format(const char* format, Py_ssize_t item_size, DType& result, bool& foreign) {
  const std::uint16_t one = 1;
  const bool little_endian = *reinterpret_cast<const unsigned char*>(&one) == 1;
  if (*format == '<' || *format == '>' || *format == '!') {
    foreign = (*format == '<') != little_endian;
    ++format;
  } else if (*format == '=' || *format == '@') {
    ++format;
  }
  if (format[0] == '\0' || format[1] != '\0') return false;
  switch (format[0]) {
    case 'f':
      result = DType::f32;
      return true;
    case 'd':
      result = DType::f64;
      return true;
    case 'e':
      result = DType::f16;
      return true;
    case '?':
      result = DType::boolean;
      return true;
    case 'B':
      result = DType::u8;
      return true;
    case 'b':
      result = DType::i8;
      return true;
    case 'i':
    case 'l':
    case 'q':
      result = item_size == 4 ? DType::i32 : DType::i64;
      return item_size == 4 || item_size == 8;
    default:
      return false;
  }
}

// ---- conversion to f32

float float_from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float float_from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

float float_from_f64(double value) {
  constexpr double most = std::numeric_limits<float>::max();
  return static_cast<float>(std::isinf(value) ? value : std::isnan(value) ? value : std::clamp(value, -most, most));
}

template <class Source, class Convert>
void gather(const TensorView& source, std::vector<float>& result, Convert convert) {
  TensorView::Dims index{};
  const auto* base = static_cast<const Source*>(source.data);
  for (float& value : result) {
    std::int64_t offset = 0;
    for (int i = 0; i < source.rank; ++i) offset += index[i] * source.strides[i];
    value = convert(base[offset]);
    for (int i = source.rank - 1; i >= 0; --i) {
      if (++index[i] < source.shape[i]) break;
      index[i] = 0;
    }
  }
}

void set_shape(TensorView& view, const char* argument, int rank, const std::string& what) {
  if (rank > TensorView::max_rank) {
    throw invalid(std::string(argument) + ": " + what + " has " + std::to_string(rank) + " dimensions, expected at most " +
                  std::to_string(TensorView::max_rank));
  }
  view.rank = rank;
}

}  // namespace

const char* python_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "uint8";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::f64:
      return "float64";
    case DType::boolean:
      return "bool";
  }
  return "unknown";
}

std::string describe_array(const TensorView& view) {
  std::string text = python_name(view.dtype);
  text += '[';
  for (int i = 0; i < view.rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  return text + ']';
}

BorrowedArray::BorrowedArray(nb::handle object, const char* argument, Access access) {
  const TypeTraits& traits = traits_of(Py_TYPE(object.ptr()));
  if (traits.is_torch) {
    framework_ = Framework::torch;
    exchange_ = traits.exchange;
    if (exchange_ != nullptr) {
      borrow_exchange(object, argument);
    } else {
      borrow_torch_attributes(object, argument);
    }
  } else if (traits.has_buffer) {
    framework_ = Framework::numpy;
    borrow_buffer(object, argument, access);
  } else if (traits.has_dlpack) {
    // Other frameworks' arrays are read in place through NumPy, which checks device and layout. Their results are NumPy's.
    framework_ = Framework::numpy;
    owner_ = nb::module_::import_("numpy").attr("from_dlpack")(object);
    borrow_buffer(owner_, argument, access);
  } else {
    throw_type_error(std::string(argument) + ": expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got " +
                     Py_TYPE(object.ptr())->tp_name);
  }
}

namespace {

[[noreturn]] void refuse_gradient(const char* argument) {
  throw Error(ErrorCode::unsupported,
              std::string(argument) +
                  ": requires grad, and Polyhead computes no gradients: call it under torch.no_grad() or "
                  "torch.inference_mode(), or pass " +
                  argument + ".detach()");
}

[[noreturn]] void refuse_device(const char* argument, nb::handle tensor) {
  const std::string device = text_of(nb::getattr(tensor, "device", nb::str("another device")));
  throw invalid(std::string(argument) + ": is on device " + device + ", expected memory of the CPU: pass " + argument +
                ".cpu()");
}

// The framework's own reason, without the stack trace that may follow its first line.
[[noreturn]] void refuse_export(const char* argument, const nb::python_error& reason) {
  const std::string text = text_of(reason.value());
  throw invalid(std::string(argument) + ": is no strided memory of the CPU: " + text.substr(0, text.find('\n')));
}

// What no description of memory tells: gradients to be recorded, and a lazily negated view.
void check_torch_state(nb::handle tensor, const char* argument) {
  const PythonNames& name = names();
  nb::object requires_grad = nb::steal(PyObject_GetAttr(tensor.ptr(), name.requires_grad.ptr()));
  if (!requires_grad.is_valid()) nb::raise_python_error();
  if (requires_grad.ptr() == Py_True) {
    nb::object enabled = nb::module_::import_("torch").attr("is_grad_enabled")();
    if (enabled.ptr() == Py_True) refuse_gradient(argument);
  }
  nb::object negated = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), name.is_neg.ptr()));
  if (!negated.is_valid()) nb::raise_python_error();
  if (negated.ptr() == Py_True) {
    throw invalid(std::string(argument) + ": is a lazily negated view (its negative bit is set): pass " + argument +
                  ".resolve_neg()");
  }
}

}  // namespace

void BorrowedArray::borrow_exchange(nb::handle object, const char* argument) {
  check_torch_state(object, argument);
  dlpack::Tensor tensor{};
  if (exchange_->tensor_from_object(object.ptr(), &tensor) != 0) refuse_export(argument, nb::python_error());
  if (tensor.device.type != dlpack::device_cpu && tensor.device.type != dlpack::device_cuda_host &&
      tensor.device.type != dlpack::device_rocm_host) {
    refuse_device(argument, object);
  }
  if (!dtype_from_dlpack(tensor.dtype, view_.dtype)) unknown_dtype(argument, dtype_text(object));
  set_shape(view_, argument, tensor.rank, "the tensor");
  bool has_elements = true;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    view_.shape[i] = tensor.shape[i];
    view_.strides[i] = tensor.strides != nullptr ? tensor.strides[i]
                       : i == tensor.rank - 1    ? 1
                                                 : view_.strides[i + 1] * view_.shape[i + 1];
    has_elements = has_elements && tensor.shape[i] != 0;
  }
  view_.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (has_elements && tensor.data == nullptr)
    throw invalid(std::string(argument) + ": the tensor has no memory (is it fake or on meta?)");
}

// PyTorch before the exchange interface.
void BorrowedArray::borrow_torch_attributes(nb::handle object, const char* argument) {
  check_torch_state(object, argument);
  if (text_of(object.attr("device").attr("type")) != "cpu") refuse_device(argument, object);
  const std::string layout = text_of(object.attr("layout"));
  if (layout != "torch.strided") throw invalid(std::string(argument) + ": layout is " + layout + ", expected torch.strided");
  static constexpr std::pair<const char*, DType> dtypes[] = {
      {"torch.float32", DType::f32},   {"torch.float64", DType::f64},  {"torch.float16", DType::f16},
      {"torch.bfloat16", DType::bf16}, {"torch.bool", DType::boolean}, {"torch.uint8", DType::u8},
      {"torch.int8", DType::i8},       {"torch.int32", DType::i32},    {"torch.int64", DType::i64}};
  const std::string dtype = dtype_text(object);
  const auto* found =
      std::find_if(std::begin(dtypes), std::end(dtypes), [&](const auto& entry) { return dtype == entry.first; });
  if (found == std::end(dtypes)) unknown_dtype(argument, dtype);
  view_.dtype = found->second;
  const nb::tuple shape(object.attr("shape"));
  const nb::tuple strides(object.attr("stride")());
  set_shape(view_, argument, static_cast<int>(shape.size()), "the tensor");
  bool has_elements = true;
  for (int i = 0; i < view_.rank; ++i) {
    view_.shape[i] = nb::cast<std::int64_t>(shape[i]);
    view_.strides[i] = nb::cast<std::int64_t>(strides[i]);
    has_elements = has_elements && view_.shape[i] != 0;
  }
  view_.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object.attr("data_ptr")()));
  if (has_elements && view_.data == nullptr)
    throw invalid(std::string(argument) + ": the tensor has no memory (is it fake or on meta?)");
}

void BorrowedArray::borrow_buffer(nb::handle object, const char* argument, Access access, bool is_bfloat16) {
  Py_buffer& buffer = exported_.buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    buffer.obj = nullptr;
    PyErr_Clear();
    if (nb::hasattr(object, "dtype")) {
      const std::string dtype = dtype_text(object);
      if (dtype != "bfloat16" || is_bfloat16) unknown_dtype(argument, dtype);
      // NumPy knows ml_dtypes' bfloat16 as a stranger whose memory it does not export; a view of it as integers it does.
      owner_ = object.attr("view")("uint16");
      return borrow_buffer(owner_, argument, access, true);
    }
    throw_type_error(std::string(argument) + ": its memory cannot be described as a strided array");
  }
  if (access == Access::write && buffer.readonly != 0) {
    throw invalid(std::string(argument) + ": the array is read-only, expected one that may be written to");
  }
  bool foreign = false;
  if (is_bfloat16) {
    view_.dtype = DType::bf16;
  } else if (!dtype_from_format(buffer.format != nullptr ? buffer.format : "B", buffer.itemsize, view_.dtype, foreign)) {
    unknown_dtype(argument, nb::hasattr(object, "dtype") ? dtype_text(object) : std::string(buffer.format));
  }
  set_shape(view_, argument, buffer.ndim, "the array");
  bool addressable = !foreign && reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::size_t>(buffer.itemsize) == 0;
  for (int i = 0; i < buffer.ndim; ++i) {
    view_.shape[i] = buffer.shape[i];
    view_.strides[i] = buffer.strides[i] / buffer.itemsize;
    addressable = addressable && (buffer.strides[i] % buffer.itemsize == 0 || buffer.shape[i] <= 1);
  }
  view_.data = buffer.buf;
  if (addressable) return;
  if (access == Access::write) {
    throw invalid(std::string(argument) +
                  ": the array is in foreign byte order or not aligned to its elements, expected one that can be "
                  "written to in place");
  }
  exported_.release();
  const nb::module_ numpy = nb::module_::import_("numpy");
  nb::object native = object.attr("dtype").attr("newbyteorder")("=");
  owner_ = numpy.attr("array")(object, nb::arg("dtype") = native, nb::arg("order") = "C", nb::arg("copy") = true);
  borrow_buffer(owner_, argument, access, is_bfloat16);
}

void BorrowedArray::convert_to_f32() {
  if (view_.dtype == DType::f32) return;
  TensorView source = view_;
  std::int64_t count = 1;
  TensorView::Dims strides{};
  for (int i = source.rank - 1; i >= 0; --i) {
    if (source.strides[i] == 0 && source.shape[i] > 1) source.shape[i] = 1;
    strides[i] = source.shape[i] == 1 ? 0 : count;
    count *= source.shape[i];
  }
  converted_.resize(static_cast<std::size_t>(count));
  switch (source.dtype) {
    case DType::f64:
      gather<double>(source, converted_, float_from_f64);
      break;
    case DType::f16:
      gather<std::uint16_t>(source, converted_, float_from_f16);
      break;
    default:
      gather<std::uint16_t>(source, converted_, [](std::uint16_t bits) { return float_from_bits(std::uint32_t{bits} << 16); });
  }
  view_.strides = strides;
  view_.dtype = DType::f32;
  view_.data = converted_.data();
}

namespace {

nb::object shape_tuple(int rank, const std::int64_t* shape) {
  nb::object dims = nb::steal(PyTuple_New(rank));
  for (int i = 0; i < rank; ++i) PyTuple_SET_ITEM(dims.ptr(), i, PyLong_FromLongLong(shape[i]));
  return dims;
}

void set_allocation_error(void* context, const char*, const char* message) {
  *static_cast<std::string*>(context) = message;
}

nb::object allocate(const dlpack::ExchangeTable& exchange, DType dtype, int rank, const std::int64_t* shape) {
  TensorView::Dims dims{};
  std::copy_n(shape, rank, dims.begin());
  dlpack::Tensor prototype{};
  prototype.device = {dlpack::device_cpu, 0};
  prototype.rank = rank;
  prototype.dtype = {dtype == DType::bf16 ? dlpack::code_bfloat : dlpack::code_float,
                     static_cast<std::uint8_t>(8 * size_in_bytes(dtype)), 1};
  prototype.shape = dims.data();
  dlpack::ManagedTensor* tensor = nullptr;
  std::string error;
  if (exchange.allocate(&prototype, &tensor, &error, set_allocation_error) != 0) throw Error(ErrorCode::out_of_memory, error);
  void* object = nullptr;
  if (exchange.object_from_managed(tensor, &object) != 0) nb::raise_python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

// Looked up once: importing takes longer than a small attention.
struct NumpyNames {
  nb::object empty, float32, float16;
};

const NumpyNames& numpy_names() {
  static const NumpyNames* const instance = [] {
    const nb::module_ numpy = nb::module_::import_("numpy");
    return new NumpyNames{numpy.attr("empty"), numpy.attr("float32"), numpy.attr("float16")};
  }();
  return *instance;
}

}  // namespace

namespace {

nb::object new_array(nb::handle object, const BorrowedArray& like, DType dtype, int rank, const std::int64_t* shape) {
  if (like.framework() == Framework::numpy) {
    const NumpyNames& numpy = numpy_names();
    if (dtype == DType::bf16) return numpy.empty(shape_tuple(rank, shape), object.attr("dtype"));
    return numpy.empty(shape_tuple(rank, shape), dtype == DType::f16 ? numpy.float16 : numpy.float32);
  }
  if (like.exchange() != nullptr) return allocate(*like.exchange(), dtype, rank, shape);
  const nb::module_ torch = nb::module_::import_("torch");
  return torch.attr("empty")(shape_tuple(rank, shape), nb::arg("dtype") = torch.attr(python_name(dtype)));
}

}  // namespace

nb::object new_f32_array(const BorrowedArray& like, int rank, const std::int64_t* shape) {
  return new_array(nb::handle(), like, DType::f32, rank, shape);
}

nb::object new_array_like(nb::handle object, const BorrowedArray& like, int rank, const std::int64_t* shape) {
  return new_array(object, like, like.view().dtype, rank, shape);
}

}  // namespace polyhead::python
