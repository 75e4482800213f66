// The stable C interface of headwise: masks, plans and attention on tensors laid out as DLPack's DLTensor.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Every call returns a status; anything but HW_OK leaves its outputs untouched and a sentence in
// hw_last_error(). Handles are made by *_create (or a mask builder) and given back by *_destroy, which takes
// NULL too. A context is used by one thread at a time, and a second one is refused; masks and plans never
// change and may be used by many.
typedef int32_t hw_status;
enum {
  HW_OK = 0,
  HW_BAD_SHAPE = 1,         // sizes that do not fit each other
  HW_BAD_DTYPE = 2,         // a number format or device this tensor may not have
  HW_BAD_ARGUMENT = 3,      // a value out of range, a null pointer, a struct_size that cannot be
  HW_UNSUPPORTED = 4,       // no allowed kernel can do it; the sentence holds every refusal
  HW_OUT_OF_WORKSPACE = 5,  // the workspace handed in is too small
  HW_OUT_OF_MEMORY = 6,
  HW_INTERNAL = 7,      // anything else that was caught
  HW_DEVICE_FAILED = 8  // a CUDA call failed; the sentence names the launch
};

/// "0.1.0": the number `headwise --version` prints.
const char* hw_version(void);
/// "bad_shape" for HW_BAD_SHAPE; "unknown" for a number that is no status.
const char* hw_status_name(hw_status status);
/// The sentence of this thread's last call that failed; "" when none has. Valid until the thread's next
/// failure.
const char* hw_last_error(void);

// ---- tensors ----

/// The layout of DLPack's DLDevice, DLDataType and DLTensor, field by field: a DLTensor* may be cast to a
/// hw_tensor*.
typedef struct hw_device {
  int32_t device_type;  // HW_DEVICE_CPU, HW_DEVICE_CUDA
  int32_t device_id;
} hw_device;
enum { HW_DEVICE_CPU = 1, HW_DEVICE_CUDA = 2 };

typedef struct hw_dtype {
  uint8_t code;  // HW_INT ...
  uint8_t bits;
  uint16_t lanes;  // 1
} hw_dtype;
enum { HW_INT = 0, HW_UINT = 1, HW_FLOAT = 2, HW_BFLOAT = 4, HW_BOOL = 6, HW_E4M3 = 10 };

typedef struct hw_tensor {
  void* data;
  hw_device device;
  int32_t ndim;
  hw_dtype dtype;
  const int64_t* shape;
  const int64_t* strides;  // in elements, >= 0; NULL: packed, last axis fastest
  uint64_t byte_offset;
} hw_tensor;

// ---- context ----

typedef struct hw_context hw_context;
typedef struct hw_mask hw_mask;
typedef struct hw_attention_plan hw_attention_plan;
typedef struct hw_backward_plan hw_backward_plan;

/// Every struct below begins with struct_size = sizeof of the caller's version. Fields are only ever appended
/// and 0 is every field's default: a shorter struct works, a longer one works while what this library does
/// not know is 0. A size that no version has, because it ends inside a field, is refused.
typedef struct hw_context_options {
  uint32_t struct_size;
  int32_t threads;      // 0: HEADWISE_THREADS, else the CPUs this process may use
  const char* kernels;  // "cpu/online,ref": allowed kernels, best first; NULL: HEADWISE_KERNELS, else all
  hw_device device;     // tensors elsewhere are refused; device_type 0: each call runs where its tensors lie
} hw_context_options;

/// `options` may be NULL: all defaults.
hw_status hw_context_create(const hw_context_options* options, hw_context** context);
void hw_context_destroy(hw_context* context);
hw_status hw_context_threads(const hw_context* context, int32_t* threads);
/// In the child after fork(): the context's workers are gone; start new ones before the next call.
hw_status hw_context_after_fork(hw_context* context);

// ---- masks: true always means "may attend" ----

