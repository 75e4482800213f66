// The C interface from a program that is only C: results against plain loops, refusals in words, sizes of
// structs.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headwise/c/headwise.h"

static int failures = 0;
static void expect(int ok, const char* what, int line) {
  if (ok) return;
  ++failures;
  printf("line %d: %s; last error: %s\n", line, what, hw_last_error());
}
#define EXPECT(condition) expect((condition) ? 1 : 0, #condition, __LINE__)

enum { kBatch = 2, kQ = 5, kKv = 7, kHeads = 4, kKvHeads = 2, kDim = 6, kValue = 3 };
static float q[kBatch][kQ][kHeads][kDim], k[kBatch][kKv][kKvHeads][kDim], v[kBatch][kKv][kKvHeads][kValue];
static float out[kBatch][kQ][kHeads][kValue], lse[kBatch][kHeads][kQ];
static const int64_t q_shape[] = {kBatch, kQ, kHeads, kDim}, k_shape[] = {kBatch, kKv, kKvHeads, kDim};
static const int64_t v_shape[] = {kBatch, kKv, kKvHeads, kValue}, out_shape[] = {kBatch, kQ, kHeads, kValue};
static const int64_t lse_shape[] = {kBatch, kHeads, kQ};

static hw_tensor tensor(void* data, uint8_t code, uint8_t bits, const int64_t* shape, int32_t ndim) {
  hw_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = HW_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = code;
  t.dtype.bits = bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}
static hw_tensor f32(void* data, const int64_t* shape, int32_t ndim) {
  return tensor(data, HW_FLOAT, 32, shape, ndim);
}
static hw_tensor i64(void* data, const int64_t* shape, int32_t ndim) {
  return tensor(data, HW_INT, 64, shape, ndim);
}

