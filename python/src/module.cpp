// The extension module polyhead._polyhead.
#include <nanobind/nanobind.h>

#include "default_runtime.hpp"
#include "errors.hpp"
#include "modules.hpp"

NB_MODULE(_polyhead, module) {
  module.doc() = "Polyhead's C++ library for Python; use it through the package polyhead.";
  polyhead::python::register_errors(module);
  polyhead::python::register_runtime(module);
  polyhead::python::register_attention(module);
  polyhead::python::register_kv_cache(module);
  polyhead::python::register_attention_weights(module);
  polyhead::python::register_explain(module);
  polyhead::python::register_flash_attention(module);
  polyhead::python::register_flash_kvcache(module);
  polyhead::python::register_merge(module);
  polyhead::python::register_multi_head_attention(module);
  polyhead::python::register_bert(module);
}
