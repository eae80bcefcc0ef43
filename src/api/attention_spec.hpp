// A spec of attention: what it leaves open filled in, every field checked.
#pragma once

#include <cstdint>
#include <string>

#include "plan/attention_work.hpp"
#include "polyhead/attention.hpp"

namespace polyhead::api {

// Data types of query, key, value and out that this build has kernels for.
bool is_served(DType dtype);
std::string served_dtypes();  // "f32, bf16 or f16"

void check_size(const char* name, std::int64_t value, std::int64_t least);
void check_dtype(const char* field, DType dtype);  // that it is served

AttentionSpec resolve(AttentionSpec spec);

// Of a resolved spec.
DType key_dtype(const AttentionSpec& spec);
DType out_dtype(const AttentionSpec& spec);
plan::AttentionShape shape_of(const AttentionSpec& spec);
double scale_of(const AttentionSpec& spec);

}  // namespace polyhead::api
