/* The C interface from C99: results against the formula, each kind of error, NULL handles, the rules of struct_size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "polyhead/polyhead.h"

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <sys/resource.h>
#define LIMIT_MEMORY 1
#endif

enum { batch = 2, heads = 4, kv_heads = 2, length = 5, dim = 8, count = batch * heads * length * dim };

static void fill(float* values, int how_many, unsigned seed) {
  int i;
  for (i = 0; i < how_many; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static polyhead_tensor tensor4(const float* data, int64_t a, int64_t b, int64_t c, int64_t d) {
  polyhead_tensor tensor;
  int64_t shape[4];
  shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
  SUCCEEDS(polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 4, shape, NULL));
  return tensor;
}

/* What happens to scores beside the mask: nothing, but in test_scores. */
static double softcap = 0;
static const float *slopes = NULL, *sinks = NULL;

/* Attention by its formula in double precision. */
static double expected_out(const float* query, const float* key, const float* value, int b, int h, int t, int d, int causal) {
  const float* q = query + ((b * heads + h) * length + t) * dim;
  const int kv = b * kv_heads + h / (heads / kv_heads);
  double sum = sinks == NULL ? 0 : exp(sinks[h]), weighted = 0;
  int s, i;
  for (s = 0; s < (causal ? t + 1 : length); ++s) {
    double score = 0;
    for (i = 0; i < dim; ++i) score += (double)q[i] * key[(kv * length + s) * dim + i];
    score /= sqrt((double)dim);
    if (softcap > 0) score = softcap * tanh(score / softcap);
    if (slopes != NULL) score -= slopes[h] * abs(t - s);
    score = exp(score);
    sum += score;
    weighted += score * value[(kv * length + s) * dim + d];
  }
  return weighted / sum;
}

typedef struct problem {
  float query[count], key[count / 2], value[count / 2], out[count], lse[batch * heads * length];
  polyhead_tensor query_view, key_view, value_view, out_view, lse_view;
  polyhead_attention_inputs inputs;
  polyhead_attention_spec spec;
} problem;

static void make_problem(problem* p) {
  polyhead_attention_inputs inputs = POLYHEAD_INIT(polyhead_attention_inputs);
  polyhead_attention_spec spec = POLYHEAD_INIT(polyhead_attention_spec);
  const int64_t lse_shape[3] = {batch, heads, length};
  fill(p->query, count, 1);
  fill(p->key, count / 2, 2);
  fill(p->value, count / 2, 3);
  p->query_view = tensor4(p->query, batch, heads, length, dim);
  p->key_view = tensor4(p->key, batch, kv_heads, length, dim);
  p->value_view = tensor4(p->value, batch, kv_heads, length, dim);
  p->out_view = tensor4(p->out, batch, heads, length, dim);
  SUCCEEDS(polyhead_tensor_init(&p->lse_view, p->lse, POLYHEAD_F32, 3, lse_shape, NULL));
  inputs.query = &p->query_view;
  inputs.key = &p->key_view;
  inputs.value = &p->value_view;
  inputs.out = &p->out_view;
  spec.batch = batch, spec.heads = heads, spec.kv_heads = kv_heads, spec.head_dim = dim;
  spec.query_length = length, spec.key_length = length;
  p->inputs = inputs;
  p->spec = spec;
}

static double worst_error(const problem* p, int causal) {
  double worst = 0;
  int b, h, t, d;
  for (b = 0; b < batch; ++b)
    for (h = 0; h < heads; ++h)
      for (t = 0; t < length; ++t)
        for (d = 0; d < dim; ++d) {
          const double error = fabs(p->out[((b * heads + h) * length + t) * dim + d] -
                                    expected_out(p->query, p->key, p->value, b, h, t, d, causal));
          if (!(error <= worst)) worst = error;
        }
  return worst;
}

static void test_status_and_version(void) {
  int status;
  for (status = POLYHEAD_OK; status <= POLYHEAD_INTERNAL; ++status) {
    CHECK(strcmp(polyhead_status_name(status), "unknown status") != 0);
  }
  CHECK(strcmp(polyhead_status_name(99), "unknown status") == 0);
  CHECK(strcmp(polyhead_last_message(), "") == 0);
  CHECK(strchr(polyhead_version(), '.') != NULL);
}

static void test_tensor(void) {
  polyhead_tensor tensor;
  const int64_t shape[2] = {3, 4}, negative[2] = {3, -4}, huge[3] = {INT64_MAX, INT64_MAX, 2};
  float data[12] = {0};
  SUCCEEDS(polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 2, shape, NULL));
  CHECK(tensor.data == data && tensor.rank == 2 && tensor.strides[0] == 4 && tensor.strides[1] == 1);
  SUCCEEDS(polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 0, NULL, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "tensor", polyhead_tensor_init(NULL, data, POLYHEAD_F32, 2, shape, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "shape", polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 2, NULL, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "dtype", polyhead_tensor_init(&tensor, data, 77, 2, shape, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "rank", polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 9, shape, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "-4", polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 2, negative, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "", polyhead_tensor_init(&tensor, data, POLYHEAD_F32, 3, huge, NULL));
}

static void test_attention(const polyhead_runtime* runtime) {
  problem p;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_plan* plan = NULL;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_run_options run_options = POLYHEAD_INIT(polyhead_run_options);
  char text[64], json[4000];
  size_t bytes = 0, text_length = 0;
  float plain[count];
  void* memory;
  int i;

  make_problem(&p);
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);
  memcpy(plain, p.out, sizeof(plain));

  /* lse on request changes no bit of out; so does the caller's workspace. */
  SUCCEEDS(polyhead_attention_plan_workspace_bytes(plan, &bytes));
  memory = malloc(bytes + 64);
  run_options.workspace = (char*)memory + (64 - (uintptr_t)memory % 64);
  run_options.workspace_bytes = bytes;
  p.inputs.lse = &p.lse_view;
  memset(p.out, 0xff, sizeof(p.out));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, &run_options));
  CHECK(memcmp(plain, p.out, sizeof(plain)) == 0);
  free(memory);
  p.inputs.lse = NULL;

  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), &text_length));
  CHECK(text_length > 0 && strlen(text) <= text_length && strlen(text) < sizeof(text));
  SUCCEEDS(polyhead_attention_plan_explain(plan, NULL, 0, &bytes));
  CHECK(bytes == text_length);
  SUCCEEDS(polyhead_attention_plan_explain_json(plan, json, sizeof(json), &text_length));
  CHECK(text_length < sizeof(json) && json[0] == '{' && json[text_length - 1] == '}' && strstr(json, "\"heads\": 4") != NULL);
  polyhead_attention_plan_destroy(plan);

  /* The one-call form, causal. */
  mask.causal = POLYHEAD_CAUSAL_TOP_LEFT;
  options.mask = &mask;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 1) < 4e-6);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);

  /* A window of the query's own key alone: out is that key's value. */
  memset(&mask, 0, sizeof(mask));
  mask.struct_size = sizeof(mask);
  mask.has_window = 1;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  for (i = 0; i < length * dim; ++i) CHECK(fabs(p.out[i] - p.value[i]) < 1e-6);
}

