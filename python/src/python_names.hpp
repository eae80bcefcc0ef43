// Interned attribute names: looked up by pointer on every call instead of being hashed again.
#pragma once

#include <nanobind/nanobind.h>

namespace polyhead::python {

struct PythonNames {
  nanobind::object torch, requires_grad, is_neg;
};

// Made on first use and kept until the process ends.
inline const PythonNames& names() {
  static const PythonNames* const instance = [] {
    const auto intern = [](const char* text) { return nanobind::steal(PyUnicode_InternFromString(text)); };
    return new PythonNames{intern("torch"), intern("requires_grad"), intern("is_neg")};
  }();
  return *instance;
}

}  // namespace polyhead::python