static void fill(float* x, size_t n, unsigned seed) {
  size_t i;
  for (i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

/// The formula in double for a causal mask with q_start, one softcap and one sink logit (NULL: none).
static void expect_attention(int64_t q_start, int causal, double softcap, const float* sinks) {
  int b, h, i, j, d, wrong = 0;
  for (b = 0; b < kBatch; ++b)
    for (h = 0; h < kHeads; ++h)
      for (i = 0; i < kQ; ++i) {
        double w[kKv], sum = sinks ? exp((double)sinks[h]) : 0, want;
        const int g = h / (kHeads / kKvHeads);
        for (j = 0; j < kKv; ++j) {
          double s = 0;
          for (d = 0; d < kDim; ++d) s += (double)q[b][i][h][d] * (double)k[b][j][g][d];
          s /= sqrt((double)kDim);
          if (softcap > 0) s = softcap * tanh(s / softcap);
          w[j] = causal && j > q_start + i ? 0 : exp(s);
          sum += w[j];
        }
        wrong += !(fabs((double)lse[b][h][i] - log(sum)) < 1e-5);
        for (d = 0; d < kValue; ++d) {
          for (want = 0, j = 0; j < kKv; ++j) want += w[j] / sum * (double)v[b][j][g][d];
          wrong += !(fabs((double)out[b][i][h][d] - want) < 1e-5);
        }
      }
  EXPECT(wrong == 0);
}

static void test_words(void) {
  EXPECT(strcmp(hw_version(), EXPECTED_VERSION) == 0);
  EXPECT(strcmp(hw_status_name(HW_OK), "ok") == 0);
  EXPECT(strcmp(hw_status_name(HW_OUT_OF_WORKSPACE), "out_of_workspace") == 0);
  EXPECT(strcmp(hw_status_name(99), "unknown") == 0);
  EXPECT(strcmp(hw_last_error(), "") == 0);
}

static void test_masks(void) {
  hw_mask *causal = NULL, *window = NULL, *both = NULL, *parsed = NULL, *bad = NULL;
  hw_mask_place place;
  char text[64];
  size_t length = 0;
  int32_t open = -1;
  const int64_t lengths[] = {3, 7};
  EXPECT(hw_mask_causal(&causal) == HW_OK);
  EXPECT(hw_mask_window(2, 0, &window) == HW_OK);
  EXPECT(hw_mask_and(causal, window, &both) == HW_OK);
  hw_mask_destroy(causal);
  hw_mask_destroy(window);
  EXPECT(hw_mask_text(both, NULL, 0, &length) == HW_OK && length == strlen("causal & window(2, 0)"));
  EXPECT(hw_mask_text(both, text, sizeof text, &length) == HW_OK &&
         strcmp(text, "causal & window(2, 0)") == 0);
  EXPECT(hw_mask_text(both, text, 5, &length) == HW_BAD_ARGUMENT &&
         length == strlen("causal & window(2, 0)"));
  EXPECT(hw_mask_parse(text, &parsed) == HW_OK);
  EXPECT(hw_mask_may_attend(parsed, 5, 3, NULL, &open) == HW_OK && open == 1);
  EXPECT(hw_mask_may_attend(parsed, 5, 2, NULL, &open) == HW_OK && open == 0);
  hw_mask_destroy(parsed);
  hw_mask_destroy(both);
  EXPECT(hw_mask_lengths(lengths, 2, &parsed) == HW_OK);
  memset(&place, 0, sizeof place);
  place.struct_size = sizeof place;
  place.sequence = 1;
  EXPECT(hw_mask_may_attend(parsed, 0, 5, &place, &open) == HW_OK && open == 1);
  EXPECT(hw_mask_may_attend(parsed, 0, 5, NULL, &open) == HW_OK && open == 0);
  hw_mask_destroy(parsed);
  EXPECT(hw_mask_parse("causal & winddow(3, 0)", &bad) == HW_BAD_ARGUMENT && bad == NULL);
  EXPECT(strstr(hw_last_error(), "column 10") != NULL);
  EXPECT(hw_mask_window(-1, 0, &bad) == HW_BAD_ARGUMENT && bad == NULL);
  EXPECT(hw_mask_and(NULL, NULL, &bad) == HW_BAD_ARGUMENT);
  EXPECT(strcmp(hw_last_error(), "hw_mask_and: a is NULL; give a valid pointer") == 0);
  hw_mask_destroy(NULL);
}

static void test_attention(hw_context* context) {
  hw_tensor tq = f32(q, q_shape, 4), tk = f32(k, k_shape, 4), tv = f32(v, v_shape, 4);
  hw_tensor to = f32(out, out_shape, 4), tl = f32(lse, lse_shape, 3), ts, tstart;
  const int64_t one[] = {1}, heads[] = {kHeads};
  int64_t start = 2;
  float sinks[kHeads];
  hw_mask* mask = NULL;
  hw_attention_args args;
  hw_attention_problem problem;
  hw_attention_plan* plan = NULL;
  size_t bytes = 0, length = 0;
  const char* kernel = NULL;
  char* text;
  void* workspace;

  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = &tq, args.k = &tk, args.v = &tv, args.out = &to, args.lse = &tl;
  EXPECT(hw_attention(context, &args) == HW_OK);
  expect_attention(0, 0, 0, NULL);

  fill(sinks, kHeads, 9);
  ts = f32(sinks, heads, 1);
  tstart = i64(&start, one, 1);
  EXPECT(hw_mask_causal(&mask) == HW_OK);
  args.mask = mask, args.q_start = &tstart, args.sinks = &ts, args.softcap = 1.5;
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  EXPECT(hw_attention_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.batch == kBatch && problem.q_tokens == kQ && problem.kv_tokens == kKv &&
         problem.heads == kHeads);
  EXPECT(problem.kv_heads == kKvHeads && problem.head_dim == kDim && problem.value_dim == kValue &&
         problem.lse == 1);
  EXPECT(problem.terms == (HW_TERM_SINKS | HW_TERM_SOFTCAP));
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_attention_plan_kernel(plan, &kernel) == HW_OK && kernel != NULL && strlen(kernel) > 0);
  EXPECT(hw_attention_run(plan, context, &args, NULL, 0) == HW_OK);
  expect_attention(2, 1, 1.5, sinks);

  // The same on the caller's memory, which may begin anywhere; one byte less is refused.
  memset(out, 0, sizeof out);
  EXPECT(hw_attention_plan_workspace_bytes(plan, &bytes) == HW_OK && bytes > 0);
  workspace = malloc(bytes + 1);
  EXPECT(hw_attention_run(plan, context, &args, (char*)workspace + 1, bytes) == HW_OK);
  expect_attention(2, 1, 1.5, sinks);
  EXPECT(hw_attention_run(plan, context, &args, workspace, bytes / 4) == HW_OUT_OF_WORKSPACE);
  EXPECT(hw_attention_run(plan, context, &args, NULL, 64) == HW_BAD_ARGUMENT);
  free(workspace);

  EXPECT(hw_attention_plan_explain(plan, NULL, 0, &length) == HW_OK && length > 0);
  text = (char*)malloc(length + 1);
  EXPECT(hw_attention_plan_explain(plan, text, length + 1, &length) == HW_OK && strstr(text, kernel) != NULL);
  free(text);
  hw_attention_plan_destroy(plan);
  hw_mask_destroy(mask);
}

static void test_probes(hw_context* context) {
  hw_tensor tq = f32(q, q_shape, 4), tk = f32(k, k_shape, 4), tv = f32(v, v_shape, 4),
            to = f32(out, out_shape, 4);
  static float entropy[kBatch][kHeads][kQ], rows[4][kBatch][kHeads][kQ], columns[kBatch][kHeads][kKv];
  static int64_t top[kBatch][kHeads][kQ];
  const int64_t column_shape[] = {kBatch, kHeads, kKv};
  hw_tensor te = f32(entropy, lse_shape, 3), tc = f32(columns, column_shape, 3);
  hw_tensor t0 = f32(rows[0], lse_shape, 3), t1 = f32(rows[1], lse_shape, 3), t2 = f32(rows[2], lse_shape, 3);
  hw_tensor t3 = f32(rows[3], lse_shape, 3), tt = i64(top, lse_shape, 3);
  hw_probe_tensors probe;
  hw_attention_args args;
  hw_attention_problem problem;
  hw_attention_plan* plan = NULL;
  double sum = 0;
  int j;
  memset(&probe, 0, sizeof probe);
  probe.struct_size = sizeof probe;
  probe.entropy = &te, probe.top_weight = &t0, probe.second_moment = &t1, probe.mean_distance = &t2;
  probe.sink_mass = &t3, probe.top_position = &tt, probe.column_sums = &tc;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = &tq, args.k = &tk, args.v = &tv, args.out = &to, args.probe = &probe;
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  problem.probe = HW_PROBE_ROWS | HW_PROBE_COLUMNS;
  EXPECT(hw_attention_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.probe == (HW_PROBE_ROWS | HW_PROBE_COLUMNS));
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_attention_run(plan, context, &args, NULL, 0) == HW_OK);
  for (j = 0; j < kKv; ++j) sum += (double)columns[1][2][j];
  EXPECT(fabs(sum - kQ) < 1e-4);  // each query hands out a weight of 1
  EXPECT(entropy[0][0][0] > 1 && (double)entropy[0][0][0] <= log(kKv) + 1e-5);
  EXPECT(rows[0][1][2][3] > 1.0f / kKv && top[1][2][3] >= 0 && top[1][2][3] < kKv);
  memcpy(rows[1], entropy, sizeof entropy), memset(entropy, 0, sizeof entropy);
  probe.top_weight = probe.second_moment = probe.mean_distance = probe.sink_mass = probe.top_position = NULL;
  EXPECT(hw_attention_run(plan, context, &args, NULL, 0) == HW_OK);  // entropy alone
  EXPECT(memcmp(rows[1], entropy, sizeof entropy) == 0);
  hw_attention_plan_destroy(plan);
  memset(entropy, 0, sizeof entropy);
  EXPECT(hw_attention(context, &args) == HW_OK);  // in one call: the probes whose tensors are given
  EXPECT(memcmp(rows[1], entropy, sizeof entropy) == 0);
  probe.scores = &te;
  EXPECT(hw_attention(context, &args) == HW_BAD_ARGUMENT);  // their stage belongs to a plan
}

