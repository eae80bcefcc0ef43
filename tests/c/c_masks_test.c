/* What masks mean through the C interface: which keys a row sees, in numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "polyhead/polyhead.h"

static polyhead_tensor tensor4(const float* data, int64_t a, int64_t b, int64_t c, int64_t d) {
  polyhead_tensor tensor;
  int64_t shape[4];
  shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
  SUCCEEDS(polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 4, shape, NULL));
  return tensor;
}

/* Queries of 0, so that a row is the mean index of the keys that it sees: which ones these are, by the names of this interface.
 */
static void mean_index(const polyhead_runtime* runtime, const polyhead_mask* mask, int64_t queries, int64_t keys,
                       const polyhead_tensor* offsets, const polyhead_tensor* boolean_mask, float* out) {
  static float zeros[16], indices[16];
  polyhead_attention_inputs inputs = POLYHEAD_INIT(polyhead_attention_inputs);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  const polyhead_tensor query = tensor4(zeros, 1, 1, queries, 1), key = tensor4(zeros, 1, 1, keys, 1),
                        value = tensor4(indices, 1, 1, keys, 1), result = tensor4(out, 1, 1, queries, 1);
  int i;
  for (i = 0; i < 16; ++i) indices[i] = (float)i;
  for (i = 0; i < 16; ++i) out[i] = -7.0f;
  inputs.query = &query, inputs.key = &key, inputs.value = &value, inputs.out = &result;
  inputs.offsets = offsets, inputs.boolean_mask = boolean_mask;
  options.mask = mask;
  SUCCEEDS(polyhead_attention(runtime, &inputs, &options));
}
#define MEANS(i, right) CHECK(fabs(out[i] - (right)) < 1e-5)

static void test_conventions(const polyhead_runtime* runtime) {
  static const int64_t three[1] = {3};
  static const unsigned char keep[5] = {0, 1, 0, 2, 0};
  const int64_t one[1] = {1}, five[1] = {5};
  polyhead_tensor offsets, boolean_mask;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  float out[16];
  mask.causal = POLYHEAD_CAUSAL_TOP_LEFT;
  mean_index(runtime, &mask, 2, 5, NULL, NULL, out);
  MEANS(0, 0.0), MEANS(1, 0.5);
  mean_index(runtime, &mask, 5, 2, NULL, NULL, out);
  MEANS(0, 0.0), MEANS(1, 0.5), MEANS(4, 0.5);
  mask.causal = POLYHEAD_CAUSAL_BOTTOM_RIGHT;
  mean_index(runtime, &mask, 2, 5, NULL, NULL, out);
  MEANS(0, 1.5), MEANS(1, 2.0);
  mean_index(runtime, &mask, 5, 2, NULL, NULL, out);
  CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0);
  MEANS(3, 0.0), MEANS(4, 0.5);
  mean_index(runtime, &mask, 1, 5, NULL, NULL, out);
  MEANS(0, 2.0);
  SUCCEEDS(polyhead_tensor_init(&offsets, three, POLYHEAD_I64, 1, one, NULL));
  mask.causal = POLYHEAD_CAUSAL_OFFSET, mask.has_offsets = 1;
  mean_index(runtime, &mask, 2, 5, &offsets, NULL, out);
  MEANS(0, 1.5), MEANS(1, 2.0);
  mask.has_offsets = 0;

  /* Windows count both ends: three to the left and the key itself are four keys. */
  mask.causal = POLYHEAD_CAUSAL_TOP_LEFT, mask.has_window = 1, mask.window_left = 3, mask.window_right = 0;
  mean_index(runtime, &mask, 10, 10, NULL, NULL, out);
  MEANS(9, 7.5);
  mask.window_left = 4;
  mean_index(runtime, &mask, 10, 10, NULL, NULL, out);
  MEANS(9, 7.0);
  mask.causal = POLYHEAD_CAUSAL_NONE, mask.window_left = -1, mask.window_right = 1;
  mean_index(runtime, &mask, 3, 5, NULL, NULL, out);
  MEANS(0, 0.5), MEANS(1, 1.0), MEANS(2, 1.5);
  mask.causal = POLYHEAD_CAUSAL_TOP_LEFT, mask.window_left = 1, mask.window_right = 0, mask.window_kept = 1;
  mean_index(runtime, &mask, 6, 6, NULL, NULL, out);
  MEANS(3, 5.0 / 3), MEANS(4, 7.0 / 3), MEANS(5, 3.0);
  mask.causal = POLYHEAD_CAUSAL_NONE, mask.window_kept = 0;
  mask.has_window = 0;

  /* True attends; nothing attended to is 0. */
  SUCCEEDS(polyhead_tensor_init(&boolean_mask, keep, POLYHEAD_U8, 1, five, NULL));
  mask.has_boolean = 1;
  mean_index(runtime, &mask, 2, 5, NULL, &boolean_mask, out);
  MEANS(0, 2.0), MEANS(1, 2.0);
  {
    static const unsigned char nothing[5] = {0, 0, 0, 0, 0};
    SUCCEEDS(polyhead_tensor_init(&boolean_mask, nothing, POLYHEAD_U8, 1, five, NULL));
    mean_index(runtime, &mask, 2, 5, NULL, &boolean_mask, out);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] == -7.0f);
  }
  mask.has_boolean = 0;

  /* No keys at all, and no queries. */
  mean_index(runtime, &mask, 2, 0, NULL, NULL, out);
  CHECK(out[0] == 0 && out[1] == 0 && out[2] == -7.0f);
  mean_index(runtime, &mask, 0, 5, NULL, NULL, out);
  CHECK(out[0] == -7.0f);
}

