/* Weights of bf16 queries and keys, and merging of bf16 and f16 parts, from C99. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "polyhead/polyhead.h"

enum { heads = 2, rows = 3, length = 7, dim = 8 };

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

/* Numbers of either sign between 0.5 and 2. */
static void fill(uint16_t* bits, int count, unsigned seed) {
  int i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    bits[i] = (uint16_t)(0x3f00u + (seed >> 24) + (seed >> 8 & 0x8000u));
  }
}

static polyhead_tensor tensor(void* data, polyhead_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  polyhead_tensor result;
  int64_t shape[4];
  shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
  SUCCEEDS(polyhead_tensor_init(&result, data, dtype, rank, shape, NULL));
  return result;
}

static void test_weights(const polyhead_runtime* runtime) {
  uint16_t query[heads * rows * dim], key[heads * length * dim];
  float weights[heads * rows * length];
  polyhead_attention_inputs inputs = POLYHEAD_INIT(polyhead_attention_inputs);
  polyhead_attention_weights_request request = POLYHEAD_INIT(polyhead_attention_weights_request);
  polyhead_tensor query_view = tensor(query, POLYHEAD_BF16, 4, 1, heads, rows, dim);
  polyhead_tensor key_view = tensor(key, POLYHEAD_BF16, 4, 1, heads, length, dim);
  polyhead_tensor weights_view = tensor(weights, POLYHEAD_F32, 4, 1, heads, rows, length);
  int h, t, s, d;
  fill(query, heads * rows * dim, 1);
  fill(key, heads * length * dim, 2);
  inputs.query = &query_view, inputs.key = &key_view, request.weights = &weights_view;
  SUCCEEDS(polyhead_attention_weights(runtime, &inputs, NULL, &request));
  for (h = 0; h < heads; ++h)
    for (t = 0; t < rows; ++t) {
      double right[length], sum = 0;
      for (s = 0; s < length; ++s) {
        double score = 0;
        for (d = 0; d < dim; ++d) {
          score += (double)from_bf16(query[(h * rows + t) * dim + d]) * from_bf16(key[(h * length + s) * dim + d]);
        }
        sum += right[s] = exp(score / sqrt((double)dim));
      }
      /* Rounded to bf16 they would be as much as 1 / 256 of themselves away. */
      for (s = 0; s < length; ++s) CHECK(fabs(weights[(h * rows + t) * length + s] - right[s] / sum) < 1e-5);
    }
  weights_view.dtype = POLYHEAD_BF16;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "weights is bf16", polyhead_attention_weights(runtime, &inputs, NULL, &request));
  weights_view.dtype = POLYHEAD_F32;
  key_view.dtype = POLYHEAD_I8;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key is i8", polyhead_attention_weights(runtime, &inputs, NULL, &request));
}

static void test_merge(const polyhead_runtime* runtime) {
  uint16_t first[heads * rows * dim], second[heads * rows * dim], out[heads * rows * dim];
  float first_lse[heads * rows], second_lse[heads * rows], lse[heads * rows];
  polyhead_merge_inputs merge = POLYHEAD_INIT(polyhead_merge_inputs);
  polyhead_tensor first_view = tensor(first, POLYHEAD_BF16, 4, 1, heads, rows, dim), second_view = first_view;
  polyhead_tensor out_view = first_view, first_lse_view = tensor(first_lse, POLYHEAD_F32, 3, 1, heads, rows, 0);
  polyhead_tensor second_lse_view = first_lse_view, lse_view = first_lse_view;
  int i;
  fill(first, heads * rows * dim, 3);
  fill(second, heads * rows * dim, 4);
  for (i = 0; i < heads * rows; ++i) first_lse[i] = (float)(0.5 * i), second_lse[i] = 1.0f;
  second_view.data = second, out_view.data = out, second_lse_view.data = second_lse, lse_view.data = lse;
  merge.out1 = &first_view, merge.lse1 = &first_lse_view, merge.out2 = &second_view, merge.lse2 = &second_lse_view;
  merge.out = &out_view, merge.lse = &lse_view;
  SUCCEEDS(polyhead_merge(runtime, &merge));
  for (i = 0; i < heads * rows * dim; ++i) {
    const double x = exp(first_lse[i / dim]), y = exp(second_lse[i / dim]);
    const double right = (x * from_bf16(first[i]) + y * from_bf16(second[i])) / (x + y);
    CHECK(fabs(from_bf16(out[i]) - right) < 4e-6 + fabs(right) / 256); /* half a step */
    CHECK(fabs(lse[i / dim] - log(x + y)) < 1e-6);
  }
  merge.out = &first_view; /* in place */
  SUCCEEDS(polyhead_merge(runtime, &merge));
  CHECK(memcmp(first, out, sizeof(out)) == 0);
  second_view.dtype = POLYHEAD_F16;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "out2 is f16", polyhead_merge(runtime, &merge));
  /* As f16, where 0x3c00 is 1: a part that saw no key counts for nothing. */
  first_view.dtype = POLYHEAD_F16;
  for (i = 0; i < heads * rows * dim; ++i) first[i] = 0x3c00;
  for (i = 0; i < heads * rows; ++i) second_lse[i] = (float)-HUGE_VAL;
  SUCCEEDS(polyhead_merge(runtime, &merge));
  for (i = 0; i < heads * rows * dim; ++i) CHECK(first[i] == 0x3c00);
  first_view.dtype = second_view.dtype = POLYHEAD_I8;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "out1 is i8", polyhead_merge(runtime, &merge));
}

int main(void) {
  polyhead_runtime* runtime = NULL;
  polyhead_attention_spec spec = POLYHEAD_INIT(polyhead_attention_spec);
  polyhead_attention_plan* plan = NULL;
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  spec.heads = 1, spec.head_dim = dim, spec.dtype = POLYHEAD_F16;
  /* A build may have left types out. */
  if (polyhead_attention_plan_create(runtime, &spec, &plan) == POLYHEAD_OK) {
    polyhead_attention_plan_destroy(plan);
    spec.dtype = POLYHEAD_BF16;
    if (polyhead_attention_plan_create(runtime, &spec, &plan) == POLYHEAD_OK) {
      polyhead_attention_plan_destroy(plan);
      test_weights(runtime);
      test_merge(runtime);
    }
  }
  polyhead_runtime_destroy(runtime);
  if (failures != 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures != 0;
}
