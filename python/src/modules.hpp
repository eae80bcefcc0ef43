// The parts of the module _polyhead, each registered by its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace polyhead::python {

void register_attention(nanobind::module_& module);
void register_kv_cache(nanobind::module_& module);
void register_attention_weights(nanobind::module_& module);
void register_explain(nanobind::module_& module);
void register_flash_attention(nanobind::module_& module);
void register_flash_kvcache(nanobind::module_& module);
void register_merge(nanobind::module_& module);
void register_multi_head_attention(nanobind::module_& module);
void register_bert(nanobind::module_& module);

}  // namespace polyhead::python
