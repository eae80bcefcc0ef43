/* The C interface of Polyhead (C99): attention, multi-head attention and BERT-family encoders on CPUs.
 *
 * Conventions
 * - Every function that can fail returns a polyhead_status; polyhead_last_message() then says what was wrong. Nothing is
 *   thrown, printed or aborted across this border.
 * - Objects are opaque handles made by a ..._create or ..._load function and released by ..._destroy (NULL is allowed there).
 *   An object keeps alive what it was made from: a runtime may be destroyed before its plans. All handles may be used by any
 *   number of threads at the same time; destroying one while it is used is the caller's fault.
 * - Structures begin with struct_size, set by POLYHEAD_INIT. A caller built against an older header passes a smaller
 *   structure: the fields it lacks count as zero, and zero is each field's default. A caller built against a newer header
 *   passes a larger one: accepted while the part unknown to this library is all zero, POLYHEAD_INVALID_ARGUMENT otherwise.
 *       polyhead_attention_spec spec = POLYHEAD_INIT(polyhead_attention_spec);
 * - A text result is written to `buffer` (`capacity` bytes, always terminated when capacity > 0, cut off if need be), and its
 *   whole length without the terminator to *length. Either pointer may be NULL.
 */
#ifndef POLYHEAD_POLYHEAD_H
#define POLYHEAD_POLYHEAD_H

#include <stddef.h>
#include <stdint.h>

#include "polyhead/export.hpp" /* preprocessor only: POLYHEAD_EXPORT */