/* T5's table holds ALiBi's numbers here, since distances below 8 have buckets of their own; Swin's a window of 1 x length. */
static void test_relative_bias(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_plan* plan = NULL;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_relative_bias bias = POLYHEAD_INIT(polyhead_relative_bias);
  const float slope[heads] = {0.5f, 0.25f, -0.125f, 2.0f};
  float t5[32 * heads], swin[(2 * length - 1) * heads];
  int64_t shape[2] = {32, heads};
  polyhead_tensor table;
  int row, h;
  for (row = 0; row < 32; ++row)
    for (h = 0; h < heads; ++h) t5[row * heads + h] = -slope[h] * (float)(row % 16);
  for (row = 0; row < 2 * length - 1; ++row)
    for (h = 0; h < heads; ++h) swin[row * heads + h] = -slope[h] * (float)abs(row - (length - 1));
  make_problem(&p);
  slopes = slope;
  bias.kind = POLYHEAD_RELATIVE_T5, bias.buckets = 32, bias.max_distance = 128, bias.bidirectional = 1;
  SUCCEEDS(polyhead_tensor_init(&table, t5, POLYHEAD_F32, 2, shape, NULL));
  p.spec.relative_bias = options.relative_bias = &bias;
  p.inputs.relative_bias_table = &table;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  memset(p.out, 0xff, sizeof(p.out));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);
  p.inputs.relative_bias_table = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "relative_bias_table is not given", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  polyhead_attention_plan_destroy(plan);

  bias.kind = POLYHEAD_RELATIVE_SWIN, bias.height = 1, bias.width = length;
  shape[0] = 2 * length - 1;
  SUCCEEDS(polyhead_tensor_init(&table, swin, POLYHEAD_F32, 2, shape, NULL));
  p.inputs.relative_bias_table = &table;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  bias.width = 0;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "relative_bias.width is 0", polyhead_attention(runtime, &p.inputs, &options));
  bias.kind = 3;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "relative_bias.kind is 3", polyhead_attention(runtime, &p.inputs, &options));
  slopes = NULL;
}

/* Softcap, ALiBi and sinks, by a plan and by one call. */
static void test_scores(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_plan* plan = NULL;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  float slope[heads] = {0.5f, 0.25f, -0.125f, 2.0f}, sink[heads] = {0.0f, -1.0f, 2.0f, 0.5f};
  const int64_t shape[1] = {heads};
  polyhead_tensor slope_view, sink_view;
  make_problem(&p);
  SUCCEEDS(polyhead_tensor_init(&slope_view, slope, POLYHEAD_F32, 1, shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&sink_view, sink, POLYHEAD_F32, 1, shape, NULL));
  softcap = p.spec.softcap = options.softcap = 0.5;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);

  slopes = slope, sinks = sink;
  p.spec.has_alibi = p.spec.has_sink = options.has_alibi = options.has_sink = 1;
  p.inputs.alibi_slopes = &slope_view, p.inputs.sink = &sink_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  memset(p.out, 0xff, sizeof(p.out));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);

  slope[2] = (float)NAN;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "alibi_slopes[2] is nan", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  slope_view.rank = 2, slope_view.shape[1] = slope_view.shape[0], slope_view.shape[0] = 1;
  slope_view.strides[1] = slope_view.strides[0], slope_view.strides[0] = 0;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "alibi_slopes[0, 2] is nan", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  slope[2] = 0.0f, sink[1] = (float)HUGE_VAL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "sink[1] is inf", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.inputs.sink = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "sink is not given", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  /* To a caller from before these fields there is no sink to give. */
  p.inputs.struct_size = offsetof(polyhead_attention_inputs, alibi_slopes);
  FAILS(POLYHEAD_INVALID_ARGUMENT, "alibi_slopes is not given", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  polyhead_attention_plan_destroy(plan);
  options.softcap = -1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "softcap", polyhead_attention(runtime, &p.inputs, &options));
  options.struct_size = offsetof(polyhead_attention_options, softcap);
  slopes = sinks = NULL, softcap = 0;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
}

