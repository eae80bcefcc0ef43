// The runtime that the module's functions and new operators use: made on first use, replaced by set_num_threads.
#pragma once

#include <nanobind/nanobind.h>

#include "polyhead/runtime.hpp"

namespace polyhead::python {

// A handle of its own, so that a call in progress keeps its runtime when another thread replaces the default. Needs the GIL.
Runtime default_runtime();

void register_runtime(nanobind::module_& module);

}  // namespace polyhead::python