#ifdef __cplusplus
extern "C" {
#define POLYHEAD_INIT(type) {sizeof(type)}
#else
#define POLYHEAD_INIT(type) {.struct_size = sizeof(type)}
#endif

/* ---- status and version ---- */

typedef int32_t polyhead_status;
enum {
  POLYHEAD_OK = 0,
  POLYHEAD_INVALID_ARGUMENT = 1, /* a shape, stride, dtype, option or pointer is wrong; the message names it */
  POLYHEAD_UNSUPPORTED = 2,      /* a legal request that this build or CPU does not serve */
  POLYHEAD_OUT_OF_MEMORY = 3,
  POLYHEAD_CANCELLED = 4, /* the cancellation was seen; outputs are unspecified, nothing else changed */
  POLYHEAD_IO_ERROR = 5,  /* a file could not be read, or is not what its format promises */
  POLYHEAD_INTERNAL = 6   /* a fault of ours */
};

/* "invalid argument" and so on, for messages; "unknown status" for a value that is none. */
POLYHEAD_EXPORT const char* polyhead_status_name(polyhead_status status);
/* What was wrong in the calling thread's last failed call; "" before the first. A call that succeeds leaves it alone. The
 * pointer stays valid, its text until this thread's next failed call; messages are cut at about a thousand bytes. */
POLYHEAD_EXPORT const char* polyhead_last_message(void);
/* "major.minor.patch" of the library that is really running. */
POLYHEAD_EXPORT const char* polyhead_version(void);

/* ---- tensors ---- */

typedef int32_t polyhead_dtype;
enum {
  POLYHEAD_F32 = 0,
  POLYHEAD_F16 = 1,
  POLYHEAD_BF16 = 2,
  POLYHEAD_I8 = 3,
  POLYHEAD_U8 = 4,
  POLYHEAD_I32 = 5,
  POLYHEAD_I64 = 6,
  POLYHEAD_F64 = 7,
  POLYHEAD_BOOL = 8
};

#define POLYHEAD_MAX_RANK 8

/* A strided view of the caller's memory, which must outlive every call that uses it. Strides count elements and may be 0
 * (broadcast) or negative. The layout of this structure never changes, so it carries no struct_size. Inputs are only read. */
typedef struct polyhead_tensor {
  void* data;
  polyhead_dtype dtype;
  int32_t rank;
  int64_t shape[POLYHEAD_MAX_RANK];
  int64_t strides[POLYHEAD_MAX_RANK];
} polyhead_tensor;

/* Fills *tensor; strides may be NULL for row-major (C) order. Errors: invalid_argument for a NULL tensor, an unknown dtype, a
 * rank outside 0 .. 8, a negative size, sizes whose product overflows. */
POLYHEAD_EXPORT polyhead_status polyhead_tensor_init(polyhead_tensor* tensor, const void* data, polyhead_dtype dtype,
                                                     int32_t rank, const int64_t* shape, const int64_t* strides);

/* ---- runtime: which threads, which instruction set ---- */

typedef struct polyhead_runtime polyhead_runtime;

/* A host's own thread pool. parallel_for must call function(argument, i) once for every i < count, on any threads, and return
 * when all calls have returned; it may run them one after another. */
typedef struct polyhead_executor {
  size_t struct_size;
  void* context;
  void (*parallel_for)(void* context, size_t count, void (*function)(void* argument, size_t index), void* argument);
  int32_t concurrency; /* the largest number of calls that run at the same time; 0: 1 */
} polyhead_executor;

typedef int32_t polyhead_log_level;
enum { POLYHEAD_LOG_DEBUG = 0, POLYHEAD_LOG_INFO = 1, POLYHEAD_LOG_WARNING = 2 };
/* May be called from any thread; must not throw or long-jump. */
typedef void (*polyhead_log_function)(void* context, polyhead_log_level level, const char* message);

typedef struct polyhead_runtime_options {
  size_t struct_size;
  int32_t threads;           /* 0: as many as this process may use; 1 starts no thread at all */
  int32_t use_calling_arena; /* not 0: run in the oneTBB arena that the calling thread is in */
  const int32_t* cpu_set;    /* CPUs that worker threads are pinned to, cpu_set_count of them; NULL: no pinning */
  size_t cpu_set_count;
  const polyhead_executor* executor; /* run on the host's threads; excludes use_calling_arena and cpu_set; copied */
  const char* isa;                   /* "avx2" and so on; NULL: the best one, or what POLYHEAD_ISA names in the environment */
  polyhead_log_function log;         /* NULL: silent */
  void* log_context;
} polyhead_runtime_options;

/* options may be NULL for all defaults. No thread is started before the first call that needs one. Errors: invalid_argument
 * (threads < 0, an executor without a function, an unknown isa), unsupported (an isa this machine or build lacks). */
POLYHEAD_EXPORT polyhead_status polyhead_runtime_create(const polyhead_runtime_options* options, polyhead_runtime** runtime);
POLYHEAD_EXPORT void polyhead_runtime_destroy(polyhead_runtime* runtime);
POLYHEAD_EXPORT polyhead_status polyhead_runtime_threads(const polyhead_runtime* runtime, int32_t* threads);
/* The name of its instruction set, a constant string. */
POLYHEAD_EXPORT polyhead_status polyhead_runtime_isa(const polyhead_runtime* runtime, const char** isa);
/* Several lines for people: version, CPU, instruction set, caches, threads. */
POLYHEAD_EXPORT polyhead_status polyhead_runtime_describe(const polyhead_runtime* runtime, char* buffer, size_t capacity,
                                                          size_t* length);
/* The instruction sets that this build contains and this machine can run, plainest first, set apart by blanks. */
POLYHEAD_EXPORT polyhead_status polyhead_available_isas(char* buffer, size_t capacity, size_t* length);
/* Ends worker threads and waits for them, for hosts that unload the library; call it with no Polyhead call running. *ended
 * (may be NULL) tells whether all of them have ended. Runtimes stay usable. */
POLYHEAD_EXPORT polyhead_status polyhead_shutdown(int32_t* ended);

/* Asks a run to end early: POLYHEAD_CANCELLED from that run. May be requested from any thread, before or during the run. */
typedef struct polyhead_cancellation polyhead_cancellation;
POLYHEAD_EXPORT polyhead_status polyhead_cancellation_create(polyhead_cancellation** cancellation);
POLYHEAD_EXPORT void polyhead_cancellation_destroy(polyhead_cancellation* cancellation);
POLYHEAD_EXPORT polyhead_status polyhead_cancellation_request(polyhead_cancellation* cancellation);
POLYHEAD_EXPORT polyhead_status polyhead_cancellation_reset(polyhead_cancellation* cancellation);

typedef struct polyhead_run_options {
  size_t struct_size;
  void* workspace; /* memory for this run, 64-byte aligned, at least the plan's workspace_bytes; NULL: the plan keeps its own */
  size_t workspace_bytes;
  const polyhead_cancellation* cancellation; /* NULL: none */
} polyhead_run_options;

/* ---- masks ---- */

typedef int32_t polyhead_causal;
enum {
  POLYHEAD_CAUSAL_NONE = 0,
  POLYHEAD_CAUSAL_TOP_LEFT = 1,     /* query t sees keys s <= t */
  POLYHEAD_CAUSAL_BOTTOM_RIGHT = 2, /* s <= t + key_length - query_length, each batch item's own */
  POLYHEAD_CAUSAL_OFFSET = 3        /* s <= t + offsets[b] */
};

/* Which keys a query may attend to; the parts compose by AND. All zero: no mask. Flags are 0 or 1. */
typedef struct polyhead_mask {
  size_t struct_size;
  polyhead_causal causal;
  int32_t has_window;      /* keys from t + o - window_left to t + o + window_right, inclusive; o is the causal offset */
  int64_t window_left;     /* -1: unbounded */
  int64_t window_right;    /* -1: unbounded */
  int32_t has_key_lengths; /* keys s >= key_lengths[b] do not exist for batch item b */
  int32_t has_offsets;     /* offsets[b] is given (POLYHEAD_CAUSAL_OFFSET sets it, a window without causal may) */
  int32_t has_boolean;     /* a bool tensor broadcastable to [batch, heads, query, key]; true = attend */
  int32_t has_bias;        /* f32, bf16 or f16 broadcastable likewise, added to scaled scores; only -inf excludes */
  /* attention only: layers refuse what follows */
  int32_t has_query_lengths; /* queries t >= query_lengths[b] do not exist: not computed, out 0, lse -inf (or the sink) */
  int32_t is_packed;         /* sequences lie one after another in tensors whose batch is 1: see cumulative_query_lengths */
  int32_t has_prefix;        /* with causal: keys s < prefix_lengths[b] are seen by every query, whatever causal says */
  int32_t has_segments;      /* only queries and keys of equal numbers in query_segments and key_segments see each other */
  int64_t block_queries;     /* a block mask is given: a byte for each block of block_queries x block_keys, 0 hides it; */
  int64_t block_keys;        /* both 0: none */
  /* with has_window, for layers too: keys s < window_kept are seen whatever window_left says */
  int64_t window_kept;
} polyhead_mask;

/* ---- attention ---- */

/* A bias that a learned table gives by how query and key lie to each other; the formulas are in polyhead/relative_bias.hpp and
 * docs/semantics.md. */
typedef int32_t polyhead_relative_bias_kind;
enum {
  POLYHEAD_RELATIVE_NONE = 0,
  POLYHEAD_RELATIVE_T5 = 1,  /* by distance in buckets; the table is f32 [buckets, heads] */
  POLYHEAD_RELATIVE_SWIN = 2 /* by rows and columns of a window; the table is f32 [(2 height - 1) (2 width - 1), heads] */
};

typedef struct polyhead_relative_bias {
  size_t struct_size;
  polyhead_relative_bias_kind kind;
  int32_t bidirectional; /* T5: keys behind the query have buckets of their own */
  int64_t buckets;       /* T5 */
  int64_t max_distance;  /* T5 */
  int64_t height;        /* Swin */
  int64_t width;         /* Swin */
} polyhead_relative_bias;

/* How exact attention has to be; docs/semantics.md states both bounds. */
typedef int32_t polyhead_precision;
enum {
  POLYHEAD_STRICT = 0, /* f32's error */
  POLYHEAD_FAST = 1    /* a larger, stated error where the instruction set has a faster kernel for it */
};

/* The caller's own function of scores: score = function(capped scaled score, batch, head, query, key), in natural-log units,
 * before bias, ALiBi and masks. A score of -inf excludes its key from its query.
 *
 * A number of each score of a tile: first + of_line[line] + of_lane[lane]. Offsets are never NULL, 0 where the number does not
 * vary. */
typedef struct polyhead_score_index {
  int64_t first;
  const int32_t* of_line; /* [lines] */
  const int32_t* of_lane; /* [lanes] */
} polyhead_score_index;

/* Scores to change in place. Lanes are padded to whole vectors with repeated indices; padding may be changed or not. Scores of
 * keys that are masked may hold anything, NaN included, and what becomes of them counts for nothing. */
typedef struct polyhead_score_tile {
  size_t struct_size;
  float* scores; /* line i at scores + i * line_stride */
  int64_t lines;
  int64_t lanes;
  int64_t line_stride;        /* in floats */
  int64_t batch;              /* batch item or packed sequence; over a cache, the row of the query tensor */
  polyhead_score_index head;  /* query heads */
  polyhead_score_index query; /* places in the batch item or sequence, from 0 */
  polyhead_score_index key;   /* likewise; over a cache, positions in the sequence */
  int32_t lanes_are_keys;     /* 1: head and query vary with the line alone, key with the lane alone; 0: the other way round */
  int32_t is_full;            /* 1: the classifier has called the tile full */
} polyhead_score_tile;

/* The scores of heads, queries and keys [begin, end). */
typedef struct polyhead_score_range {
  size_t struct_size;
  int64_t batch;
  int64_t head_begin, head_end;
  int64_t query_begin, query_end;
  int64_t key_begin, key_end;
} polyhead_score_range;

typedef int32_t polyhead_tile_class;
enum {
  POLYHEAD_TILE_SKIP = 0,   /* the function would make every score -inf: nothing is computed, and it is not called */
  POLYHEAD_TILE_FULL = 1,   /* it would exclude none: see polyhead_score_tile.is_full */
  POLYHEAD_TILE_PARTIAL = 2 /* neither, or not known */
};

/* Called by several threads at once, in any order, again for scores whose row holds a NaN, and with denormals flushed to zero.
 * A function changes nothing but the scores. Another status than POLYHEAD_OK ends the run, which returns it; outputs are
 * unspecified then. */
typedef polyhead_status (*polyhead_score_function)(const polyhead_score_tile* tile, void* context);
typedef polyhead_tile_class (*polyhead_tile_classifier)(const polyhead_score_range* range, void* context);

typedef struct polyhead_score_mod {
  size_t struct_size;
  const char* name; /* for polyhead_attention_plan_explain; copied; NULL: "score_mod" */
  polyhead_score_function function;
  polyhead_tile_classifier classify; /* optional; it must speak the truth */
  void* context;                     /* handed to both */
} polyhead_score_mod;

/* What a layer keeps the weights of its products as; inputs, sums and outputs are f32. docs/semantics.md states what each
 * rounds to and the error bounds. */
typedef int32_t polyhead_weight_type;
enum {
  POLYHEAD_WEIGHTS_F32 = 0,
  POLYHEAD_WEIGHTS_BF16 = 1,
  POLYHEAD_WEIGHTS_F16 = 2,
  POLYHEAD_WEIGHTS_INT8 = 3,         /* a scale for each output feature */
  POLYHEAD_WEIGHTS_INT4 = 4,         /* a scale for each output feature and 32 input features */
  POLYHEAD_WEIGHTS_INT8_DYNAMIC = 5, /* int8, and each row of a product's input rounded likewise */
  POLYHEAD_WEIGHTS_BF16_DYNAMIC = 6  /* bf16, and each number of a product's input rounded to the nearest bf16 */
};

/* Sizes are maxima: a plan serves every run whose batch, query_length and key_length are at most these; the others are
 * exact. */
typedef struct polyhead_attention_spec {
  size_t struct_size;
  int64_t batch;
  int64_t heads;    /* query heads */
  int64_t kv_heads; /* 0: as many as heads; must divide heads */
  int64_t query_length;
  int64_t key_length;
  int64_t head_dim;  /* of query and key */
  int64_t value_dim; /* 0: head_dim */
  polyhead_dtype dtype;
  int32_t has_scale;         /* 0: scale is 1 / sqrt(head_dim) */
  double scale;              /* any finite number */
  const polyhead_mask* mask; /* NULL: none; copied */
  int32_t length_invariant;  /* not 0: a row's bits do not depend on query_length either */
  double softcap;            /* scaled scores become softcap * tanh(score / softcap), before bias and mask; 0: they stay */
  int32_t has_alibi;         /* alibi_slopes[h] (or [b, h]) * |t + o - s| is taken off the score, o being the causal offset */
  int32_t has_sink;          /* exp(sink[h]) is added to the softmax's denominator */
  polyhead_precision precision;
  const polyhead_relative_bias* relative_bias; /* NULL: none; copied. In the place of a bias */
  const polyhead_score_mod* score_mod;         /* NULL: none; copied */
  int32_t has_key_dtype; /* not 0: key and value (or what the cache stores) are of key_dtype, else of dtype */
  polyhead_dtype key_dtype;
  int32_t has_out_dtype; /* not 0: out is of out_dtype, else of dtype */
  polyhead_dtype out_dtype;
} polyhead_attention_spec;

/* Views are logical [batch, heads, length, dim] with any strides; a tensor that is not given is NULL. An output that overlaps
 * an input is refused. */
typedef struct polyhead_attention_inputs {
  size_t struct_size;
  const polyhead_tensor* query;         /* [B, heads, T, head_dim] */
  const polyhead_tensor* key;           /* [B, kv_heads, S, head_dim] */
  const polyhead_tensor* value;         /* [B, kv_heads, S, value_dim] */
  const polyhead_tensor* out;           /* [B, heads, T, value_dim], written */
  const polyhead_tensor* lse;           /* optional f32 [B, heads, T], written: natural log of the softmax denominator */
  const polyhead_tensor* key_lengths;   /* i32 or i64 [B], exactly when the mask has key lengths */
  const polyhead_tensor* offsets;       /* i32 or i64 [B], exactly when the mask has offsets */
  const polyhead_tensor* boolean_mask;  /* bool or u8, broadcastable to [B, heads, T, S]; true = attend */
  const polyhead_tensor* bias;          /* f32, bf16 or f16 whatever query is, read in place; broadcasts likewise */
  const polyhead_tensor* alibi_slopes;  /* f32 [heads] or [B, heads], finite; exactly when the spec has ALiBi */
  const polyhead_tensor* sink;          /* f32 [heads], logits, -inf for none; exactly when the spec has a sink */
  const polyhead_tensor* query_lengths; /* i32 or i64 [B], exactly when the mask has query lengths */
  /* i32 or i64 [B + 1], exactly when the mask is packed: 0, then the sum of the first i lengths. Sequence i is the queries
   * cumulative_query_lengths[i] .. [i + 1] - 1 and the keys likewise; B is the number of sequences everywhere, but query, key,
   * value, out and lse have a batch of 1, and T and S are the lengths of the longest sequence. */
  const polyhead_tensor* cumulative_query_lengths;
  const polyhead_tensor* cumulative_key_lengths;
  const polyhead_tensor* prefix_lengths; /* i32 or i64 [B], exactly when the mask has a prefix */
  const polyhead_tensor* query_segments; /* i32 or i64 [B, T] or [1, T], exactly when the mask has segments */
  const polyhead_tensor* key_segments;   /* the same [B, S] or [1, S] */
  const polyhead_tensor*
      block_mask; /* bool or u8, broadcastable to [B, heads, ceil(T / block_queries), ceil(S / block_keys)] */
  const polyhead_tensor* relative_bias_table; /* exactly when the spec has a relative bias */
  /* optional i32 or i64 [B, pages of an item]: key and value are pages [pages, kv_heads, tokens, dim] of equal distance, key s
   * of item b is token s % tokens of page block_table[b, s / tokens]. The mask has key lengths, and no segments. Packed
   * sequences then have packed queries only: cumulative_key_lengths is NULL. */
  const polyhead_tensor* block_table;
  void* score_mod_context; /* for the spec's score_mod, instead of its own context; NULL: that */
} polyhead_attention_inputs;

typedef struct polyhead_attention_plan polyhead_attention_plan;

/* Errors: invalid_argument, naming the field; unsupported for a dtype that no kernel of this build serves. */
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_create(const polyhead_runtime* runtime,
                                                               const polyhead_attention_spec* spec,
                                                               polyhead_attention_plan** plan);
POLYHEAD_EXPORT void polyhead_attention_plan_destroy(polyhead_attention_plan* plan);
/* options may be NULL. Steady state allocates nothing. */
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_run(const polyhead_attention_plan* plan,
                                                            const polyhead_attention_inputs* inputs,
                                                            const polyhead_run_options* options);
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_workspace_bytes(const polyhead_attention_plan* plan, size_t* bytes);
/* For people: the kernel and why it was chosen, blocks, tiles skipped, work items, workspace. A score_mod with a context, which
 * must be there, has its classifier asked about at most 65,536 tiles of the largest run, for the time expected. */
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_explain(const polyhead_attention_plan* plan, char* buffer,
                                                                size_t capacity, size_t* length);

/* The same facts as one JSON object; docs/architecture.md lists its members. */
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_explain_json(const polyhead_attention_plan* plan, char* buffer,
                                                                     size_t capacity, size_t* length);

typedef struct polyhead_attention_options {
  size_t struct_size;
  int32_t has_scale;
  int32_t length_invariant;
  double scale;
  const polyhead_mask* mask; /* NULL: none */
  double softcap;            /* this and the following as in polyhead_attention_spec */
  int32_t has_alibi;
  int32_t has_sink;
  polyhead_precision precision;
  const polyhead_relative_bias* relative_bias;
  const polyhead_score_mod* score_mod;
} polyhead_attention_options;

/* One call: takes the plan for the inputs' shapes from the runtime's cache, or makes it, and runs it. options may be NULL. */
POLYHEAD_EXPORT polyhead_status polyhead_attention(const polyhead_runtime* runtime, const polyhead_attention_inputs* inputs,
                                                   const polyhead_attention_options* options);

/* Attention weights of chosen heads and queries, and their sums over the queries. inputs->value, out and lse may be NULL; query
 * and key are f32, bf16 or f16, not necessarily alike. Memory is allocated. Errors: as polyhead_attention, and unsupported for
 * packed sequences with a score_mod or keys in pages. */
typedef struct polyhead_attention_weights_request {
  size_t struct_size;
  const polyhead_tensor* heads; /* i32 or i64 [n], query heads; NULL: all */
  const polyhead_tensor* rows;  /* i32 or i64 [m], queries; NULL: all */
  /* optional f32 [B, n, m, S], written: 0 where a key is not allowed. Packed sequences: [1, n, m, all keys], rows and keys
   * numbered through all of them */
  const polyhead_tensor* weights;
  const polyhead_tensor* received; /* optional f32 [B, n, S], written: the sum of the weights over the chosen queries */
} polyhead_attention_weights_request;

POLYHEAD_EXPORT polyhead_status polyhead_attention_weights(const polyhead_runtime* runtime,
                                                           const polyhead_attention_inputs* inputs,
                                                           const polyhead_attention_options* options,
                                                           const polyhead_attention_weights_request* request);

/* One attention out of two over different keys: out = exp(lse1 - lse) * out1 + exp(lse2 - lse) * out2, lse = ln(exp(lse1) +
 * exp(lse2) + exp(sink)). A part whose lse is -inf counts for nothing; where both are so out is 0 and lse -inf (or the sink).
 * out may be exactly out1 or out2, and lse exactly lse1 or lse2; any other overlap of an output is refused. */
typedef struct polyhead_merge_inputs {
  size_t struct_size;
  const polyhead_tensor* out1; /* f32, bf16 or f16 [B, heads, T, value_dim] */
  const polyhead_tensor* lse1; /* f32 [B, heads, T] */
  const polyhead_tensor* out2; /* of out1's type */
  const polyhead_tensor* lse2;
  const polyhead_tensor* out;  /* [B, heads, T, value_dim], of out1's type, rounded once; written */
  const polyhead_tensor* lse;  /* optional f32 [B, heads, T], written */
  const polyhead_tensor* sink; /* optional f32 [heads], logits, -inf for none; parts are computed without it */
} polyhead_merge_inputs;

POLYHEAD_EXPORT polyhead_status polyhead_merge(const polyhead_runtime* runtime, const polyhead_merge_inputs* inputs);

/* ---- caches of keys and values ---- */

typedef int32_t polyhead_cache_kind;
enum {
  POLYHEAD_CACHE_CONTIGUOUS = 0, /* room for `capacity` tokens of every sequence */
  POLYHEAD_CACHE_RING = 1,       /* the last `capacity` tokens of every sequence, for a sliding window */
  POLYHEAD_CACHE_PAGED = 2       /* pages that are allocated as sequences grow, shared by forks until one writes */
};

/* How elements of a head pair up for rotary position embedding. */
typedef int32_t polyhead_rotary;
enum {
  POLYHEAD_ROTARY_NONE = 0,
  POLYHEAD_ROTARY_INTERLEAVED = 1, /* (0, 1), (2, 3), ... */
  POLYHEAD_ROTARY_HALF_SPLIT = 2   /* (0, n / 2), (1, n / 2 + 1), ... of n rotated elements */
};

typedef struct polyhead_kv_cache_spec {
  size_t struct_size;
  polyhead_cache_kind kind;
  polyhead_dtype dtype; /* of what is stored: f32, bf16, f16 or i8 */
  int64_t sequences;    /* each starts empty */
  int64_t kv_heads;
  int64_t head_dim;
  int64_t value_dim;         /* 0: head_dim */
  int64_t capacity;          /* most tokens of a sequence; ring: those that are kept; paged: 0 for no limit */
  int64_t window;            /* ring: keys that a query may see, itself included, 1 .. capacity; else 0 */
  int64_t page_tokens;       /* paged: 0 for 128; else 0 */
  int64_t max_pages;         /* paged: 0 for no limit; else 0 */
  polyhead_rotary rotary;    /* of keys as they are appended, and of rotate_queries */
  int64_t rotary_dims;       /* elements of a head that are rotated, the first ones; even; 0: head_dim */
  double rotary_base;        /* pair i turns by base^(-2 i / dims) radians a position; 0: 10000 */
  const double* frequencies; /* instead of those, frequency_count (dims / 2) numbers; NULL: none; copied */
  size_t frequency_count;
} polyhead_kv_cache_spec;

/* New tokens of B sequences; a tensor that is not given is NULL. */
typedef struct polyhead_kv_cache_tokens {
  size_t struct_size;
  const polyhead_tensor* key;       /* f32, bf16 or f16 [B, kv_heads, T, head_dim], not yet rotated */
  const polyhead_tensor* value;     /* the same [B, kv_heads, T, value_dim]; rounded to what the cache stores */
  const polyhead_tensor* sequences; /* i32 or i64 [B], none twice; NULL: 0 .. B - 1 */
  const polyhead_tensor* lengths;   /* i32 or i64 [B], each 0 .. T: how many are real, the first ones; NULL: all */
  const polyhead_tensor* positions; /* i32 or i64 [B]: of each one's first token, for the rotation; NULL: the length so far */
} polyhead_kv_cache_tokens;

/* Calls that take a const cache may run on any number of threads; one that changes the cache must have it for itself. */
typedef struct polyhead_kv_cache polyhead_kv_cache;

/* Errors: invalid_argument, naming the field; unsupported for a storage type; out_of_memory. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_create(const polyhead_kv_cache_spec* spec, polyhead_kv_cache** cache);
POLYHEAD_EXPORT void polyhead_kv_cache_destroy(polyhead_kv_cache* cache);
/* Allocates nothing but pages. An error leaves the cache as it was; where pages are at their end it is out_of_memory. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_append(polyhead_kv_cache* cache, const polyhead_kv_cache_tokens* tokens);
/* Forgets a sequence's tokens from `length` on. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_trim(polyhead_kv_cache* cache, int64_t sequence, int64_t length);
/* Makes sequence `to` a copy of the first `length` tokens of `from`, -1 for all; pages are shared until one of them writes. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_fork(polyhead_kv_cache* cache, int64_t from, int64_t to, int64_t length);
/* The rotation of keys for queries [B, H, T, head_dim]: query t stands at positions[b] + t, with positions NULL at its
 * sequence's length - T + t. out may be query itself; sequences and positions may be NULL. Each is f32, bf16 or f16. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_rotate_queries(const polyhead_kv_cache* cache, const polyhead_tensor* query,
                                                                 const polyhead_tensor* out, const polyhead_tensor* sequences,
                                                                 const polyhead_tensor* positions);
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_length(const polyhead_kv_cache* cache, int64_t sequence, int64_t* length);
/* The oldest token that is there: 0 but in a ring. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_first_token(const polyhead_kv_cache* cache, int64_t sequence,
                                                              int64_t* first_token);
/* Reads tokens from `first` on, keys as rotated: f32 (exact), bf16 or f16 [kv_heads, n, head_dim] and [kv_heads, n, value_dim];
 * one may be NULL. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_read(const polyhead_kv_cache* cache, int64_t sequence, int64_t first,
                                                       const polyhead_tensor* key, const polyhead_tensor* value);
/* What a plan's key_length has to be to serve this cache however it grows; 0 for a paged cache without limits. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_plan_key_length(const polyhead_kv_cache* cache, int64_t* key_length);
/* Pages in use, a shared one once, and pages allocated: 0 but for paged. Either pointer may be NULL. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_pages(const polyhead_kv_cache* cache, int64_t* in_use, int64_t* allocated);
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_reserve_pages(polyhead_kv_cache* cache, int64_t pages);
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_memory_bytes(const polyhead_kv_cache* cache, size_t* bytes);
/* The file appears under its name (UTF-8) only when it is complete. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_save(const polyhead_kv_cache* cache, const char* path);
/* Errors: io_error for a file that cannot be read or is not what was saved. */
POLYHEAD_EXPORT polyhead_status polyhead_kv_cache_load(const char* path, polyhead_kv_cache** cache);

/* Row b of the tensors, or packed sequence b, belongs to sequence sequences[b]; S is the longest of these sequences' lengths.
 */
typedef struct polyhead_cached_attention_inputs {
  size_t struct_size;
  const polyhead_kv_cache* cache;
  const polyhead_tensor* query;     /* [B, heads, T, head_dim]; in one call f32, bf16 or f16, whatever the cache stores */
  const polyhead_tensor* out;       /* [B, heads, T, value_dim], written; likewise */
  const polyhead_tensor* lse;       /* optional f32 [B, heads, T], written */
  const polyhead_tensor* sequences; /* i32 or i64 [B]; NULL: 0 .. B - 1 */
  const polyhead_tensor* offsets;   /* these and the following as in polyhead_attention_inputs */
  const polyhead_tensor* boolean_mask;
  const polyhead_tensor* bias;
  const polyhead_tensor* alibi_slopes;
  const polyhead_tensor* sink;
  const polyhead_tensor* relative_bias_table;
  void* score_mod_context;
  const polyhead_tensor* query_lengths;
  const polyhead_tensor* cumulative_query_lengths; /* packed queries, of a batch of 1; keys are the cache's */
  const polyhead_tensor* prefix_lengths;           /* these two not over a ring */
  const polyhead_tensor* block_mask;
} polyhead_cached_attention_inputs;

/* The plan's mask has key lengths, which are the cache's; over a ring it is causal, bottom-right, and its key_length is the
 * ring's plan_key_length. Steady state allocates nothing. */
POLYHEAD_EXPORT polyhead_status polyhead_attention_plan_run_cached(const polyhead_attention_plan* plan,
                                                                   const polyhead_cached_attention_inputs* inputs,
                                                                   const polyhead_run_options* options);
/* One call; the mask gets key lengths by itself. options may be NULL: causal, bottom-right. */
POLYHEAD_EXPORT polyhead_status polyhead_cached_attention(const polyhead_runtime* runtime,
                                                          const polyhead_cached_attention_inputs* inputs,
                                                          const polyhead_attention_options* options);

/* Attention weights over a cache; see polyhead_attention_weights. inputs->out and lse may be NULL. S is the longest length of
 * the call's sequences. options may be NULL: causal, bottom-right. */
POLYHEAD_EXPORT polyhead_status polyhead_cached_attention_weights(const polyhead_runtime* runtime,
                                                                  const polyhead_cached_attention_inputs* inputs,
                                                                  const polyhead_attention_options* options,
                                                                  const polyhead_attention_weights_request* request);

/* ---- multi-head attention: projections, attention, output projection ---- */

typedef struct polyhead_multi_head_attention_spec {
  size_t struct_size;
  int64_t d_model; /* width of the query input and of the output */
  int64_t heads;
  int64_t kv_heads;        /* 0: heads */
  int64_t head_dim;        /* 0: d_model / heads, which must then divide */
  int64_t value_dim;       /* 0: head_dim */
  int64_t key_input_dim;   /* width of the key source, 0: d_model */
  int64_t value_input_dim; /* width of the value source, 0: d_model */
  int32_t has_scale;
  double scale;
  const polyhead_mask* mask;    /* NULL: none; copied */
  polyhead_precision precision; /* of the attention inside */
  polyhead_weight_type weights; /* what the projections' weights are kept as */
} polyhead_multi_head_attention_spec;

/* Matrices f32, bf16 or f16, biases f32; rows are output features. Copied and packed: the memory is the caller's again when
 * create returns. Biases may be NULL. */
typedef struct polyhead_multi_head_attention_weights {
  size_t struct_size;
  const polyhead_tensor* query;  /* [heads * head_dim, d_model] */
  const polyhead_tensor* key;    /* [kv_heads * head_dim, key_input_dim] */
  const polyhead_tensor* value;  /* [kv_heads * value_dim, value_input_dim] */
  const polyhead_tensor* output; /* [d_model, heads * value_dim] */
  const polyhead_tensor* query_bias;
  const polyhead_tensor* key_bias;
  const polyhead_tensor* value_bias;
  const polyhead_tensor* output_bias;
} polyhead_multi_head_attention_weights;

typedef struct polyhead_multi_head_attention_inputs {
  size_t struct_size;
  const polyhead_tensor* query; /* [B, T, d_model] */
  const polyhead_tensor* key;   /* [B, S, key_input_dim]; NULL: the query input (self-attention) */
  const polyhead_tensor* value; /* [B, S, value_input_dim]; NULL: the key input */
  const polyhead_tensor* out;   /* [B, T, d_model], written */
  const polyhead_tensor* key_lengths;
  const polyhead_tensor* offsets;
  const polyhead_tensor* boolean_mask;
  const polyhead_tensor* bias; /* f32, bf16 or f16 */
} polyhead_multi_head_attention_inputs;

typedef struct polyhead_multi_head_attention polyhead_multi_head_attention;

POLYHEAD_EXPORT polyhead_status polyhead_multi_head_attention_create(const polyhead_runtime* runtime,
                                                                     const polyhead_multi_head_attention_spec* spec,
                                                                     const polyhead_multi_head_attention_weights* weights,
                                                                     polyhead_multi_head_attention** layer);
POLYHEAD_EXPORT void polyhead_multi_head_attention_destroy(polyhead_multi_head_attention* layer);
POLYHEAD_EXPORT polyhead_status polyhead_multi_head_attention_run(const polyhead_multi_head_attention* layer,
                                                                  const polyhead_multi_head_attention_inputs* inputs,
                                                                  const polyhead_run_options* options);

/* ---- BERT-family encoders from a model folder ---- */

typedef struct polyhead_bert_encoder polyhead_bert_encoder;

/* folder (UTF-8) holds config.json and model.safetensors. Errors: io_error, unsupported; both name the file and the field. */
POLYHEAD_EXPORT polyhead_status polyhead_bert_encoder_load(const polyhead_runtime* runtime, const char* folder,
                                                           polyhead_bert_encoder** encoder);
typedef struct polyhead_bert_options {
  size_t struct_size;
  polyhead_weight_type weights; /* of the encoder blocks' products, whatever the file has */
} polyhead_bert_options;
/* options may be NULL: f32. */
POLYHEAD_EXPORT polyhead_status polyhead_bert_encoder_load_with(const polyhead_runtime* runtime, const char* folder,
                                                                const polyhead_bert_options* options,
                                                                polyhead_bert_encoder** encoder);
POLYHEAD_EXPORT void polyhead_bert_encoder_destroy(polyhead_bert_encoder* encoder);
POLYHEAD_EXPORT polyhead_status polyhead_bert_encoder_hidden_size(const polyhead_bert_encoder* encoder, int64_t* hidden_size);
/* token_ids: i32 or i64 [B, L]; lengths: i32 or i64 [B], or NULL (all L); out: f32 [B, L, hidden_size]. */
POLYHEAD_EXPORT polyhead_status polyhead_bert_encoder_token_embeddings(const polyhead_bert_encoder* encoder,
                                                                       const polyhead_tensor* token_ids,
                                                                       const polyhead_tensor* lengths,
                                                                       const polyhead_tensor* out,
                                                                       const polyhead_run_options* options);
/* Mean over the real positions, divided by its Euclidean norm when normalise is not 0. out: f32 [B, hidden_size]. */
POLYHEAD_EXPORT polyhead_status polyhead_bert_encoder_encode(const polyhead_bert_encoder* encoder,
                                                             const polyhead_tensor* token_ids, const polyhead_tensor* lengths,
                                                             const polyhead_tensor* out, int32_t normalise,
                                                             const polyhead_run_options* options);

#ifdef __cplusplus
}
#endif

#endif /* POLYHEAD_POLYHEAD_H */