/* Query lengths; packed sequences: the batch items one after another, as the sequences that they are. */
static void test_sequences(const polyhead_runtime* runtime) {
  problem p;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  int32_t lengths[batch] = {2, length};
  int64_t ends[batch + 1] = {0, length, 2 * length};
  const int64_t lengths_shape[1] = {batch}, ends_shape[1] = {batch + 1};
  polyhead_tensor lengths_view, ends_view;
  float apart[count];
  int i;
  make_problem(&p);
  SUCCEEDS(polyhead_tensor_init(&lengths_view, lengths, POLYHEAD_I32, 1, lengths_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&ends_view, ends, POLYHEAD_I64, 1, ends_shape, NULL));
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  memcpy(apart, p.out, sizeof(apart));
  options.mask = &mask;
  mask.has_query_lengths = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query_lengths is not given", polyhead_attention(runtime, &p.inputs, &options));
  p.inputs.query_lengths = &lengths_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(p.out[0] != 0 && p.out[(length - 1) * dim] == 0);
  CHECK(memcmp(apart + count / 2, p.out + count / 2, sizeof(apart) / 2) == 0);
  lengths[0] = length + 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query_lengths[0] is 6", polyhead_attention(runtime, &p.inputs, &options));
  p.inputs.query_lengths = NULL;

  /* The first two heads' memory as two sequences of one head. */
  p.query_view = tensor4(p.query, 1, 1, batch * length, dim);
  p.key_view = tensor4(p.key, 1, 1, batch * length, dim);
  p.value_view = tensor4(p.value, 1, 1, batch * length, dim);
  p.out_view = tensor4(p.out, 1, 1, batch * length, dim);
  mask.has_query_lengths = 0;
  mask.is_packed = 1;
  p.inputs.cumulative_query_lengths = p.inputs.cumulative_key_lengths = &ends_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  /* The first sequence is query head 0 with kv head 0, whose keys and values are where they were. */
  for (i = 0; i < length * dim; ++i) CHECK(fabs(p.out[i] - apart[i]) < 4e-6);
  ends[2] = 3 * length;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cumulative_query_lengths[2] is 15", polyhead_attention(runtime, &p.inputs, &options));
  p.inputs.cumulative_key_lengths = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cumulative_key_lengths is not given", polyhead_attention(runtime, &p.inputs, &options));
}

/* A prefix over all keys undoes causal; a document alone sees itself; a block mask of zeros leaves nothing. */
static void test_documents_and_blocks(const polyhead_runtime* runtime) {
  problem p;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  int64_t prefixes[batch] = {length, length}, documents[length] = {7, 3, 3, 3, 3};
  uint8_t blocks[3] = {1, 1, 1};
  const int64_t prefix_shape[1] = {batch}, documents_shape[2] = {1, length}, blocks_shape[2] = {1, 3};
  polyhead_tensor prefix_view, documents_view, blocks_view;
  int i;
  make_problem(&p);
  SUCCEEDS(polyhead_tensor_init(&prefix_view, prefixes, POLYHEAD_I64, 1, prefix_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&documents_view, documents, POLYHEAD_I64, 2, documents_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&blocks_view, blocks, POLYHEAD_U8, 2, blocks_shape, NULL));
  options.mask = &mask;
  mask.has_prefix = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "has_prefix", polyhead_attention(runtime, &p.inputs, &options));
  mask.causal = POLYHEAD_CAUSAL_TOP_LEFT;
  p.inputs.prefix_lengths = &prefix_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  prefixes[0] = prefixes[1] = 0;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 1) < 4e-6);
  p.inputs.prefix_lengths = NULL;

  memset(&mask, 0, sizeof(mask));
  mask.struct_size = sizeof(mask);
  mask.has_segments = 1;
  p.inputs.query_segments = &documents_view;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key_segments is not given", polyhead_attention(runtime, &p.inputs, &options));
  p.inputs.key_segments = &documents_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  for (i = 0; i < dim; ++i) CHECK(fabs(p.out[i] - p.value[i]) < 1e-6);
  CHECK(fabs(p.out[dim] - p.value[dim]) > 1e-6);
  p.inputs.query_segments = p.inputs.key_segments = NULL;

  mask.has_segments = 0;
  mask.block_queries = 100, mask.block_keys = 2;
  p.inputs.block_mask = &blocks_view;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  blocks[0] = blocks[1] = blocks[2] = 0;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  for (i = 0; i < count; ++i) CHECK(p.out[i] == 0);
  mask.block_keys = 0;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "blocks", polyhead_attention(runtime, &p.inputs, &options));
}

/* Weights of two heads and one query of each batch item, and what keys receive of all. */
static void test_attention_weights(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_weights_request request = POLYHEAD_INIT(polyhead_attention_weights_request);
  int32_t heads_wanted[2] = {3, 0};
  int64_t row_wanted[1] = {2};
  float weights[batch * 2 * 1 * length], received[batch * heads * length];
  const int64_t two[1] = {2}, one[1] = {1}, received_shape[3] = {batch, heads, length};
  polyhead_tensor heads_view, row_view, weights_view, received_view;
  double total = 0;
  int i, d, s;
  make_problem(&p);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  SUCCEEDS(polyhead_tensor_init(&heads_view, heads_wanted, POLYHEAD_I32, 1, two, NULL));
  SUCCEEDS(polyhead_tensor_init(&row_view, row_wanted, POLYHEAD_I64, 1, one, NULL));
  SUCCEEDS(polyhead_tensor_init(&received_view, received, POLYHEAD_F32, 3, received_shape, NULL));
  weights_view = tensor4(weights, batch, 2, 1, length);
  request.heads = &heads_view, request.rows = &row_view, request.weights = &weights_view;
  p.inputs.value = p.inputs.out = NULL;
  SUCCEEDS(polyhead_attention_weights(runtime, &p.inputs, NULL, &request));
  for (i = 0; i < 2; ++i) { /* batch item 0: the weighted values are out's row */
    for (d = 0; d < dim; ++d) {
      double sum = 0;
      for (s = 0; s < length; ++s) sum += weights[i * length + s] * p.value[(heads_wanted[i] / 2 * length + s) * dim + d];
      CHECK(fabs(sum - p.out[(heads_wanted[i] * length + 2) * dim + d]) < 4e-6);
    }
  }
  heads_wanted[1] = heads;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "heads[1] is 4", polyhead_attention_weights(runtime, &p.inputs, NULL, &request));
  request.heads = request.rows = request.weights = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "weights is not given", polyhead_attention_weights(runtime, &p.inputs, NULL, &request));
  request.received = &received_view;
  SUCCEEDS(polyhead_attention_weights(runtime, &p.inputs, NULL, &request));
  for (i = 0; i < batch * heads * length; ++i) total += received[i];
  CHECK(fabs(total - batch * heads * length) < 1e-4);
}

