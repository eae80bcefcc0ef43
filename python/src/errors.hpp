// polyhead.Error and its subclasses, each of which is also the built-in exception that callers would expect.
#pragma once

#include <nanobind/nanobind.h>

#include "polyhead/error.hpp"

namespace polyhead::python {

void register_errors(nanobind::module_& module);

[[noreturn]] void throw_type_error(const std::string& message);

inline Error invalid(const std::string& message) {
  return Error(ErrorCode::invalid_argument, message);
}

}  // namespace polyhead::python