/// What a CUDA tensor is told where there is no GPU, and what a context with a device says.
static void test_devices(hw_context* context) {
  static float x[1][4][2][8];
  const int64_t shape[] = {1, 4, 2, 8};
  hw_tensor t = f32(x, shape, 4);
  hw_attention_args args;
  hw_attention_problem problem;
  hw_attention_plan* plan = NULL;
  hw_context_options options;
  hw_context* other = NULL;
  char lines[256];
  memset(&args, 0, sizeof args), memset(&problem, 0, sizeof problem), memset(&options, 0, sizeof options);
  args.struct_size = sizeof args, problem.struct_size = sizeof problem, options.struct_size = sizeof options;
  args.q = args.k = args.v = args.out = &t;
  EXPECT(hw_attention_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.device.device_type == HW_DEVICE_CPU && problem.run[0] == 0);
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_attention_plan_refusals(plan, lines, sizeof lines, NULL) == HW_OK);
  hw_attention_plan_destroy(plan);
  plan = NULL;
  options.device.device_type = HW_DEVICE_CUDA, options.device.device_id = 1;
  EXPECT(hw_context_create(&options, &other) == HW_OK);
  EXPECT(hw_attention(other, &args) == HW_BAD_ARGUMENT);
  EXPECT(strcmp(hw_last_error(),
                "attention: q lies on the CPU but the context is for CUDA device 1; bring them together") ==
         0);
  hw_context_destroy(other);
  options.device.device_type = 7;
  EXPECT(hw_context_create(&options, &other) == HW_BAD_DTYPE);
  t.device.device_type = HW_DEVICE_CUDA, t.device.device_id = 127;  // no machine has so many
  EXPECT(hw_attention_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.device.device_type == HW_DEVICE_CUDA && problem.device.device_id == 127);
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_UNSUPPORTED);
  EXPECT(strstr(hw_last_error(), "attention: every kernel for CUDA device 127 refused") != NULL);
  EXPECT(strstr(hw_last_error(), "\n  cuda/plain: ") != NULL);
  EXPECT(plan == NULL);
}