/* Two parts of the keys, brought together. */
static void test_merge(const polyhead_runtime* runtime) {
  problem p, second;
  polyhead_merge_inputs merge = POLYHEAD_INIT(polyhead_merge_inputs);
  make_problem(&p);
  make_problem(&second);
  p.inputs.lse = &p.lse_view, second.inputs.lse = &second.lse_view;
  p.key_view.shape[2] = p.value_view.shape[2] = 2;
  second.key_view.shape[2] = second.value_view.shape[2] = length - 2;
  second.key_view.data = second.key + 2 * dim, second.value_view.data = second.value + 2 * dim;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  SUCCEEDS(polyhead_attention(runtime, &second.inputs, NULL));
  merge.out1 = merge.out = &p.out_view, merge.lse1 = merge.lse = &p.lse_view;
  merge.out2 = &second.out_view, merge.lse2 = &second.lse_view;
  SUCCEEDS(polyhead_merge(runtime, &merge));
  CHECK(worst_error(&p, 0) < 4e-6);
  merge.lse2 = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "lse2 is NULL", polyhead_merge(runtime, &merge));
  merge.lse2 = &second.out_view;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "lse2 is f32", polyhead_merge(runtime, &merge));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_merge(NULL, &merge));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "inputs", polyhead_merge(runtime, NULL));
}

/* An f32 to the nearest bfloat16, and back. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static void test_bf16(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_plan* plan = NULL;
  uint16_t query[count], key[count / 2], value[count / 2], out[count];
  int i;
  make_problem(&p);
  /* The formula sees what the kernel sees. */
  for (i = 0; i < count; ++i) p.query[i] = from_bf16(query[i] = to_bf16(p.query[i]));
  for (i = 0; i < count / 2; ++i) p.key[i] = from_bf16(key[i] = to_bf16(p.key[i]));
  for (i = 0; i < count / 2; ++i) p.value[i] = from_bf16(value[i] = to_bf16(p.value[i]));
  p.query_view.data = query, p.key_view.data = key, p.value_view.data = value, p.out_view.data = out;
  p.query_view.dtype = p.key_view.dtype = p.value_view.dtype = p.out_view.dtype = POLYHEAD_BF16;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  for (i = 0; i < count; ++i) p.out[i] = from_bf16(out[i]);
  CHECK(worst_error(&p, 0) < 4e-6 + 1.0 / 256); /* values are below 1 */

  memset(out, 0xff, sizeof(out));
  p.spec.dtype = POLYHEAD_BF16;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  for (i = 0; i < count; ++i) CHECK(p.out[i] == from_bf16(out[i]));

  p.key_view.dtype = POLYHEAD_F16;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key is f16", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "expected bf16", polyhead_attention(runtime, &p.inputs, NULL));
  p.query_view.dtype = POLYHEAD_F32;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query is f32", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  polyhead_attention_plan_destroy(plan);
}

static void test_mask_errors(const polyhead_runtime* runtime) {
  problem p;
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  make_problem(&p);
  options.mask = &mask;
  mask.causal = 9;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "causal", polyhead_attention(runtime, &p.inputs, &options));
  mask.causal = POLYHEAD_CAUSAL_NONE;
  mask.has_window = 1;
  mask.window_left = -7;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "-7", polyhead_attention(runtime, &p.inputs, &options));
  mask.window_left = -1;
  mask.window_right = -1;
  mask.window_kept = -2;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "kept is -2", polyhead_attention(runtime, &p.inputs, &options));
  mask.window_kept = 0;
  mask.has_key_lengths = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key_lengths", polyhead_attention(runtime, &p.inputs, &options));
  mask.has_key_lengths = 0;
  options.has_scale = 1;
  options.scale = HUGE_VAL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "scale", polyhead_attention(runtime, &p.inputs, &options));
}