/// "causal & window(256, 0) | prefix(4)".
hw_status hw_mask_parse(const char* text, hw_mask** mask);
hw_status hw_mask_all(hw_mask** mask);
hw_status hw_mask_causal(hw_mask** mask);
/// Keys from q - back to q + ahead.
hw_status hw_mask_window(int64_t back, int64_t ahead, hw_mask** mask);
/// The last `width` keys, itself included.
hw_status hw_mask_sliding(int64_t width, hw_mask** mask);
/// The first `keys` keys, for every query.
hw_status hw_mask_prefix(int64_t keys, hw_mask** mask);
/// Sequence b may look at keys 0..lengths[b]-1.
hw_status hw_mask_lengths(const int64_t* lengths, size_t count, hw_mask** mask);
/// Tokens offsets[i]..offsets[i+1]-1 form document i; count = documents + 1.
hw_status hw_mask_documents(const int64_t* offsets, size_t count, hw_mask** mask);
/// Query block r may look at the kv blocks columns[rows[r]..rows[r+1]).
hw_status hw_mask_blocks(int64_t q_block, int64_t kv_block, const int64_t* rows, size_t row_count,
                         const int64_t* columns, size_t column_count, hw_mask** mask);
/// |q - k| % stride < width.
hw_status hw_mask_strided(int64_t stride, int64_t width, hw_mask** mask);
/// Pairs in which the query or the key is one of `positions`.
hw_status hw_mask_global(const int64_t* positions, size_t count, hw_mask** mask);
/// u8 or bool [q kv], [heads q kv] or [batch heads q kv], non-zero = may attend; copied, one bit a pair.
hw_status hw_mask_dense(const hw_tensor* open, hw_mask** mask);
/// The same with the other polarity: non-zero = may not attend.
hw_status hw_mask_from_blocked(const hw_tensor* blocked, hw_mask** mask);
/// One mask a head; the outermost expression only. The masks may be destroyed afterwards, as in the two
/// below.
hw_status hw_mask_per_head(const hw_mask* const* masks, size_t count, hw_mask** mask);
hw_status hw_mask_and(const hw_mask* a, const hw_mask* b, hw_mask** mask);
hw_status hw_mask_or(const hw_mask* a, const hw_mask* b, hw_mask** mask);
void hw_mask_destroy(hw_mask* mask);

typedef struct hw_mask_place {
  uint32_t struct_size;
  int64_t sequence, head, q_start;
} hw_mask_place;
/// Writes 1 when the query at position q may attend to the key at position k, else 0. `place` may be NULL:
/// all 0.
hw_status hw_mask_may_attend(const hw_mask* mask, int64_t q, int64_t k, const hw_mask_place* place,
                             int32_t* open);

/// Texts are copied into the caller's buffer with a closing 0. *length is the text's length without it; with
/// capacity 0 the buffer may be NULL and only *length is written. Too small a buffer is HW_BAD_ARGUMENT and
/// *length still says the need.
hw_status hw_mask_text(const hw_mask* mask, char* buffer, size_t capacity, size_t* length);

// ---- attention ----

/// Where head h finds its vector; as headwise::HeadLayout. row 0: slot h / group of a tensor [batch tokens
/// slots dim]. row > 0: columns begin + (h / group) * step + 0..dim of [batch tokens row]; columns outside
/// the row are read as 0.
typedef struct hw_head_layout {
  int64_t heads, dim, group, step, begin, row;  // group 0 counts as 1
} hw_head_layout;

enum {  // score terms a run brings, and its gate
  HW_TERM_SOFTCAP = 1,
  HW_TERM_ALIBI = 2,
  HW_TERM_BIAS = 4,
  HW_TERM_RELATIVE = 8,
  HW_TERM_SINKS = 16,
  HW_TERM_DROPOUT = 32,
  HW_TERM_GATE = 64,
  HW_TERM_ROWS = 128  // each head has a list of its query rows
};
enum { HW_NORM_SOFTMAX = 0, HW_NORM_ENTMAX = 1 };
enum { HW_MIX_NONE = 0, HW_MIX_FIXED = 1, HW_MIX_DYNAMIC = 2 };  // as headwise::Mix
enum { HW_KV_OWN = 0, HW_KV_INT8 = 1, HW_KV_E4M3 = 2 };  // k and v: as q, or with a scale a token and kv head
enum { HW_PROBE_ROWS = 1, HW_PROBE_COLUMNS = 2 };
enum {
  HW_SCORES_NONE = 0,
  HW_SCORES_SCALED = 1,
  HW_SCORES_SOFTCAPPED = 2,
  HW_SCORES_BIASED = 3,
  HW_SCORES_WEIGHTS = 4
};