static void test_overlapped_and_ragged(hw_context* context) {
  // Two heads of width 4 that read one column of both neighbours inside a row of 4: columns -1..2 and 1..4.
  static float rows[1][3][4], y[1][3][2][4];
  const int64_t row_shape[] = {1, 3, 4}, y_shape[] = {1, 3, 2, 4}, offset_shape[] = {3};
  int64_t offsets[] = {0, 1, 3};
  hw_tensor tr = f32(rows, row_shape, 3), ty = f32(y, y_shape, 4), toff = i64(offsets, offset_shape, 1);
  hw_attention_args args;
  hw_attention_problem problem;
  hw_attention_plan* plan = NULL;
  const hw_head_layout layout = {2, 4, 1, 2, -1, 4};
  int d;
  fill(&rows[0][0][0], 12, 5);
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = &tr, args.k = &tr, args.v = &tr, args.out = &ty, args.q_offsets = &toff, args.kv_offsets = &toff;
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  problem.q_layout = problem.k_layout = problem.v_layout = layout;
  EXPECT(hw_attention_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.ragged == 1 && problem.batch == 2 && problem.q_tokens == 2 && problem.q_total == 3);
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_attention_run(plan, context, &args, NULL, 0) == HW_OK);
  // The first sequence has one token: each head returns the columns it reads, 0 outside the row.
  EXPECT(y[0][0][0][0] == 0.0f && y[0][0][1][3] == 0.0f);
  for (d = 0; d < 3; ++d) EXPECT(y[0][0][0][d + 1] == rows[0][0][d] && y[0][0][1][d] == rows[0][0][d + 1]);
  hw_attention_plan_destroy(plan);
}