static void test_attention_errors(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_plan* plan = NULL;
  polyhead_run_options run_options = POLYHEAD_INIT(polyhead_run_options);
  polyhead_cancellation* cancellation = NULL;
  size_t bytes = 0;
  make_problem(&p);
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_attention_plan_create(NULL, &p.spec, &plan));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec", polyhead_attention_plan_create(runtime, NULL, &plan));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "plan", polyhead_attention_plan_create(runtime, &p.spec, NULL));
  p.spec.kv_heads = 3;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "kv_heads", polyhead_attention_plan_create(runtime, &p.spec, &plan));
  p.spec.kv_heads = kv_heads;
  p.spec.dtype = 42;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "dtype", polyhead_attention_plan_create(runtime, &p.spec, &plan));
  p.spec.dtype = POLYHEAD_F64;
  FAILS(POLYHEAD_UNSUPPORTED, "dtype", polyhead_attention_plan_create(runtime, &p.spec, &plan));
  p.spec.dtype = POLYHEAD_F32;
  CHECK(plan == NULL);

  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "plan", polyhead_attention_plan_run(NULL, &p.inputs, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "inputs", polyhead_attention_plan_run(plan, NULL, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "bytes", polyhead_attention_plan_workspace_bytes(plan, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "plan", polyhead_attention_plan_workspace_bytes(NULL, &bytes));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "plan", polyhead_attention_plan_explain(NULL, NULL, 0, &bytes));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "plan", polyhead_attention_plan_explain_json(NULL, NULL, 0, &bytes));
  p.inputs.key = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key is NULL", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.inputs.key = &p.query_view;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "key", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.inputs.key = &p.key_view;
  p.query_view.rank = -1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query.rank", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.query_view.rank = 4;
  p.query_view.dtype = 9;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query.dtype", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.query_view.dtype = POLYHEAD_F32;
  p.query_view.shape[0] = -2;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "query", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.query_view.shape[0] = batch;
  p.inputs.out = &p.query_view;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "out", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  p.inputs.out = &p.out_view;
  SUCCEEDS(polyhead_attention_plan_workspace_bytes(plan, &bytes));
  run_options.workspace = p.lse;
  run_options.workspace_bytes = 0;
  if (bytes > 0) FAILS(POLYHEAD_INVALID_ARGUMENT, "workspace", polyhead_attention_plan_run(plan, &p.inputs, &run_options));
  run_options.workspace = NULL;

  FAILS(POLYHEAD_INVALID_ARGUMENT, "cancellation", polyhead_cancellation_create(NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cancellation", polyhead_cancellation_request(NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cancellation", polyhead_cancellation_reset(NULL));
  SUCCEEDS(polyhead_cancellation_create(&cancellation));
  run_options.cancellation = cancellation;
  SUCCEEDS(polyhead_cancellation_request(cancellation));
  FAILS(POLYHEAD_CANCELLED, "", polyhead_attention_plan_run(plan, &p.inputs, &run_options));
  SUCCEEDS(polyhead_cancellation_reset(cancellation));
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, &run_options));
  CHECK(worst_error(&p, 0) < 4e-6);
  polyhead_cancellation_destroy(cancellation);
  polyhead_attention_plan_destroy(plan);
}

/* An older caller's smaller structure, a newer one's larger structure, sizes that are none. */
static void test_struct_size(const polyhead_runtime* runtime) {
  problem p;
  struct {
    polyhead_attention_options known;
    int64_t unknown[2];
  } newer;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  make_problem(&p);

  /* The part beyond struct_size is not looked at: these masks would be refused or change the result. */
  mask.causal = 9;
  options.mask = &mask;
  options.struct_size = offsetof(polyhead_attention_options, mask);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);
  options.struct_size = sizeof(size_t);
  options.has_scale = 1;
  options.scale = HUGE_VAL;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 4e-6);

  options.struct_size = 0;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "struct_size is 0", polyhead_attention(runtime, &p.inputs, &options));
  options.struct_size = sizeof(size_t) + 3;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "struct_size", polyhead_attention(runtime, &p.inputs, &options));
  options.struct_size = (size_t)-8;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "struct_size", polyhead_attention(runtime, &p.inputs, &options));

  memset(&newer, 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &newer.known));
  newer.unknown[1] = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "options.struct_size", polyhead_attention(runtime, &p.inputs, &newer.known));

  /* Inputs too: without its later fields the structure has no lse. */
  p.inputs.lse = (const polyhead_tensor*)(const void*)&p;
  p.inputs.struct_size = offsetof(polyhead_attention_inputs, lse);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  p.inputs.struct_size = offsetof(polyhead_attention_inputs, out);
  FAILS(POLYHEAD_INVALID_ARGUMENT, "out is NULL", polyhead_attention(runtime, &p.inputs, NULL));
}

/* Precision is taken everywhere, checked, and not looked for where an older caller's structure ends or had padding. */
static void test_precision(const polyhead_runtime* runtime) {
  problem p;
  char text[2000];
  polyhead_attention_plan* plan = NULL;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  make_problem(&p);
  CHECK(p.spec.precision == POLYHEAD_STRICT);
  p.spec.precision = POLYHEAD_FAST;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  CHECK(strstr(text, "precision    fast") != NULL);
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 1e-4);
  polyhead_attention_plan_destroy(plan);
  plan = NULL;
  options.precision = POLYHEAD_FAST;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, 0) < 1e-4);

  p.spec.precision = 2;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.precision is 2", polyhead_attention_plan_create(runtime, &p.spec, &plan));
  options.precision = -1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "options.precision is -1", polyhead_attention(runtime, &p.inputs, &options));
  p.spec.struct_size = offsetof(polyhead_attention_spec, softcap);
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  CHECK(strstr(text, "precision    strict") != NULL);
  polyhead_attention_plan_destroy(plan);
}

static size_t calls_of_executor = 0;
static void serial_executor(void* context, size_t how_many, void (*function)(void*, size_t), void* argument) {
  size_t i;
  ++*(size_t*)context;
  for (i = 0; i < how_many; ++i) function(argument, i);
}

static void ignore_message(void* context, polyhead_log_level level, const char* message) {
  CHECK(context == &calls_of_executor && message != NULL && level >= POLYHEAD_LOG_DEBUG && level <= POLYHEAD_LOG_WARNING);
}

static void test_runtime(void) {
  polyhead_runtime* runtime = NULL;
  polyhead_runtime_options options = POLYHEAD_INIT(polyhead_runtime_options);
  polyhead_executor executor = POLYHEAD_INIT(polyhead_executor);
  const int32_t cpus[1] = {0};
  const char* isa = NULL;
  char isas[256];
  size_t text_length = 0;
  int32_t threads = 0, ended = -1;
  problem p;

  options.threads = -1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "threads", polyhead_runtime_create(&options, &runtime));
  options.threads = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_runtime_create(&options, NULL));
  options.isa = "mmx";
  FAILS(POLYHEAD_INVALID_ARGUMENT, "mmx", polyhead_runtime_create(&options, &runtime));
#if defined(__x86_64__)
  options.isa = "neon";
#else
  options.isa = "avx2";
