// Everything of the C++ interface.
#pragma once

#include "polyhead/attention.hpp"
#include "polyhead/bert.hpp"
#include "polyhead/error.hpp"
#include "polyhead/kv_cache.hpp"
#include "polyhead/mask.hpp"
#include "polyhead/merge.hpp"
#include "polyhead/multi_head_attention.hpp"
#include "polyhead/precision.hpp"
#include "polyhead/relative_bias.hpp"
#include "polyhead/runtime.hpp"
#include "polyhead/tensor.hpp"
#include "polyhead/transformer.hpp"
#include "polyhead/version.hpp"
#include "polyhead/weight_type.hpp"