static void test_refusals(hw_context* context) {
  struct {
    hw_context_options options;
    int64_t later;
  } longer;
  hw_context_options options;
  hw_context* made = NULL;
  hw_attention_args args;
  hw_tensor tq = f32(q, q_shape, 4), tk = f32(k, k_shape, 4), tv = f32(v, v_shape, 4),
            to = f32(out, out_shape, 4);
  int32_t threads = 0;
  memset(&longer, 0, sizeof longer);
  longer.options.struct_size = sizeof longer;
  longer.options.threads = 1;
  EXPECT(hw_context_create(&longer.options, &made) ==
         HW_OK);  // a later version's struct, its extra field unused
  hw_context_destroy(made);
  made = NULL;
  longer.later = 5;
  EXPECT(hw_context_create(&longer.options, &made) == HW_BAD_ARGUMENT && made == NULL);
  EXPECT(strstr(hw_last_error(), "hw_context_create: options.struct_size is") == hw_last_error());
  memset(&options, 0xff, sizeof options);
  options.struct_size = 8;  // an earlier version: struct_size and threads alone; the rest is not read
  options.threads = 3;
  EXPECT(hw_context_create(&options, &made) == HW_OK);
  EXPECT(hw_context_threads(made, &threads) == HW_OK && threads == 3);
  EXPECT(hw_context_after_fork(made) == HW_OK);
  hw_context_destroy(made);
  options.struct_size = 0;
  EXPECT(hw_context_create(&options, &made) == HW_BAD_ARGUMENT);

  EXPECT(hw_attention(NULL, NULL) == HW_BAD_ARGUMENT);
  EXPECT(strcmp(hw_last_error(), "hw_attention: context is NULL; give a valid pointer") == 0);
  EXPECT(hw_attention(context, NULL) == HW_BAD_ARGUMENT);
  EXPECT(strcmp(hw_last_error(), "hw_attention: args is NULL; give a valid pointer") == 0);
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  EXPECT(hw_attention(context, &args) == HW_BAD_ARGUMENT);  // no q
  args.q = &tq, args.k = &tk, args.v = &tv, args.out = &to;
  tq.device.device_type = 2;
  EXPECT(hw_attention(context, &args) == HW_BAD_ARGUMENT);
  EXPECT(strcmp(hw_last_error(),
                "attention: q lies on CUDA device 0 but k on the CPU; bring them together") == 0);
  tq.device.device_type = HW_DEVICE_CPU;
  tk.dtype.bits = 8;
  EXPECT(hw_attention(context, &args) == HW_BAD_DTYPE);
  tk.dtype.bits = 32;
  args.out = &tv;
  EXPECT(hw_attention(context, &args) != HW_OK);  // out has v's sizes
  args.out = &to;
  to.data = q;
  EXPECT(hw_attention(context, &args) == HW_BAD_ARGUMENT);  // out over q
}

/// The call of plain attention, and what it wrote to `out`.
static hw_attention_args attend_plain(hw_context* context, const hw_tensor* tq, const hw_tensor* tk,
                                      const hw_tensor* tv, const hw_tensor* to, void* first) {
  hw_attention_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = tq, args.k = tk, args.v = tv, args.out = to;
  EXPECT(hw_attention(context, &args) == HW_OK);
  memcpy(first, out, sizeof out);
  return args;
}

/// k and v as numbers of 8 bits, plain and packed: near `first` and of the same bits.
static void test_eight_bits(hw_context* context, uint8_t code) {
  hw_tensor tq = f32(q, q_shape, 4), tk = f32(k, k_shape, 4), tv = f32(v, v_shape, 4),
            to = f32(out, out_shape, 4);
  hw_tensor tb, t8k, t8v, tsk, tsv;
  static float first[kBatch][kQ][kHeads][kValue];
  static float k_scale[kBatch][kKv][kKvHeads], v_scale[kBatch][kKv][kKvHeads];
  static int8_t k8[kBatch][kKv][kKvHeads][kDim], v8[kBatch][kKv][kKvHeads][kValue],
      buffer[kBatch * kKvHeads * 32 * 32];
  const int64_t scale_shape[] = {kBatch, kKv, kKvHeads};
  int64_t room[] = {kBatch, kKvHeads, 0};
  hw_packed_keys packed;
  hw_attention_args args = attend_plain(context, &tq, &tk, &tv, &to, first);
  t8k = tensor(k8, code, 8, k_shape, 4), t8v = tensor(v8, code, 8, v_shape, 4);
  tsk = f32(k_scale, scale_shape, 3), tsv = f32(v_scale, scale_shape, 3);
  EXPECT(hw_quantize_kv(context, &tk, &t8k, &tsk) == HW_OK &&
         hw_quantize_kv(context, &tv, &t8v, &tsv) == HW_OK);
  args.k = &t8k, args.v = &t8v;
  EXPECT(hw_attention(context, &args) == HW_BAD_ARGUMENT);  // scales are missing
  args.k_scale = &tsk, args.v_scale = &tsv;
  EXPECT(hw_attention(context, &args) == HW_OK &&
         fabs((double)out[0][0][0][0] - (double)first[0][0][0][0]) < 0.05);
  EXPECT(memcmp(first, out, sizeof out) != 0);
  memcpy(first, out, sizeof out);
  memset(&packed, 0, sizeof packed);
  packed.struct_size = sizeof packed;
  EXPECT(hw_packed_keys_describe(t8k.dtype, kKvHeads, kDim, kKv, &packed) == HW_OK);
  EXPECT(hw_packed_keys_room(&packed, &room[2]) == HW_OK && room[2] <= 32 * 32);
  tb = tensor(buffer, code, 8, room, 3);
  EXPECT(hw_pack_keys(context, &t8k, &tb, &packed) == HW_OK);
  args.k = &tb, args.packed = &packed;
  EXPECT(hw_attention(context, &args) == HW_OK && memcmp(first, out, sizeof out) == 0);
}