#endif
  FAILS(POLYHEAD_UNSUPPORTED, options.isa, polyhead_runtime_create(&options, &runtime));
  options.isa = "reference";
  options.cpu_set_count = 1;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cpu_set", polyhead_runtime_create(&options, &runtime));
  options.cpu_set_count = 0;
  options.cpu_set = cpus;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cpu_set", polyhead_runtime_create(&options, &runtime));
  options.cpu_set = NULL;
  options.executor = &executor;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "executor", polyhead_runtime_create(&options, &runtime));
  CHECK(runtime == NULL);

  executor.context = &calls_of_executor;
  executor.parallel_for = serial_executor;
  executor.concurrency = 2;
  options.log = ignore_message;
  options.log_context = &calls_of_executor;
  options.threads = 0;
  SUCCEEDS(polyhead_runtime_create(&options, &runtime));
  SUCCEEDS(polyhead_runtime_isa(runtime, &isa));
  CHECK(strcmp(isa, "reference") == 0);
  SUCCEEDS(polyhead_runtime_threads(runtime, &threads));
  CHECK(threads == 2);
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_runtime_isa(NULL, &isa));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "threads", polyhead_runtime_threads(runtime, NULL));
  SUCCEEDS(polyhead_runtime_describe(runtime, isas, 8, &text_length));
  CHECK(strlen(isas) == 7 && text_length > 7);
  make_problem(&p);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);
  polyhead_runtime_destroy(runtime);
  polyhead_runtime_destroy(NULL);

  SUCCEEDS(polyhead_available_isas(isas, sizeof(isas), NULL));
  CHECK(strncmp(isas, "reference", 9) == 0);
  SUCCEEDS(polyhead_shutdown(&ended));
  CHECK(ended == 0 || ended == 1);
  SUCCEEDS(polyhead_shutdown(NULL));
}

/* A plan outlives its runtime's handle. */
static void test_lifetime(void) {
  problem p;
  polyhead_runtime* runtime = NULL;
  polyhead_attention_plan* plan = NULL;
  make_problem(&p);
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  polyhead_runtime_destroy(runtime);
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, 0) < 4e-6);
  polyhead_attention_plan_destroy(plan);
  polyhead_attention_plan_destroy(NULL);
  polyhead_multi_head_attention_destroy(NULL);
  polyhead_bert_encoder_destroy(NULL);
  polyhead_cancellation_destroy(NULL);
}

/* Identity projections: the layer is attention over the columns of x, whose output bias is added. */
static void test_multi_head_attention(const polyhead_runtime* runtime) {
  enum { width = 8, layer_heads = 2 };
  float identity[width * width] = {0}, bias[width], x[3 * width], out[3 * width];
  const int64_t square[2] = {width, width}, vector[1] = {width}, batch_shape[3] = {1, 3, width};
  const int64_t broadcast[2] = {0, 0}, large[2] = {8192, 8192};
  polyhead_tensor weight, bias_view, x_view, out_view, large_view;
  polyhead_multi_head_attention_spec spec = POLYHEAD_INIT(polyhead_multi_head_attention_spec);
  polyhead_multi_head_attention_weights weights = POLYHEAD_INIT(polyhead_multi_head_attention_weights);
  polyhead_multi_head_attention_inputs inputs = POLYHEAD_INIT(polyhead_multi_head_attention_inputs);
  polyhead_multi_head_attention* layer = NULL;
  int i, h, t, s, d;
  for (i = 0; i < width; ++i) identity[i * width + i] = 1.0f, bias[i] = (float)i;
  fill(x, 3 * width, 7);
  SUCCEEDS(polyhead_tensor_init(&weight, identity, POLYHEAD_F32, 2, square, NULL));
  SUCCEEDS(polyhead_tensor_init(&bias_view, bias, POLYHEAD_F32, 1, vector, NULL));
  SUCCEEDS(polyhead_tensor_init(&x_view, x, POLYHEAD_F32, 3, batch_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&out_view, out, POLYHEAD_F32, 3, batch_shape, NULL));
  spec.d_model = width;
  spec.heads = layer_heads;
  weights.query = weights.key = weights.value = weights.output = &weight;
  weights.output_bias = &bias_view;
  inputs.query = &x_view;
  inputs.out = &out_view;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_multi_head_attention_create(NULL, &spec, &weights, &layer));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "weights", polyhead_multi_head_attention_create(runtime, &spec, NULL, &layer));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "layer", polyhead_multi_head_attention_create(runtime, &spec, &weights, NULL));
  spec.heads = 3;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "d_model", polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
  spec.heads = layer_heads;
  weights.value = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "weights.value", polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
  weights.value = &weight;
  spec.precision = 9;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.precision is 9",
        polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
  spec.precision = POLYHEAD_STRICT;
  spec.weights = 7;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.weights is 7", polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
  spec.weights = POLYHEAD_WEIGHTS_F32;
  CHECK(layer == NULL);
  SUCCEEDS(polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "layer", polyhead_multi_head_attention_run(NULL, &inputs, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "inputs", polyhead_multi_head_attention_run(layer, NULL, NULL));
  SUCCEEDS(polyhead_multi_head_attention_run(layer, &inputs, NULL));
  for (h = 0; h < layer_heads; ++h)
    for (t = 0; t < 3; ++t) {
      double weight_of[3], sum = 0;
      const int columns = width / layer_heads;
      for (s = 0; s < 3; ++s) {
        double score = 0;
        for (d = 0; d < columns; ++d) score += (double)x[t * width + h * columns + d] * x[s * width + h * columns + d];
        sum += weight_of[s] = exp(score / sqrt((double)columns));
      }
      for (d = 0; d < columns; ++d) {
        double expected = bias[h * columns + d];
        for (s = 0; s < 3; ++s) expected += weight_of[s] / sum * x[s * width + h * columns + d];
        CHECK(fabs(out[t * width + h * columns + d] - expected) < 4e-6 * (1 + fabs(expected)));
      }
    }
  polyhead_multi_head_attention_destroy(layer);
  layer = NULL;

  /* Ones and zeros are the same in every kind of weights, but for a rounding. */
  for (i = POLYHEAD_WEIGHTS_BF16; i <= POLYHEAD_WEIGHTS_BF16_DYNAMIC; ++i) {
    const double most = i == POLYHEAD_WEIGHTS_INT8_DYNAMIC ? 0.2 : i == POLYHEAD_WEIGHTS_BF16_DYNAMIC ? 0.05 : 1e-5;
    float other[3 * width];
    polyhead_status made;
    spec.weights = i;
    made = polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer);
    if (made == POLYHEAD_UNSUPPORTED) continue; /* left out of this build */
    CHECK(made == POLYHEAD_OK);
    SUCCEEDS(polyhead_tensor_init(&out_view, other, POLYHEAD_F32, 3, batch_shape, NULL));
    SUCCEEDS(polyhead_multi_head_attention_run(layer, &inputs, NULL));
    for (t = 0; t < 3 * width; ++t) CHECK(fabs(other[t] - out[t]) < most);
    polyhead_multi_head_attention_destroy(layer);
    layer = NULL;
  }
  spec.weights = POLYHEAD_WEIGHTS_F32;

  /* Weights of 256 MB each out of one broadcast float, with 128 MB to be had: a status, not an abort. */
  SUCCEEDS(polyhead_tensor_init(&large_view, identity, POLYHEAD_F32, 2, large, broadcast));
  weights.query = weights.key = weights.value = weights.output = &large_view;
  weights.output_bias = NULL;
  spec.d_model = 8192;