/// What a plan is made for: sizes and kinds, no address.
typedef struct hw_attention_problem {
  uint32_t struct_size;
  hw_dtype dtype;                      // of q, k, v and out
  int64_t batch, q_tokens, kv_tokens;  // ragged: sequences, and the longest one's tokens
  int64_t heads, kv_heads;             // kv_heads 0: as heads
  int64_t head_dim, value_dim;         // value_dim 0: as head_dim
  uint32_t terms;                      // HW_TERM_* joined by |
  int32_t lse;                         // 1: the run writes the log-sum-exp
  int32_t ragged;                      // 1: q, k, v hold [1 tokens ...] with offsets
  uint32_t probe;                      // HW_PROBE_* joined by |
  int64_t q_total, kv_total;           // ragged: rows of q and of k, v
  int64_t probe_top_k, probe_classes, probe_picked;
  int32_t probe_scores;                         // HW_SCORES_*
  int32_t reserved;                             // 0
  hw_head_layout q_layout, k_layout, v_layout;  // all with heads 0: plain tensors of the sizes above
  int32_t kv_type;                              // HW_KV_*
  int32_t packed_keys;                          // 1: k comes packed
  int32_t norm;                                 // HW_NORM_*
  int32_t mix_before, mix_after;                // HW_MIX_*: how heads are mixed around the normalizer
  int32_t reserved_heads;                       // 0
  int64_t mix_rank;                             // R of a dynamic mix
  int64_t normal_heads;                         // between the mixes; 0: as many as q
  int64_t pages, page_size;                     // of k and v; both 0: they lie in one piece
  hw_device device;                             // device_type 0: the context's, else the CPU
  uint64_t run[16];                             // a CUDA device: what hw_attention_problem_of read of a run's
                                                // mask, scale, positions and steps; all 0: nothing special
} hw_attention_problem;

/// Where probes go (and class_of, picks: where they come from); shapes as in headwise/spec/probe.h. NULL =
/// not asked. HW_PROBE_ROWS needs one or more of the first six, top_k both of its tensors.
typedef struct hw_probe_tensors {
  uint32_t struct_size;
  const hw_tensor *entropy, *top_weight, *second_moment, *mean_distance, *sink_mass;  // f32 [batch heads q]
  const hw_tensor* top_position;                                                      // i64 [batch heads q]
  const hw_tensor *top_keys, *top_weights;  // i64 and f32 [batch heads q top_k]
  const hw_tensor *class_of, *class_mass;   // i32 [batch kv]; f32 [batch heads q classes]
  const hw_tensor* column_sums;             // f32 [batch heads kv]
  const hw_tensor *picks, *picked_weights;  // i64 [picked 3]; f32 [picked kv]
  const hw_tensor* scores;                  // f32 [batch heads q kv]
} hw_probe_tensors;

/// How packed keys lie in a buffer [batch kv_heads room], which has no header: fill it with
/// hw_packed_keys_describe and keep it beside the buffer. As headwise::PackedKeys.
typedef struct hw_packed_keys {
  uint32_t struct_size;
  hw_dtype dtype;  // f32, bf16, f16, int8 or e4m3
  int64_t kv_heads, dim;
  int64_t capacity, tokens;  // tokens a sequence has room for, and has
  int64_t order_group, order_columns, order_pad;
} hw_packed_keys;