/// The same bits from packed keys.
static void test_kv(hw_context* context) {
  hw_tensor tq = f32(q, q_shape, 4), tk = f32(k, k_shape, 4), tv = f32(v, v_shape, 4),
            to = f32(out, out_shape, 4);
  hw_tensor tb, tback;
  static float buffer[kBatch * kKvHeads * 32 * 32], first[kBatch][kQ][kHeads][kValue];
  static float back[kBatch][kKv][kKvHeads][kDim];
  int64_t room[] = {kBatch, kKvHeads, 0}, part_shape[] = {kBatch, kKv - 2, kKvHeads, kDim};
  const int64_t k_strides[] = {kKv * kKvHeads * kDim, kKvHeads * kDim, kDim, 1};
  hw_packed_keys packed;
  hw_attention_args args = attend_plain(context, &tq, &tk, &tv, &to, first);

  memset(&packed, 0, sizeof packed);
  packed.struct_size = sizeof packed;
  EXPECT(hw_packed_keys_describe(tk.dtype, kKvHeads, kDim, kKv, &packed) == HW_OK);
  EXPECT(hw_packed_keys_room(&packed, &room[2]) == HW_OK && room[2] >= kKv * kDim && room[2] <= 32 * 32);
  tb = f32(buffer, room, 3);
  tk.shape = part_shape, tk.strides = k_strides;
  EXPECT(hw_pack_keys(context, &tk, &tb, &packed) == HW_OK && packed.tokens == kKv - 2);
  tk.data = &k[0][kKv - 2][0][0], part_shape[1] = 2;
  EXPECT(hw_append_keys(context, &tk, &tb, NULL, &packed) == HW_OK && packed.tokens == kKv);
  EXPECT(hw_append_keys(context, &tk, &tb, NULL, &packed) == HW_BAD_SHAPE && packed.tokens == kKv);
  tback = f32(back, k_shape, 4);
  EXPECT(hw_unpack_keys(context, &tb, &packed, &tback) == HW_OK && memcmp(back, k, sizeof k) == 0);
  args.k = &tb, args.packed = &packed;
  memset(out, 0, sizeof out);
  EXPECT(hw_attention(context, &args) == HW_OK && memcmp(first, out, sizeof out) == 0);
}

int main(void) {
  hw_context_options options = {.struct_size = sizeof(hw_context_options), .threads = 2};
  hw_context* context = NULL;
  fill(&q[0][0][0][0], sizeof q / sizeof(float), 1);
  fill(&k[0][0][0][0], sizeof k / sizeof(float), 2);
  fill(&v[0][0][0][0], sizeof v / sizeof(float), 3);
  test_words();
  EXPECT(hw_context_create(&options, &context) == HW_OK);
  test_masks();
  test_attention(context);
  test_probes(context);
  test_devices(context);
  test_overlapped_and_ragged(context);
  test_kv(context);
  test_eight_bits(context, HW_INT);
  test_eight_bits(context, HW_E4M3);
  test_refusals(context);
  hw_context_destroy(context);
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