#if defined(LIMIT_MEMORY)
  {
    struct rlimit before, tight;
    void* probe;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    tight = before;
    tight.rlim_cur = 128u << 20;
    CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
    probe = malloc(256u << 20);
    if (probe == NULL) { /* qemu-user sets the limit and does not keep it */
      FAILS(POLYHEAD_OUT_OF_MEMORY, "", polyhead_multi_head_attention_create(runtime, &spec, &weights, &layer));
    }
    free(probe);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(layer == NULL);
  }
#endif
}

/* One key after another into a paged cache of tiny pages, then causal attention over it. */
static void test_kv_cache(const polyhead_runtime* runtime) {
  static const int64_t which[batch] = {2, 0}, list_shape[1] = {batch};
  static const double turns[2] = {1.5, 0.25};
  polyhead_kv_cache_spec spec = POLYHEAD_INIT(polyhead_kv_cache_spec);
  polyhead_kv_cache_tokens tokens = POLYHEAD_INIT(polyhead_kv_cache_tokens);
  polyhead_cached_attention_inputs inputs = POLYHEAD_INIT(polyhead_cached_attention_inputs);
  polyhead_run_options no_options = POLYHEAD_INIT(polyhead_run_options);
  polyhead_mask mask = POLYHEAD_INIT(polyhead_mask);
  polyhead_attention_plan* plan = NULL;
  polyhead_kv_cache *cache = NULL, *loaded = NULL, *none = NULL;
  polyhead_tensor sequences, key, value, read_back;
  float back[kv_heads * length * dim];
  const char* path = "c_api_test.cache";
  int64_t number = 0, allocated = 0;
  size_t bytes = 0;
  int t, i;
  problem p;
  make_problem(&p);
  spec.kind = POLYHEAD_CACHE_PAGED, spec.sequences = 3, spec.kv_heads = kv_heads, spec.head_dim = dim, spec.page_tokens = 2;
  SUCCEEDS(polyhead_kv_cache_create(&spec, &cache));
  SUCCEEDS(polyhead_tensor_init(&sequences, which, POLYHEAD_I64, 1, list_shape, NULL));
  tokens.sequences = &sequences;
  tokens.key = &key, tokens.value = &value;
  for (t = 0; t < length; ++t) {
    key = p.key_view, value = p.value_view;
    key.data = p.key + t * dim, key.shape[2] = 1;
    value.data = p.value + t * dim, value.shape[2] = 1;
    SUCCEEDS(polyhead_kv_cache_append(cache, &tokens));
  }
  SUCCEEDS(polyhead_kv_cache_length(cache, 2, &number));
  CHECK(number == length);
  SUCCEEDS(polyhead_kv_cache_first_token(cache, 2, &number));
  CHECK(number == 0);
  SUCCEEDS(polyhead_kv_cache_pages(cache, &number, &allocated));
  CHECK(number == batch * 3 && allocated >= number);
  SUCCEEDS(polyhead_kv_cache_pages(cache, NULL, NULL));
  SUCCEEDS(polyhead_kv_cache_memory_bytes(cache, &bytes));
  CHECK(bytes == (size_t)allocated * 2 * kv_heads * 2 * dim * sizeof(float));
  SUCCEEDS(polyhead_kv_cache_plan_key_length(cache, &number));
  CHECK(number == 0);

  inputs.cache = cache, inputs.query = &p.query_view, inputs.out = &p.out_view, inputs.lse = &p.lse_view;
  inputs.sequences = &sequences;
  SUCCEEDS(polyhead_cached_attention(runtime, &inputs, NULL));
  CHECK(worst_error(&p, 1) < 1e-5);
  mask.causal = POLYHEAD_CAUSAL_BOTTOM_RIGHT, mask.has_key_lengths = 1;
  p.spec.mask = &mask;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  memset(p.out, 0, sizeof(p.out));
  SUCCEEDS(polyhead_attention_plan_run_cached(plan, &inputs, NULL));
  CHECK(worst_error(&p, 1) < 1e-5);

  SUCCEEDS(polyhead_kv_cache_save(cache, path));
  SUCCEEDS(polyhead_kv_cache_load(path, &loaded));
  remove(path);
  memset(p.out, 0, sizeof(p.out));
  inputs.cache = loaded;
  SUCCEEDS(polyhead_attention_plan_run_cached(plan, &inputs, &no_options));
  CHECK(worst_error(&p, 1) < 1e-5);
  polyhead_attention_plan_destroy(plan);
  FAILS(POLYHEAD_IO_ERROR, "c_api_test.cache", polyhead_kv_cache_load(path, &none));

  SUCCEEDS(polyhead_kv_cache_fork(loaded, 2, 1, 3));
  SUCCEEDS(polyhead_kv_cache_length(loaded, 1, &number));
  CHECK(number == 3);
  SUCCEEDS(polyhead_kv_cache_trim(loaded, 1, 1));
  SUCCEEDS(polyhead_kv_cache_reserve_pages(loaded, 20));
  {
    const int64_t shape[3] = {kv_heads, 1, dim};
    SUCCEEDS(polyhead_tensor_init(&read_back, back, POLYHEAD_F32, 3, shape, NULL));
  }
  SUCCEEDS(polyhead_kv_cache_read(loaded, 1, 0, &read_back, NULL));
  for (i = 0; i < dim; ++i) CHECK(back[i] == p.key[i] && back[dim + i] == p.key[length * dim + i]);

  FAILS(POLYHEAD_INVALID_ARGUMENT, "cache", polyhead_kv_cache_create(&spec, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec", polyhead_kv_cache_create(NULL, &none));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cache", polyhead_kv_cache_append(NULL, &tokens));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "tokens", polyhead_kv_cache_append(cache, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "sequence is 3", polyhead_kv_cache_trim(cache, 3, 0));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "to is -1", polyhead_kv_cache_fork(cache, 0, -1, -1));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "length", polyhead_kv_cache_length(cache, 0, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "path", polyhead_kv_cache_save(cache, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "without rotary",
        polyhead_kv_cache_rotate_queries(cache, &p.query_view, &p.out_view, NULL, NULL));
  inputs.cache = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "cache", polyhead_cached_attention(runtime, &inputs, NULL));
  spec.kind = 3;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.kind is 3", polyhead_kv_cache_create(&spec, &none));
  spec.kind = POLYHEAD_CACHE_RING, spec.page_tokens = 0, spec.capacity = 4, spec.window = 5;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "window is 5", polyhead_kv_cache_create(&spec, &none));
  spec.window = 4, spec.rotary = 7;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "spec.rotary is 7", polyhead_kv_cache_create(&spec, &none));
  spec.rotary = POLYHEAD_ROTARY_INTERLEAVED, spec.rotary_dims = 4, spec.frequency_count = 2;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "frequency_count", polyhead_kv_cache_create(&spec, &none));
  spec.frequencies = turns;
  CHECK(none == NULL);
  SUCCEEDS(polyhead_kv_cache_create(&spec, &none));
  {
    const int64_t positions[batch] = {4, 100000};
    polyhead_tensor where;
    double x, y;
    SUCCEEDS(polyhead_tensor_init(&where, positions, POLYHEAD_I64, 1, list_shape, NULL));
    SUCCEEDS(polyhead_kv_cache_rotate_queries(none, &p.query_view, &p.out_view, NULL, &where));
    x = p.query[dim + 0], y = p.query[dim + 1]; /* query 1 of the first head: position 5 */
    CHECK(fabs(p.out[dim + 0] - (x * cos(7.5) - y * sin(7.5))) < 1e-6);
    CHECK(fabs(p.out[dim + 1] - (x * sin(7.5) + y * cos(7.5))) < 1e-6);
    CHECK(p.out[dim + 4] == p.query[dim + 4]);
  }
  polyhead_kv_cache_destroy(none);
  polyhead_kv_cache_destroy(loaded);
  polyhead_kv_cache_destroy(cache);
  polyhead_kv_cache_destroy(NULL);
}

