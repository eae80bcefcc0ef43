/* Caches that store bf16, f16 and i8 from C99, under queries of f32: by one call, and by a plan that names both types; and the
 * weights of attention over them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "polyhead/polyhead.h"

enum { heads = 4, kv_heads = 2, length = 40, dim = 8 };

static float query[heads * dim], key[kv_heads * length * dim], value[kv_heads * length * dim], out[heads * dim];
static float stored_key[kv_heads * length * dim], stored_value[kv_heads * length * dim];

static void fill(float* values, int how_many, unsigned seed) {
  int i;
  for (i = 0; i < how_many; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

/* The largest error of one query a head, the sequence's last, over these keys and values. */
static double worst_error(const float* keys, const float* values) {
  double worst = 0;
  int h, s, d;
  for (h = 0; h < heads; ++h) {
    const int g = h / (heads / kv_heads);
    double weights[length], sum = 0;
    for (s = 0; s < length; ++s) {
      double score = 0;
      for (d = 0; d < dim; ++d) score += (double)query[h * dim + d] * keys[(g * length + s) * dim + d];
      weights[s] = exp(score / sqrt((double)dim));
      sum += weights[s];
    }
    for (d = 0; d < dim; ++d) {
      double right = 0;
      for (s = 0; s < length; ++s) right += weights[s] / sum * values[(g * length + s) * dim + d];
      if (!(fabs(out[h * dim + d] - right) <= worst)) worst = fabs(out[h * dim + d] - right);
    }
  }
  return worst;
}

/* Weights of one query of two heads over these keys, the larger heads' first, and what keys receive of all heads. */
static void test_weights(const polyhead_runtime* runtime, const polyhead_cached_attention_inputs* given, const float* keys) {
  static const int32_t chosen[2] = {3, 0};
  static const int64_t list_shape[1] = {2}, shape[4] = {1, 2, 1, length}, received_shape[3] = {1, heads, length};
  polyhead_attention_weights_request request = POLYHEAD_INIT(polyhead_attention_weights_request);
  polyhead_cached_attention_inputs inputs = *given;
  polyhead_tensor views[3];
  float weights[2 * length], received[heads * length];
  int i, s, d;
  inputs.out = inputs.lse = NULL; /* not looked at */
  SUCCEEDS(polyhead_tensor_init(&views[0], chosen, POLYHEAD_I32, 1, list_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[1], weights, POLYHEAD_F32, 4, shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[2], received, POLYHEAD_F32, 3, received_shape, NULL));
  request.heads = &views[0], request.weights = &views[1];
  SUCCEEDS(polyhead_cached_attention_weights(runtime, &inputs, NULL, &request));
  request.heads = request.weights = NULL, request.received = &views[2];
  SUCCEEDS(polyhead_cached_attention_weights(runtime, &inputs, NULL, &request));
  for (i = 0; i < 2; ++i) {
    const int h = chosen[i], g = h / (heads / kv_heads);
    double right[length], sum = 0;
    for (s = 0; s < length; ++s) {
      double score = 0;
      for (d = 0; d < dim; ++d) score += (double)query[h * dim + d] * keys[(g * length + s) * dim + d];
      sum += right[s] = exp(score / sqrt((double)dim));
    }
    for (s = 0; s < length; ++s) CHECK(fabs(weights[i * length + s] - right[s] / sum) < 4e-6);
    for (s = 0; s < length; ++s) CHECK(received[h * length + s] == weights[i * length + s]);
  }
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_cached_attention_weights(NULL, &inputs, NULL, &request));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "request", polyhead_cached_attention_weights(runtime, &inputs, NULL, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "inputs", polyhead_cached_attention_weights(runtime, NULL, NULL, &request));
  inputs.cache = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cache", polyhead_cached_attention_weights(runtime, &inputs, NULL, &request));
}

