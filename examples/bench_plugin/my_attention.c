/* An attention of one's own for Polyhead's benchmarks: plain C, one row of scores at a time, one thread. Build it as
 * CMakeLists.txt says, then
 *
 *     polyhead bench tiny bert-128 --threads 1 --plugin ./libmy_attention.so
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "polyhead/bench_plugin.h"

static float* row_of(const polyhead_bench_operand* operand, int64_t b, int64_t h, int64_t position) {
  return (float*)((char*)operand->data + b * operand->strides[0] + h * operand->strides[1] + position * operand->strides[2]);
}

static int32_t supports(const polyhead_bench_problem* p, polyhead_bench_message message) {
  const int64_t element = sizeof(float);
  if (p->dtype == POLYHEAD_BENCH_F32 && p->query.strides[3] == element && p->key.strides[3] == element &&
      p->value.strides[3] == element && p->out.strides[3] == element)
    return 1;
  snprintf(message.text, message.capacity, "rows have to be contiguous f32");
  return 0;
}

/* Memory for the scores of one row: made once, used by every run. */
static int32_t prepare(const polyhead_bench_problem* p, void** handle, polyhead_bench_message message) {
  *handle = malloc((size_t)p->key_length * sizeof(float));
  if (*handle != NULL) return 0;
  snprintf(message.text, message.capacity, "no memory for %lld scores", (long long)p->key_length);
  return 1;
}

static void attend_row(const polyhead_bench_problem* p, float* scores, int64_t b, int64_t h, int64_t t) {
  const int64_t g = h / (p->heads / p->kv_heads);
  const int64_t length = p->key_lengths != NULL ? p->key_lengths[b] : p->key_length;
  const int64_t diagonal = t + (p->causal == POLYHEAD_BENCH_BOTTOM_RIGHT ? length - p->query_length : 0);
  const float* query = row_of(&p->query, b, h, t);
  float* out = row_of(&p->out, b, h, t);
  float largest = -INFINITY, sum = 0.0f;
  int64_t first = 0, end = length, s, i;
  if (p->causal != POLYHEAD_BENCH_NOT_CAUSAL && diagonal + 1 < end) end = diagonal + 1;
  if (p->window_left >= 0 && diagonal - p->window_left > first) first = diagonal - p->window_left;
  if (p->window_right >= 0 && diagonal + p->window_right + 1 < end) end = diagonal + p->window_right + 1;

  for (s = first; s < end; ++s) {
    const float* key = row_of(&p->key, b, g, s);
    float dot = 0.0f;
    for (i = 0; i < p->head_dim; ++i) dot += query[i] * key[i];
    scores[s] = dot * (float)p->scale;
    if (scores[s] > largest) largest = scores[s];
  }
  for (i = 0; i < p->value_dim; ++i) out[i] = 0.0f;
  for (s = first; s < end; ++s) {
    const float* value = row_of(&p->value, b, g, s);
    const float weight = expf(scores[s] - largest);
    sum += weight;
    for (i = 0; i < p->value_dim; ++i) out[i] += weight * value[i];
  }
  if (sum > 0.0f) {
    for (i = 0; i < p->value_dim; ++i) out[i] /= sum;
  }
}

static int32_t run(const polyhead_bench_problem* p, void* handle, polyhead_bench_message message) {
  int64_t b, h, t;
  (void)message; /* nothing here can fail */
  for (b = 0; b < p->batch; ++b) {
    for (h = 0; h < p->heads; ++h) {
      for (t = 0; t < p->query_length; ++t) attend_row(p, handle, b, h, t);
    }
  }
  return 0;
}

static const polyhead_bench_engine engine = {
    sizeof(polyhead_bench_engine), POLYHEAD_BENCH_PLUGIN_VERSION, "my-attention", "plain C", supports, prepare, run, free};

const polyhead_bench_engine* polyhead_bench_plugin(int32_t index) {
  return index == 0 ? &engine : NULL;
}