static void test_bert_errors(const polyhead_runtime* runtime) {
  polyhead_bert_encoder* encoder = NULL;
  int64_t hidden_size = 0;
  problem p;
  make_problem(&p);
  FAILS(POLYHEAD_IO_ERROR, "no-such-folder", polyhead_bert_encoder_load(runtime, "/no-such-folder", &encoder));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "folder", polyhead_bert_encoder_load(runtime, NULL, &encoder));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "runtime", polyhead_bert_encoder_load(NULL, "/", &encoder));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "encoder", polyhead_bert_encoder_load(runtime, "/", NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "encoder", polyhead_bert_encoder_hidden_size(NULL, &hidden_size));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "encoder", polyhead_bert_encoder_encode(NULL, &p.query_view, NULL, &p.out_view, 1, NULL));
  FAILS(POLYHEAD_INVALID_ARGUMENT, "encoder",
        polyhead_bert_encoder_token_embeddings(NULL, &p.query_view, NULL, &p.out_view, NULL));
  CHECK(encoder == NULL);
}

int main(void) {
  polyhead_runtime* runtime = NULL;
  test_status_and_version();
  test_tensor();
  test_runtime();
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  test_attention(runtime);
  test_scores(runtime);
  test_relative_bias(runtime);
  test_sequences(runtime);
  test_documents_and_blocks(runtime);
  test_attention_weights(runtime);
  test_merge(runtime);
  test_bf16(runtime);
  test_mask_errors(runtime);
  test_attention_errors(runtime);
  test_struct_size(runtime);
  test_precision(runtime);
  test_multi_head_attention(runtime);
  test_kv_cache(runtime);
  test_bert_errors(runtime);
  polyhead_runtime_destroy(runtime);
  test_lifetime();
  if (failures > 0) {
    fprintf(stderr, "%d checks failed\n", failures);
    return EXIT_FAILURE;
  }
  printf("C interface of Polyhead %s: all checks passed\n", polyhead_version());
  return EXIT_SUCCESS;
}
