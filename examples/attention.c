/* The same from C: causal attention, 8 query heads over 2 key/value heads, 128 tokens, head size 64. */
#include <stdio.h>
#include <stdlib.h>

#include "polyhead/polyhead.h"

enum { heads = 8, kv_heads = 2, length = 128, dim = 64 };
static float query[heads * length * dim], key[kv_heads * length * dim], value[kv_heads * length * dim],
    out[heads * length * dim];

static void check(polyhead_status status) {
  if (status == POLYHEAD_OK) return;
  fprintf(stderr, "%s: %s\n", polyhead_status_name(status), polyhead_last_message());
  exit(EXIT_FAILURE);
}

int main(void) {
  const int64_t query_shape[4] = {1, heads, length, dim}, key_shape[4] = {1, kv_heads, length, dim};
  polyhead_tensor query_view, key_view, value_view, out_view;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_attention_inputs inputs = POLYHEAD_INIT(polyhead_attention_inputs);
  polyhead_runtime* runtime = NULL;
  int i;
  for (i = 0; i < kv_heads * length * dim; ++i) value[i] = (float)(i / dim % length); /* value of key s: s */

  check(polyhead_tensor_init(&query_view, query, POLYHEAD_F32, 4, query_shape, NULL));
  check(polyhead_tensor_init(&key_view, key, POLYHEAD_F32, 4, key_shape, NULL));
  check(polyhead_tensor_init(&value_view, value, POLYHEAD_F32, 4, key_shape, NULL));
  check(polyhead_tensor_init(&out_view, out, POLYHEAD_F32, 4, query_shape, NULL));
  inputs.query = &query_view;
  inputs.key = &key_view;
  inputs.value = &value_view;
  inputs.out = &out_view;
  mask.causal = POLYHEAD_CAUSAL_BOTTOM_RIGHT;
  options.mask = &mask;

  check(polyhead_runtime_create(NULL, &runtime));
  check(polyhead_attention(runtime, &inputs, &options));
  polyhead_runtime_destroy(runtime);

  /* All keys look alike, so query t averages the values 0 .. t: t / 2. */
  printf("Polyhead %s: out[0, 0, 100, 0] = %.3f, expected 50\n", polyhead_version(), out[100 * dim]);
  return out[100 * dim] > 49.99f && out[100 * dim] < 50.01f ? EXIT_SUCCESS : EXIT_FAILURE;
}
