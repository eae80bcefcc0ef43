/* Score modifications from C99: results against the formula, contexts, the classifier, each kind of error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "polyhead/polyhead.h"

enum { batch = 2, heads = 4, kv_heads = 2, length = 5, dim = 8, count = batch * heads * length * dim };

static void fill(float* values, int how_many, unsigned seed) {
  int i;
  for (i = 0; i < how_many; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

typedef struct problem {
  float query[count], key[count / 2], value[count / 2], out[count];
  polyhead_tensor views[4];
  polyhead_attention_spec spec;
  polyhead_attention_inputs inputs;
} problem;

static void make_problem(problem* p) {
  const int64_t shape[4] = {batch, heads, length, dim}, kv_shape[4] = {batch, kv_heads, length, dim};
  memset(p, 0, sizeof(*p));
  fill(p->query, count, 1), fill(p->key, count / 2, 2), fill(p->value, count / 2, 3);
  SUCCEEDS(polyhead_tensor_init(&p->views[0], p->query, POLYHEAD_F32, 4, shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&p->views[1], p->key, POLYHEAD_F32, 4, kv_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&p->views[2], p->value, POLYHEAD_F32, 4, kv_shape, NULL));
  SUCCEEDS(polyhead_tensor_init(&p->views[3], p->out, POLYHEAD_F32, 4, shape, NULL));
  p->inputs.struct_size = sizeof(p->inputs);
  p->inputs.query = &p->views[0], p->inputs.key = &p->views[1], p->inputs.value = &p->views[2], p->inputs.out = &p->views[3];
  p->spec.struct_size = sizeof(p->spec);
  p->spec.batch = batch, p->spec.heads = heads, p->spec.kv_heads = kv_heads;
  p->spec.query_length = p->spec.key_length = length, p->spec.head_dim = dim;
}

/* Scores become 0.5 tanh(score / 0.5) - slopes[h] |t - s|; slopes of NULL: they stay. */
static double worst_error(const problem* p, const float* slopes) {
  double worst = 0;
  int row, s, d;
  for (row = 0; row < batch * heads * length; ++row) {
    const int t = row % length, h = row / length % heads, b = row / length / heads;
    const int kv = b * kv_heads + h / (heads / kv_heads);
    double sum = 0, weighted[dim] = {0};
    for (s = 0; s < length; ++s) {
      double score = 0;
      for (d = 0; d < dim; ++d) score += (double)p->query[row * dim + d] * p->key[(kv * length + s) * dim + d];
      score /= sqrt((double)dim);
      if (slopes != NULL) score = 0.5 * tanh(score / 0.5) - slopes[h] * fabs((double)(t - s));
      score = exp(score);
      sum += score;
      for (d = 0; d < dim; ++d) weighted[d] += score * p->value[(kv * length + s) * dim + d];
    }
    for (d = 0; d < dim; ++d) {
      const double error = fabs(p->out[row * dim + d] - weighted[d] / sum);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

typedef struct own_scores {
  const float* slope; /* [heads] */
  int status, kind;
} own_scores;

static polyhead_status change_scores(const polyhead_score_tile* tile, void* context) {
  const own_scores* own = (const own_scores*)context;
  int64_t line, lane;
  for (line = 0; line < tile->lines; ++line) {
    for (lane = 0; lane < tile->lanes; ++lane) {
      float* score = tile->scores + line * tile->line_stride + lane;
      const int64_t h = tile->head.first + tile->head.of_line[line] + tile->head.of_lane[lane];
      const int64_t t = tile->query.first + tile->query.of_line[line] + tile->query.of_lane[lane];
      const int64_t s = tile->key.first + tile->key.of_line[line] + tile->key.of_lane[lane];
      *score = (float)(0.5 * tanh(*score / 0.5) - own->slope[h] * fabs((double)(t - s)));
    }
  }
  return own->status;
}

static polyhead_tile_class classify_scores(const polyhead_score_range* range, void* context) {
  if (range->batch < 0 || range->batch >= batch || range->head_end > heads || range->query_end > length ||
      range->key_end > length || range->key_begin >= range->key_end) {
    return 99;
  }
  return ((const own_scores*)context)->kind;
}

static void test_score_mod(const polyhead_runtime* runtime) {
  problem p;
  polyhead_attention_plan* plan = NULL;
  polyhead_attention_options options = POLYHEAD_INIT(polyhead_attention_options);
  polyhead_score_mod mod = POLYHEAD_INIT(polyhead_score_mod);
  float slope[heads] = {0.5f, 0.25f, -0.125f, 2.0f}, other[heads] = {1.0f, 0.0f, 0.125f, 0.5f};
  own_scores own, another;
  char text[2048];
  int i;
  make_problem(&p);
  own.slope = slope, own.status = POLYHEAD_OK, own.kind = POLYHEAD_TILE_PARTIAL;
  another = own, another.slope = other;
  mod.name = "softcap and distance";
  mod.function = change_scores;
  mod.context = &own;
  options.score_mod = &mod;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, slope) < 4e-6);
  mod.classify = classify_scores;
  p.spec.score_mod = &mod;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  mod.function = NULL; /* it was copied */
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, slope) < 4e-6);
  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  CHECK(strstr(text, "softcap and distance") != NULL);

  /* A run with a context of its own, and the next without. */
  p.inputs.score_mod_context = &another;
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, other) < 4e-6);
  mod.function = change_scores;
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, other) < 4e-6);
  p.inputs.score_mod_context = NULL;
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, slope) < 4e-6);

  own.kind = POLYHEAD_TILE_SKIP; /* no key is left */
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  for (i = 0; i < count; ++i) CHECK(p.out[i] == 0);
  own.kind = 7;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "score_mod.classify returned 7", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  own.kind = POLYHEAD_TILE_FULL, own.status = POLYHEAD_CANCELLED;
  FAILS(POLYHEAD_CANCELLED, "score_mod.function returned status 4", polyhead_attention_plan_run(plan, &p.inputs, NULL));
  own.status = POLYHEAD_OK;
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, slope) < 4e-6);

  /* An explanation asks the classifier, but where the context comes with a run. */
  own.kind = POLYHEAD_TILE_SKIP;
  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  CHECK(strstr(text, "of these its classifier skips") != NULL);
  own.kind = 7;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "score_mod.classify returned 7",
        polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  own.kind = POLYHEAD_TILE_PARTIAL;
  polyhead_attention_plan_destroy(plan);
  mod.context = NULL;
  SUCCEEDS(polyhead_attention_plan_create(runtime, &p.spec, &plan));
  SUCCEEDS(polyhead_attention_plan_explain(plan, text, sizeof(text), NULL));
  CHECK(strstr(text, "its classifier is not counted: its context is a run's") != NULL);
  p.inputs.score_mod_context = &another;
  SUCCEEDS(polyhead_attention_plan_run(plan, &p.inputs, NULL));
  CHECK(worst_error(&p, other) < 4e-6);
  p.inputs.score_mod_context = NULL;
  polyhead_attention_plan_destroy(plan);

  mod.function = NULL;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "score_mod.function is NULL", polyhead_attention(runtime, &p.inputs, &options));
  options.score_mod = NULL;
  p.inputs.score_mod_context = &own;
  FAILS(POLYHEAD_INVALID_ARGUMENT, "score_mod_context is given", polyhead_attention(runtime, &p.inputs, &options));
  /* To a caller from before this field there is no context to give. */
  p.inputs.struct_size = offsetof(polyhead_attention_inputs, score_mod_context);
  SUCCEEDS(polyhead_attention(runtime, &p.inputs, &options));
  CHECK(worst_error(&p, NULL) < 4e-6);
}

int main(void) {
  polyhead_runtime* runtime = NULL;
  SUCCEEDS(polyhead_runtime_create(NULL, &runtime));
  test_score_mod(runtime);
  polyhead_runtime_destroy(runtime);
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
