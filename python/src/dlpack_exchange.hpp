// The part of DLPack's C exchange interface that we read: a table of C functions which a tensor type publishes as the capsule
// __dlpack_c_exchange_api__. It describes a tensor in tens of nanoseconds, where __dlpack__ takes microseconds.
//
// The layouts are those of DLPack's ABI version 1 (its specification: https://dmlc.github.io/dlpack/latest/).
#pragma once

#include <cstdint>

namespace polyhead::python::dlpack {

constexpr std::uint32_t abi_major = 1;
constexpr const char* capsule_attribute = "__dlpack_c_exchange_api__";
constexpr const char* capsule_name = "dlpack_exchange_api";

enum DeviceType : std::int32_t { device_cpu = 1, device_cuda_host = 3, device_rocm_host = 11 };

enum TypeCode : std::uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_complex = 5, code_bool = 6 };

struct Version {
  std::uint32_t major, minor;
};

struct Device {
  std::int32_t type, index;
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;    // owned by the producer
  std::int64_t* strides;  // in elements; null in old versions: row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor;

struct ExchangeTable {
  Version version;
  ExchangeTable* previous;  // a table of an older major version, or null
  int (*allocate)(Tensor* prototype, ManagedTensor** result, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensor** result);
  int (*object_from_managed)(ManagedTensor* tensor, void** object);
  // Fills a caller's Tensor without taking ownership; null when the producer does not offer it.
  int (*tensor_from_object)(void* object, Tensor* result);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** stream);
};

}  // namespace polyhead::python::dlpack