/// The addresses of one run; NULL = not used.
typedef struct hw_attention_args {
  uint32_t struct_size;
  const hw_tensor *q, *k, *v, *out;  // [batch tokens heads dim], or [batch tokens row]
  const hw_tensor* lse;              // f32 [batch heads q], natural log, sink included
  const hw_mask* mask;
  const hw_tensor* q_start;  // i64 [1] or [batch]: position of the first query; HW_START_END allowed
  const hw_tensor *q_offsets, *kv_offsets;  // i64 [batch + 1], ragged
  const hw_tensor* scale;                   // [1] or [heads]; NULL: 1 / sqrt(head_dim)
  double softcap;
  const hw_tensor* slopes;    // [heads], ALiBi
  const hw_tensor* bias;      // [batch heads q kv], any stride may be 0
  const hw_tensor* relative;  // [buckets heads], T5 table
  int64_t relative_max_distance;
  int32_t relative_bidirectional;
  const hw_tensor* sinks;  // [heads]
  const hw_tensor* gate;   // [batch q heads]
  double dropout;
  uint64_t seed;
  const hw_tensor* sequence_ids;  // i64 [batch], for dropout
  const hw_probe_tensors* probe;
  const hw_tensor *k_scale,
      *v_scale;  // f32 [batch kv_tokens kv_heads], or [pages page_size kv_heads]: k = k_scale * its
                 // numbers; int8 and e4m3 k and v only
  const hw_packed_keys* packed;  // given: k is the buffer [batch kv_heads room] it describes
  void* stream;                  // CUDA tensors: the cudaStream_t to run on; NULL: the default stream
  const hw_tensor* alpha;        // [heads], entmax: 1, or from 1.01 to 2; unchecked on CUDA
  // i64 [batch * heads + 1] and [listed], as headwise::RowLists; both on the CPU, or both where q lies,
  // unchecked
  const hw_tensor *row_offsets, *row_index;
  const hw_tensor *mix_before, *mix_after;  // [q_heads heads], [heads v_heads]
  const hw_tensor *mix_q, *mix_k;           // [batch tokens mixes*(2*rank+1) heads], as headwise::HeadInputs
  const hw_tensor* page_table;    // i32 [batch pages_each]: k and v are [pages page_size kv_heads dim]
  const hw_tensor* page_lengths;  // i64 [batch] on the CPU: tokens of each sequence in its pages
} hw_attention_args;

/// A q_start of this value: the last query meets the last key.
#define HW_START_END INT64_MIN

/// Fills `problem` from the tensors of a run. On entry it holds struct_size and, where wanted, the probe_*
/// fields and the layouts of rows (overlapped heads); every other field is overwritten. Without probe_*
/// fields the probes are those whose tensors are given.
hw_status hw_attention_problem_of(const hw_attention_args* args, hw_attention_problem* problem);

hw_status hw_attention_plan_create(const hw_context* context, const hw_attention_problem* problem,
                                   hw_attention_plan** plan);
void hw_attention_plan_destroy(hw_attention_plan* plan);
hw_status hw_attention_plan_workspace_bytes(const hw_attention_plan* plan, size_t* bytes);
/// The chosen kernel's name; lives as long as the plan.
hw_status hw_attention_plan_kernel(const hw_attention_plan* plan, const char** name);
/// The class that fixes every rounding step.
hw_status hw_attention_plan_numerics(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                     size_t* length);
/// One line "kernel: why it refused" for each kernel before the chosen one. When every kernel refuses,
/// hw_attention_plan_create fails with HW_UNSUPPORTED and its sentence holds these lines.
hw_status hw_attention_plan_refusals(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                     size_t* length);
/// The choice in words: the kernels before the chosen one with their reasons, sizes, cost. The first call of
/// a plan for the CPU measures this machine's peak and bandwidth, about 100 ms.
hw_status hw_attention_plan_explain(const hw_attention_plan* plan, char* buffer, size_t capacity,
                                    size_t* length);

/// Runs. workspace NULL: the context's own, grown when it must; else the caller's memory of any alignment, at
/// least hw_attention_plan_workspace_bytes of a plan made for this context's thread count, and nothing is
/// allocated. On a CUDA device workspace is NULL: the work starts on args->stream, with that stream's own
/// memory, and the call returns without waiting.
hw_status hw_attention_run(const hw_attention_plan* plan, hw_context* context, const hw_attention_args* args,
                           void* workspace, size_t workspace_bytes);

/// Plans and runs in one call, where q lies: plain layouts; matrices alone are a fixed mix, mix_q or mix_k
/// two dynamic ones, alpha is entmax; probes are those whose tensors are given, but scores. Every tensor lies
/// beside q but scale, q_start, offsets, page_lengths, sequence_ids, class_of and picks, which lie on the
/// CPU.
hw_status hw_attention(hw_context* context, const hw_attention_args* args);
/// The CUDA devices, one line, or why there is none.
hw_status hw_cuda_devices(char* buffer, size_t capacity, size_t* length);

// ---- gradients of attention ----