/* A bias of 0, -inf, 1, -inf, 1/2 for five keys, in each type that it may have. */
static void test_bias(const polyhead_runtime* runtime) {
  static const float f32[5] = {0.0f, -HUGE_VALF, 1.0f, -HUGE_VALF, 0.5f};
  static const unsigned short bf16[5] = {0x0000, 0xFF80, 0x3F80, 0xFF80, 0x3F00},
                              f16[5] = {0x0000, 0xFC00, 0x3C00, 0xFC00, 0x3800};
  const struct {
    const void* data;
    polyhead_dtype dtype;
  } kinds[3] = {{f32, POLYHEAD_F32}, {bf16, POLYHEAD_BF16}, {f16, POLYHEAD_F16}};
  static float zeros[8], indices[5] = {0, 1, 2, 3, 4}, out[3];
  const double right = (2 * exp(1.0) + 4 * exp(0.5)) / (1 + exp(1.0) + exp(0.5));
  const int64_t five[1] = {5}, rows[3] = {1, 3, 5}, repeated[3] = {0, 0, 1};
  polyhead_attention_inputs inputs = POLYHEAD_INIT(polyhead_attention_inputs);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  const polyhead_tensor query = tensor4(zeros, 1, 1, 3, 1), key = tensor4(zeros, 1, 1, 5, 1),
                        value = tensor4(indices, 1, 1, 5, 1), result = tensor4(out, 1, 1, 3, 1);
  polyhead_tensor bias;
  int kind, i;
  inputs.query = &query, inputs.key = &key, inputs.value = &value, inputs.out = &result, inputs.bias = &bias;
  mask.has_bias = 1;
  options.mask = &mask;
  for (kind = 0; kind < 6; ++kind) {
    if (kind < 3) {
      SUCCEEDS(polyhead_tensor_init(&bias, kinds[kind].data, kinds[kind].dtype, 1, five, NULL));
    } else {
      SUCCEEDS(polyhead_tensor_init(&bias, kinds[kind - 3].data, kinds[kind - 3].dtype, 3, rows, repeated));
    }
    for (i = 0; i < 3; ++i) out[i] = -7.0f;
    SUCCEEDS(polyhead_attention(runtime, &inputs, &options));
    for (i = 0; i < 3; ++i) MEANS(i, right);
  }
  SUCCEEDS(polyhead_tensor_init(&bias, f32, POLYHEAD_U8, 1, five, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "bias is of dtype u8, expected f32, bf16 or f16",
        polyhead_attention(runtime, &inputs, &options));
}

int main(void) {
  polyhead_runtime* runtime = NULL;
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  test_conventions(runtime);
  test_bias(runtime);
  polyhead_runtime_destroy(runtime);
  if (failures > 0) {
    fprintf(stderr, "%d checks failed\n", failures);
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
