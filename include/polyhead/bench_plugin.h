/* Your attention in Polyhead's benchmarks: build a shared library that exports polyhead_bench_plugin(), and run
 *
 *     polyhead bench bert-512 --plugin ./libmine.so          or          polyhead-bench --plugin=./libmine.so
 *
 * Its engines get the same operands as Polyhead, are compared with float64 the same way before they are timed, and are timed in
 * turn with Polyhead in one process. This header is all a plugin needs: it links to nothing of Polyhead. An engine is a
 * structure with a name and one function; examples/bench_plugin is a whole one.
 *
 * What an engine computes, for every batch item b, query head h, query t and its value_dim elements, in f32:
 *
 *     out[b,h,t,:] = sum_s softmax_s(scale * dot(query[b,h,t,:], key[b,g,s,:])) * value[b,g,s,:],    g = h / (heads / kv_heads)
 *
 * over the keys s that are allowed: s < key_lengths[b], and with the diagonal i = t + offset
 *
 *     causal                s <= i
 *     window_left >= 0      s >= i - window_left
 *     window_right >= 0     s <= i + window_right
 *
 * where offset is 0, and for POLYHEAD_BENCH_BOTTOM_RIGHT length - query_length, with length = key_lengths[b] or key_length. A
 * query that may see no key gives zeros.
 *
 * The functions of one problem are called by one thread, one call at a time. They may throw nothing and must return; a crash
 * ends the benchmark with a message that names the engine. The process loads a plugin once and never unloads it. */
#ifndef POLYHEAD_BENCH_PLUGIN_H
#define POLYHEAD_BENCH_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define POLYHEAD_BENCH_PLUGIN_EXPORT __declspec(dllexport)
#else
#define POLYHEAD_BENCH_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows only when an old plugin could no longer be served; new fields are appended without it, and struct_size tells. */
#define POLYHEAD_BENCH_PLUGIN_VERSION 1

typedef int32_t polyhead_bench_dtype;
enum { POLYHEAD_BENCH_F32 = 0 };

typedef int32_t polyhead_bench_causal;
enum { POLYHEAD_BENCH_NOT_CAUSAL = 0, POLYHEAD_BENCH_TOP_LEFT = 1, POLYHEAD_BENCH_BOTTOM_RIGHT = 2 };

/* [batch, heads (kv_heads for key and value), length, dim]: element (b, h, l, d) lies at data plus, in bytes,
 * b * strides[0] + h * strides[1] + l * strides[2] + d * strides[3]. */
typedef struct polyhead_bench_operand {
  void* data;
  int64_t strides[4];
} polyhead_bench_operand;

/* All sizes are at least 1; heads is a multiple of kv_heads. Lives as long as the handle that was prepared for it. */
typedef struct polyhead_bench_problem {
  size_t struct_size; /* what this Polyhead knows: a field beyond it is not there */
  polyhead_bench_dtype dtype;
  int32_t threads; /* at most so many may work at the same time, the calling one included */
  int64_t batch;
  int64_t heads;
  int64_t kv_heads;
  int64_t query_length;
  int64_t key_length;
  int64_t head_dim;  /* of query and key */
  int64_t value_dim; /* of value and out */
  double scale;
  polyhead_bench_causal causal;
  int64_t window_left;        /* -1: unbounded */
  int64_t window_right;       /* -1: unbounded */
  const int64_t* key_lengths; /* [batch], each in 1 .. key_length; NULL: key_length for all */
  polyhead_bench_operand query;
  polyhead_bench_operand key;
  polyhead_bench_operand value;
  polyhead_bench_operand out; /* the only one to be written to */
} polyhead_bench_problem;

/* Where a function says why: a text for people, ended by 0, of at most capacity bytes with the 0. */
typedef struct polyhead_bench_message {
  char* text;
  size_t capacity;
} polyhead_bench_message;

/* One implementation of attention. Functions marked optional may be NULL. */
typedef struct polyhead_bench_engine {
  size_t struct_size; /* sizeof(polyhead_bench_engine) */
  int32_t version;    /* POLYHEAD_BENCH_PLUGIN_VERSION */
  /* A part of benchmarks' names: 1 to 40 letters, digits, '.', '_', '-' or '+'; not an instruction set of Polyhead's. */
  const char* name;
  /* Optional: what result files say about it, such as the versions of the libraries behind it. */
  const char* description;

  /* Optional: 1 when the engine serves this problem; 0 when it does not, with the reason in message. It may look at everything
   * but the operands' data, which are NULL here. NULL: it serves all problems. */
  int32_t (*supports)(const polyhead_bench_problem* problem, polyhead_bench_message message);

  /* Optional: what is done once for many runs, and not timed: plans, threads, workspace. *handle, NULL before, is given to the
   * calls below. The operands' contents are meaningless here, and change between runs: packed copies of them are of no use.
   * 0: done; anything else is a failure, with the reason in message. */
  int32_t (*prepare)(const polyhead_bench_problem* problem, void** handle, polyhead_bench_message message);

  /* Computes out from the operands as they are now, and returns when it is written. This is what is timed. 0: done; anything
   * else is a failure. */
  int32_t (*run)(const polyhead_bench_problem* problem, void* handle, polyhead_bench_message message);

  /* Optional: frees what prepare made; also called when prepare failed but left a handle. */
  void (*destroy)(void* handle);
} polyhead_bench_engine;

/* What the shared library exports: its engines by index, 0 first, and NULL after the last. The structures stay where they are
 * for as long as the process runs. */
POLYHEAD_BENCH_PLUGIN_EXPORT const polyhead_bench_engine* polyhead_bench_plugin(int32_t index);

#ifdef __cplusplus
}
#endif

#endif /* POLYHEAD_BENCH_PLUGIN_H */