enum {  // which gradients a run writes
  HW_GRAD_Q = 1,
  HW_GRAD_K = 2,
  HW_GRAD_V = 4,
  HW_GRAD_BIAS = 8,
  HW_GRAD_SLOPES = 16,
  HW_GRAD_RELATIVE = 32,
  HW_GRAD_SINKS = 64,
  HW_GRAD_SCALE = 128,
  HW_GRAD_GATE = 256,
  HW_GRAD_ALPHA = 512,
  HW_GRAD_MIX_BEFORE = 1024,
  HW_GRAD_MIX_AFTER = 2048,
  HW_GRAD_MIX_Q = 4096,
  HW_GRAD_MIX_K = 8192
};

typedef struct hw_backward_problem {
  uint32_t struct_size;
  uint32_t gradients;             // HW_GRAD_* joined by |
  hw_attention_problem* forward;  // without probes; only hw_backward_problem_of writes to it
} hw_backward_problem;

/// One run. A gradient has the sizes of what it belongs to and is overwritten; where several heads or
/// sequences read one element it is their sum. NULL = not wanted.
typedef struct hw_backward_args {
  uint32_t struct_size;
  const hw_attention_args* forward;     // the forward's; its out and lse are read, not written
  const hw_tensor* dout;                // like out, same dtype
  const hw_tensor *dq, *dk, *dv;        // like q, k, v, same dtype
  const hw_tensor *dbias, *dslopes;     // like bias, slopes; any float
  const hw_tensor *drelative, *dsinks;  // like relative, sinks; any float
  const hw_tensor* dscale;              // like scale; f32 or f64
  const hw_tensor* dgate;               // like gate; any float
  const hw_tensor *dalpha, *dmix_before, *dmix_after, *dmix_q, *dmix_k;  // like alpha, mix_*; any float
} hw_backward_args;

/// Fills `problem` and what its `forward` points at from the tensors of a run. On entry both hold struct_size
/// and `forward`, where wanted, the layouts of rows.
hw_status hw_backward_problem_of(const hw_backward_args* args, hw_backward_problem* problem);

/// As hw_attention_plan_*; a context's list of kernels serves both, names of the other op are skipped.
hw_status hw_backward_plan_create(const hw_context* context, const hw_backward_problem* problem,
                                  hw_backward_plan** plan);
void hw_backward_plan_destroy(hw_backward_plan* plan);
hw_status hw_backward_plan_workspace_bytes(const hw_backward_plan* plan, size_t* bytes);
hw_status hw_backward_plan_kernel(const hw_backward_plan* plan, const char** name);
hw_status hw_backward_plan_numerics(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                    size_t* length);
hw_status hw_backward_plan_refusals(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                    size_t* length);
hw_status hw_backward_plan_explain(const hw_backward_plan* plan, char* buffer, size_t capacity,
                                   size_t* length);
hw_status hw_backward_run(const hw_backward_plan* plan, hw_context* context, const hw_backward_args* args,
                          void* workspace, size_t workspace_bytes);

/// Plans and runs in one call, where q lies: plain layouts; dout, out, lse and the gradients lie beside q.
hw_status hw_attention_backward(hw_context* context, const hw_backward_args* args);

// ---- q and k before attention: rotary positions and norms, with their gradients ----

enum { HW_ROPE_HALF = 0, HW_ROPE_INTERLEAVED = 1 };
enum {
  HW_ROPE_SCALING_NONE = 0,
  HW_ROPE_SCALING_LINEAR = 1,
  HW_ROPE_SCALING_NTK = 2,
  HW_ROPE_SCALING_YARN = 3,
  HW_ROPE_SCALING_LLAMA3 = 4
};
/// In rotary_dim: no dimension turns. In eps: none is used.
#define HW_NONE (-1)

typedef struct hw_rope_options {
  uint32_t struct_size;
  int32_t kind;                              // HW_ROPE_HALF or HW_ROPE_INTERLEAVED
  int64_t rotary_dim;                        // 0: the whole head; HW_NONE: none turns
  double base;                               // 0: 10000
  int32_t inverse;                           // 1: by the negative angle
  int32_t scaling;                           // HW_ROPE_SCALING_*
  double factor;                             // 0: 1
  int64_t original_length;                   // yarn, llama3
  double beta_fast, beta_slow;               // yarn; 0: 32 and 1
  double attention_factor;                   // yarn; 0: 0.1 ln(factor) + 1
  double low_freq_factor, high_freq_factor;  // llama3; 0: 1 and 4
  int32_t keep_fractions;                    // yarn; 1: the ramp's ends are not rounded to whole pairs
  int32_t reserved;                          // 0
} hw_rope_options;