/* bound: of what the type loses. */
static void test_stored(const polyhead_runtime* runtime, polyhead_dtype dtype, double bound) {
  static const int64_t query_shape[4] = {1, heads, 1, dim}, key_shape[4] = {1, kv_heads, length, dim};
  static const int64_t stored_shape[3] = {kv_heads, length, dim};
  polyhead_kv_cache_spec spec = POLYHEAD_INIT(polyhead_kv_cache_spec);
  polyhead_kv_cache_tokens tokens = POLYHEAD_INIT(polyhead_kv_cache_tokens);
  polyhead_cached_attention_inputs inputs = POLYHEAD_INIT(polyhead_cached_attention_inputs);
  polyhead_attention_spec attention = POLYHEAD_INIT(polyhead_attention_spec);
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_plan *plan = NULL, *none = NULL;
  polyhead_kv_cache* cache = NULL;
  polyhead_tensor views[6];
  spec.kind = POLYHEAD_CACHE_CONTIGUOUS, spec.sequences = 1, spec.kv_heads = kv_heads, spec.head_dim = dim;
  spec.capacity = length, spec.dtype = dtype;
  if (polyhead_kv_cache_create(&spec, &cache) == POLYHEAD_UNSUPPORTED) return; /* a build may have left it out */
  CHECK(cache != NULL);
  SUCCEEDS(polyhead_tensor_init(&views[0], query, POLYHEAD_F32, 4, query_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[1], key, POLYHEAD_F32, 4, key_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[2], value, POLYHEAD_F32, 4, key_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[3], out, POLYHEAD_F32, 4, query_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[4], stored_key, POLYHEAD_F32, 3, stored_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&views[5], stored_value, POLYHEAD_F32, 3, stored_shape, NULL));
  tokens.key = &views[1], tokens.value = &views[2];
  SUCCEEDS(polyhead_kv_cache_append(cache, &tokens));
  SUCCEEDS(polyhead_kv_cache_read(cache, 0, 0, &views[4], &views[5]));
  inputs.cache = cache, inputs.query = &views[0], inputs.out = &views[3];
  SUCCEEDS(polyhead_cached_attention(runtime, &inputs, NULL));
  CHECK(worst_error(key, value) < bound && worst_error(key, value) > 1e-6);
  CHECK(worst_error(stored_key, stored_value) < 1e-4);
  test_weights(runtime, &inputs, stored_key);

  mask.causal = POLYHEAD_CAUSAL_BOTTOM_RIGHT, mask.has_key_lengths = 1;
  attention.batch = 1, attention.heads = heads, attention.kv_heads = kv_heads, attention.query_length = 1;
  attention.key_length = length, attention.head_dim = dim, attention.mask = &mask;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &attention, &plan));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "the cache's dtype", polyhead_attention_plan_run_cached(plan, &inputs, NULL));
  polyhead_attention_plan_destroy(plan);
  attention.has_key_dtype = 1, attention.key_dtype = dtype;
  attention.has_out_dtype = 1, attention.out_dtype = POLYHEAD_F32;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &attention, &plan));
  memset(out, 0, sizeof(out));
  SUCCEEDS(polyhead_attention_plan_run_cached(plan, &inputs, NULL));
  CHECK(worst_error(stored_key, stored_value) < 1e-4);
  attention.key_dtype = 77;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.key_dtype is 77", polyhead_attention_plan_create(runtime, &attention, &none));
  attention.key_dtype = dtype, attention.out_dtype = POLYHEAD_I64;
  FAILS(POLYHEAD_UNSUPPORTED, "out_dtype is i64", polyhead_attention_plan_create(runtime, &attention, &none));
  CHECK(none == NULL);
  polyhead_attention_plan_destroy(plan);
  polyhead_kv_cache_destroy(cache);
}

int main(void) {
  polyhead_runtime* runtime = NULL;
  fill(query, heads * dim, 1);
  fill(key, kv_heads * length * dim, 2);
  fill(value, kv_heads * length * dim, 3);
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  test_stored(runtime, POLYHEAD_BF16, 1e-2);
  test_stored(runtime, POLYHEAD_F16, 1e-3);
  test_stored(runtime, POLYHEAD_I8, 1e-2);
  polyhead_runtime_destroy(runtime);
  if (failures != 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
