#include "api/attention_spec.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "api/checks.hpp"
#include "dispatch/kernel_table.hpp"

namespace polyhead::api {

bool is_served(DType dtype) {
  const std::vector<DType>& served = dispatch::attention_dtypes();
  return std::find(served.begin(), served.end(), dtype) != served.end();
}

std::string served_dtypes() {
  const std::vector<DType>& served = dispatch::attention_dtypes();
  std::string text;
  for (std::size_t i = 0; i < served.size(); ++i) {
    text += std::string(i == 0 ? "" : i + 1 < served.size() ? ", " : " or ") + name(served[i]);
  }
  return text;
}

void check_size(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) fail(name, std::to_string(value), std::to_string(least) + " or more");
}

void check_dtype(const char* field, DType dtype) {
  if (is_served(dtype)) return;
  throw Error(ErrorCode::unsupported, std::string(field) + " is " + name(dtype) + "; this build serves " + served_dtypes());
}

DType key_dtype(const AttentionSpec& spec) {
  return spec.key_dtype.value_or(spec.dtype);
}

DType out_dtype(const AttentionSpec& spec) {
  return spec.out_dtype.value_or(spec.dtype);
}

namespace {

void check_relative_bias(const AttentionSpec& spec) {
  const RelativeBias& bias = spec.relative_bias;
  constexpr std::int64_t most_buckets = 1 << 20, most_distance = 1 << 20, most_side = 1 << 15;  // far above any model's
  const auto check = [](const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    fail((std::string("AttentionSpec.relative_bias.") + field).c_str(), std::to_string(value),
         std::to_string(least) + " to " + std::to_string(most));
  };
  switch (bias.kind) {
    case RelativeBias::Kind::none:
      return;
    case RelativeBias::Kind::t5: {
      check("buckets", bias.buckets, bias.bidirectional ? 4 : 2, most_buckets);
      if (bias.bidirectional && bias.buckets % 2 != 0) {
        fail("AttentionSpec.relative_bias.buckets", std::to_string(bias.buckets), "an even number, since it is bidirectional");
      }
      check("max_distance", bias.max_distance, bias.buckets / (bias.bidirectional ? 4 : 2) + 1, most_distance);
      break;
    }
    case RelativeBias::Kind::swin: {
      check("height", bias.height, 1, most_side);
      check("width", bias.width, 1, most_side);
      const Mask& mask = spec.mask;
      if (mask.causality != Causal::none || mask.has_offsets || mask.window_left != Mask::unbounded ||
          mask.window_right != Mask::unbounded || spec.has_alibi) {
        fail("AttentionSpec.relative_bias", "Swin's together with a causal alignment, a window, offsets or ALiBi",
             "one without these, since positions of an image have no order");
      }
      break;
    }
    default:
      fail("AttentionSpec.relative_bias.kind", std::to_string(static_cast<int>(bias.kind)), "a RelativeBias::Kind");
  }
  if (spec.mask.has_bias) {
    fail("AttentionSpec.mask.has_bias", "true", "false beside a relative bias, which is in the place of a bias");
  }
}

void check_score_mod(const AttentionSpec& spec) {
  const ScoreMod& mod = spec.score_mod;
  if (mod.empty()) {
    const ScoreFunctions& functions = mod.functions;
    if (mod.classify || functions.sse4 || functions.avx2 || functions.avx512) {
      fail("AttentionSpec.score_mod.functions.baseline", "null", "a function, where any part of a score_mod is given");
    }
    return;
  }
  if (mod.name == nullptr) fail("AttentionSpec.score_mod.name", "null", "a text");
  if (*mod.name == '\0') fail("AttentionSpec.score_mod.name", "empty", "a text");
  if (spec.relative_bias.kind == RelativeBias::Kind::swin) {
    fail("AttentionSpec.score_mod", "given together with Swin's relative bias",
         "one of the two: the function may add that bias");
  }
}

}  // namespace

AttentionSpec resolve(AttentionSpec spec) {
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.value_dim == 0) spec.value_dim = spec.head_dim;
  check_size("AttentionSpec.batch", spec.batch, 0);
  check_size("AttentionSpec.heads", spec.heads, 1);
  check_size("AttentionSpec.kv_heads", spec.kv_heads, 1);
  check_size("AttentionSpec.query_length", spec.query_length, 0);
  check_size("AttentionSpec.key_length", spec.key_length, 0);
  check_size("AttentionSpec.head_dim", spec.head_dim, 1);
  check_size("AttentionSpec.value_dim", spec.value_dim, 1);
  if (spec.heads % spec.kv_heads != 0) {
    fail("AttentionSpec.kv_heads", std::to_string(spec.kv_heads), "a divisor of heads (" + std::to_string(spec.heads) + ")");
  }
  // Every count of elements that index arithmetic forms must fit in 64 bits.
  std::int64_t elements = static_cast<std::int64_t>(sizeof(float)) * 64;
  for (const std::int64_t size :
       {std::max<std::int64_t>(spec.batch, 1), spec.heads, std::max<std::int64_t>({spec.query_length, spec.key_length, 1}),
        std::max(spec.head_dim, spec.value_dim) + 2}) {
    if (__builtin_mul_overflow(elements, size, &elements)) fail("AttentionSpec: its sizes overflow 64-bit offsets");
  }
  if (spec.scale && !std::isfinite(*spec.scale)) fail("AttentionSpec.scale", std::to_string(*spec.scale), "a finite number");
  if (!(spec.softcap >= 0.0) || !std::isfinite(spec.softcap)) {
    fail("AttentionSpec.softcap", std::to_string(spec.softcap), "0 (none) or a positive finite number");
  }
  check_mask("AttentionSpec.mask", spec.mask);
  check_precision("AttentionSpec.precision", spec.precision);
  check_relative_bias(spec);
  check_score_mod(spec);
  check_dtype("AttentionSpec.dtype", spec.dtype);
  if (const std::vector<DType>& kept = dispatch::cache_dtypes();
      std::find(kept.begin(), kept.end(), key_dtype(spec)) == kept.end()) {
    check_dtype("AttentionSpec.key_dtype", key_dtype(spec));
  }
  check_dtype("AttentionSpec.out_dtype", out_dtype(spec));
  return spec;
}

plan::AttentionShape shape_of(const AttentionSpec& spec) {
  return {spec.batch,    spec.heads,     spec.kv_heads, spec.query_length, spec.key_length,
          spec.head_dim, spec.value_dim, spec.dtype,    key_dtype(spec),   out_dtype(spec)};
}

double scale_of(const AttentionSpec& spec) {
  return spec.scale ? *spec.scale : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
}

}  // namespace polyhead::api