/// x and out [batch tokens heads dim]; out is x itself or apart from it. positions: i64 [tokens] or [batch
/// tokens]; NULL: token t stands at start + t. `options` may be NULL: all defaults.
hw_status hw_rope(hw_context* context, const hw_rope_options* options, const hw_tensor* x,
                  const hw_tensor* positions, int64_t start, const hw_tensor* out);
/// dx from dout, with the options and positions of the forward.
hw_status hw_rope_backward(hw_context* context, const hw_rope_options* options, const hw_tensor* dout,
                           const hw_tensor* positions, int64_t start, const hw_tensor* dx);

typedef struct hw_norm_options {
  uint32_t struct_size;
  int32_t one_plus;  // RMS: 1 adds 1 to the weight
  double eps;        // 0: 1e-6; HW_NONE: none
} hw_norm_options;

/// Along the last axis of x, rank 1 to 4. weight and scale: NULL (1), [dim] or [heads dim]; a size of 1 in
/// scale repeats. `options` may be NULL: all defaults.
hw_status hw_rms_norm(hw_context* context, const hw_norm_options* options, const hw_tensor* x,
                      const hw_tensor* weight, const hw_tensor* out);
hw_status hw_l2_norm(hw_context* context, const hw_norm_options* options, const hw_tensor* x,
                     const hw_tensor* scale, const hw_tensor* out);

typedef struct hw_norm_backward_args {
  uint32_t struct_size;
  const hw_tensor *x, *weight, *dout;  // the forward's x and weight (or scale); dout like x
  const hw_tensor* dx;                 // like x, dout itself or apart from it; NULL: not wanted
  const hw_tensor* dweight;            // like weight, any float; NULL: not wanted
} hw_norm_backward_args;
hw_status hw_rms_norm_backward(hw_context* context, const hw_norm_options* options,
                               const hw_norm_backward_args* args);
hw_status hw_l2_norm_backward(hw_context* context, const hw_norm_options* options,
                              const hw_norm_backward_args* args);

// ---- keys and values of a cache ----

/// An empty buffer for keys of `dtype` in the order this machine reads; bits of attention are the same for
/// plain and packed keys. On entry `packed` holds struct_size.
hw_status hw_packed_keys_describe(hw_dtype dtype, int64_t kv_heads, int64_t dim, int64_t capacity,
                                  hw_packed_keys* packed);
/// Elements of one head, the last axis of the buffer [batch kv_heads room]; it needs no clearing.
hw_status hw_packed_keys_room(const hw_packed_keys* packed, int64_t* room);
/// k [batch tokens kv_heads dim] into the buffer; packed->tokens becomes k's.
hw_status hw_pack_keys(hw_context* context, const hw_tensor* k, const hw_tensor* buffer,
                       hw_packed_keys* packed);
/// k [batch new_tokens kv_heads dim] behind packed->tokens, or from `starts` i64 [batch] on (may be NULL).
/// packed->tokens becomes the longest sequence's; a refused append changes nothing.
hw_status hw_append_keys(hw_context* context, const hw_tensor* k, const hw_tensor* buffer,
                         const hw_tensor* starts, hw_packed_keys* packed);
/// The first tokens of the buffer back into k [batch tokens kv_heads dim].
hw_status hw_unpack_keys(hw_context* context, const hw_tensor* buffer, const hw_packed_keys* packed,
                         const hw_tensor* k);
/// x [batch tokens kv_heads dim] as int8 or e4m3, as `out` is, of the same sizes, and scale f32 [batch tokens
/// kv_heads]: scale = max |x| / 127 (e4m3: 448), rounded to nearest even. Rows of zeros give scale 0, rows
/// with NaN or Inf scale NaN.
hw_status hw_quantize_kv(hw_context* context, const hw_tensor* x, const hw_tensor* out,
                         const hw_tensor* scale);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
