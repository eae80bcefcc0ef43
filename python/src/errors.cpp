#include "errors.hpp"

#include <array>
#include <cstddef>
#include <exception>
#include <string>

namespace polyhead::python {

namespace nb = nanobind;

namespace {

// Indexed by ErrorCode; entry 0 is the base class. Never released: translators run until the interpreter ends.
std::array<PyObject*, 7> classes{};

PyObject* make_class(nb::module_& module, const char* name, const char* code, nb::tuple bases, const char* doc) {
  nb::dict members;
  members["code"] = code;
  members["__module__"] = "polyhead";
  members["__doc__"] = doc;
  nb::object type = nb::borrow(reinterpret_cast<PyObject*>(&PyType_Type))(name, bases, members);
  module.attr(name) = type;
  return type.release().ptr();
}

}  // namespace

void throw_type_error(const std::string& message) {
  throw nb::type_error(message.c_str());
}

void register_errors(nb::module_& module) {
  classes[0] = make_class(module, "Error", "error", nb::make_tuple(nb::handle(PyExc_Exception)),
                          "Base of every error that Polyhead raises; `code` says which kind.");
  const auto derive = [&](ErrorCode code, const char* name, const char* code_name, PyObject* also, const char* doc) {
    classes[static_cast<std::size_t>(code)] =
        make_class(module, name, code_name, nb::make_tuple(nb::handle(classes[0]), nb::handle(also)), doc);
  };
  derive(ErrorCode::invalid_argument, "InvalidArgumentError", "invalid_argument", PyExc_ValueError,
         "An argument's shape, data type or value is wrong; the message names it.");
  derive(ErrorCode::unsupported, "UnsupportedError", "unsupported", PyExc_NotImplementedError,
         "A legal request that this build or machine does not serve.");
  derive(ErrorCode::out_of_memory, "OutOfMemoryError", "out_of_memory", PyExc_MemoryError, "Memory ran out.");
  derive(ErrorCode::cancelled, "CancelledError", "cancelled", PyExc_RuntimeError, "The call was cancelled.");
  derive(ErrorCode::io_error, "FileError", "io_error", PyExc_OSError,
         "A file could not be read, or is not what its format promises.");
  derive(ErrorCode::internal, "InternalError", "internal", PyExc_RuntimeError, "A fault of Polyhead's own.");

  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          const auto index = static_cast<std::size_t>(error.code());
          PyErr_SetString(index < classes.size() ? classes[index] : classes[0], error.what());
        }
      },
      nullptr);
}

}  // namespace polyhead::python
