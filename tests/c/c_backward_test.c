// Gradients through the C interface from a program that is only C: every slope against differences in f64.
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

enum { kQ = 4, kKv = 5, kHeads = 4, kKvHeads = 2, kDim = 6, kValue = 3 };
static double q[kQ][kHeads][kDim], k[kKv][kKvHeads][kDim], v[kKv][kKvHeads][kValue];
static double out[kQ][kHeads][kValue], lse[kHeads][kQ], dout[kQ][kHeads][kValue];
static double sinks[kHeads], scale[kHeads], gate[kQ][kHeads], bias[kKv];
static double dq[kQ][kHeads][kDim], dk[kKv][kKvHeads][kDim], dv[kKv][kKvHeads][kValue];
static double dsinks[kHeads], dscale[kHeads], dgate[kQ][kHeads], dbias[kKv];
static const int64_t q_shape[] = {1, kQ, kHeads, kDim}, k_shape[] = {1, kKv, kKvHeads, kDim};
static const int64_t v_shape[] = {1, kKv, kKvHeads, kValue}, out_shape[] = {1, kQ, kHeads, kValue};
static const int64_t lse_shape[] = {1, kHeads, kQ}, heads_shape[] = {kHeads}, gate_shape[] = {1, kQ, kHeads};
enum { kNormal = 3 };  // heads between the mixes
static double alpha[kHeads], dalpha[kHeads], mix_in[kHeads][kNormal], dmix_in[kHeads][kNormal];
static double mix_out[kNormal][kHeads], dmix_out[kNormal][kHeads];
static const int64_t before_shape[] = {kHeads, kNormal}, after_shape[] = {kNormal, kHeads};
static const int64_t bias_shape[] = {1, 1, 1, kKv};

static hw_tensor f64(void* data, const int64_t* shape, int32_t ndim) {
  hw_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = HW_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = HW_FLOAT;
  t.dtype.bits = 64;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}
static void fill(double* x, size_t n, unsigned seed) {
  size_t i;
  for (i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (double)(seed >> 8) / 8388608.0 - 1.0;
  }
}
static double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  size_t i;
  for (i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Elements of `gradient` that are not the slope of loss() over `input`.
static int wrong_slopes(double* input, const double* gradient, size_t n, double (*loss)(void*), void* with) {
  const double eps = 1e-4;
  int wrong = 0;
  size_t i;
  for (i = 0; i < n; ++i) {
    const double here = input[i];
    double slope;
    input[i] = here + eps;
    slope = loss(with);
    input[i] = here - eps;
    slope = (slope - loss(with)) / (2 * eps);
    input[i] = here;
    wrong += !(fabs(slope - gradient[i]) < 1e-6);
  }
  return wrong;
}
#define SLOPES(input, gradient, loss, with) \
  wrong_slopes((double*)(input), (const double*)(gradient), sizeof(input) / sizeof(double), loss, with)

struct run {
  hw_context* context;
  hw_attention_args* args;
};
static double attention_loss(void* with) {
  struct run* r = (struct run*)with;
  EXPECT(hw_attention(r->context, r->args) == HW_OK);
  return dot(&out[0][0][0], &dout[0][0][0], sizeof out / sizeof(double));
}

/// Mixed heads, entmax and lists of rows: their inputs, gradients and what a plan is told.
static void test_heads_backward(hw_context* context) {
  static const int64_t offsets[] = {0, kQ, kQ, kQ + 2, 2 * kQ + 2};  // head 1 has no row, head 2 two
  static const int64_t index[] = {0, 1, 2, 3, 0, 2, 0, 1, 2, 3};
  static const int64_t offsets_shape[] = {kHeads + 1}, index_shape[] = {2 * kQ + 2};
  static const int64_t normal_shape[] = {1, kNormal, kQ};
  hw_tensor tq = f64(q, q_shape, 4), tk = f64(k, k_shape, 4), tv = f64(v, v_shape, 4),
            to = f64(out, out_shape, 4), tdo = f64(dout, out_shape, 4), tdq = f64(dq, q_shape, 4);
  hw_tensor tl = f64(lse, lse_shape, 3), tn = f64(lse, normal_shape, 3);
  hw_tensor ta = f64(alpha, heads_shape, 1), tda = f64(dalpha, heads_shape, 1);
  hw_tensor tb = f64(mix_in, before_shape, 2), tdb = f64(dmix_in, before_shape, 2);
  hw_tensor tf = f64(mix_out, after_shape, 2), tdf = f64(dmix_out, after_shape, 2);
  hw_tensor to_rows = f64((void*)offsets, offsets_shape, 1), ti = f64((void*)index, index_shape, 1);
  hw_attention_args forward;
  hw_backward_args args;
  hw_attention_problem problem;
  hw_attention_plan* plan = NULL;
  struct run r;
  int i;

  to_rows.dtype.code = ti.dtype.code = HW_INT;
  fill(&q[0][0][0], sizeof q / sizeof(double), 21);
  fill(&k[0][0][0], sizeof k / sizeof(double), 22);
  fill(&v[0][0][0], sizeof v / sizeof(double), 23);
  fill(&dout[0][0][0], sizeof dout / sizeof(double), 24);
  fill(&mix_in[0][0], sizeof mix_in / sizeof(double), 25);
  fill(&mix_out[0][0], sizeof mix_out / sizeof(double), 26);
  for (i = 0; i < kHeads; ++i) alpha[i] = 1.3 + 0.1 * i;
  memset(&forward, 0, sizeof forward);
  memset(&args, 0, sizeof args);
  forward.struct_size = sizeof forward, args.struct_size = sizeof args;
  forward.q = &tq, forward.k = &tk, forward.v = &tv, forward.out = &to;
  args.forward = &forward, args.dout = &tdo, args.dq = &tdq;
  r.context = context, r.args = &forward;

  forward.lse = &tn, forward.mix_before = &tb, forward.mix_after = &tf;
  args.dmix_before = &tdb, args.dmix_after = &tdf;
  attention_loss(&r);
  EXPECT(hw_attention_backward(context, &args) == HW_OK);
  EXPECT(SLOPES(q, dq, attention_loss, &r) == 0);
  EXPECT(SLOPES(mix_in, dmix_in, attention_loss, &r) == 0);
  EXPECT(SLOPES(mix_out, dmix_out, attention_loss, &r) == 0);
  memset(&problem, 0, sizeof problem);
  problem.struct_size = sizeof problem;
  EXPECT(hw_attention_problem_of(&forward, &problem) == HW_OK);
  EXPECT(problem.mix_before == HW_MIX_FIXED && problem.mix_after == HW_MIX_FIXED &&
         problem.normal_heads == kNormal);
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_attention_run(plan, context, &forward, NULL, 0) == HW_OK);
  hw_attention_plan_destroy(plan);
  problem.mix_before = 7;
  EXPECT(hw_attention_plan_create(context, &problem, &plan) == HW_BAD_ARGUMENT);
  EXPECT(!strcmp(hw_last_error(), "hw_attention_plan_create: a mix is 7; give one of HW_MIX_*"));

  forward.lse = &tl, forward.mix_before = forward.mix_after = NULL, forward.alpha = &ta;
  args.dmix_before = args.dmix_after = NULL, args.dalpha = &tda;
  attention_loss(&r);
  EXPECT(hw_attention_backward(context, &args) == HW_OK);
  EXPECT(SLOPES(q, dq, attention_loss, &r) == 0);
  EXPECT(SLOPES(alpha, dalpha, attention_loss, &r) == 0);

  forward.alpha = NULL, args.dalpha = NULL;
  forward.row_offsets = &to_rows, forward.row_index = &ti;
  attention_loss(&r);
  EXPECT(hw_attention_backward(context, &args) == HW_OK);
  EXPECT(SLOPES(q, dq, attention_loss, &r) == 0);
  for (i = 0; i < kQ; ++i) EXPECT(out[i][1][0] == 0 && dq[i][1][0] == 0);
  EXPECT(out[1][2][0] == 0 && out[2][2][0] != 0);
}

static void test_attention_backward(hw_context* context) {
  hw_tensor tq = f64(q, q_shape, 4), tk = f64(k, k_shape, 4), tv = f64(v, v_shape, 4),
            to = f64(out, out_shape, 4);
  hw_tensor tl = f64(lse, lse_shape, 3), ts = f64(sinks, heads_shape, 1), tc = f64(scale, heads_shape, 1);
  hw_tensor tg = f64(gate, gate_shape, 3), tb = f64(bias, bias_shape, 4), tdo = f64(dout, out_shape, 4);
  hw_tensor tdq = f64(dq, q_shape, 4), tdk = f64(dk, k_shape, 4), tdv = f64(dv, v_shape, 4);
  hw_tensor tds = f64(dsinks, heads_shape, 1), tdc = f64(dscale, heads_shape, 1),
            tdg = f64(dgate, gate_shape, 3);
  hw_tensor tdb = f64(dbias, bias_shape, 4);
  hw_mask* mask = NULL;
  hw_attention_args forward;
  hw_backward_args args;
  hw_attention_problem forward_problem;
  hw_backward_problem problem;
  hw_backward_plan* plan = NULL;
  struct run r;
  const char* kernel = NULL;
  char text[4096];
  size_t bytes = 0, length = 0;
  void* workspace;

  fill(&q[0][0][0], sizeof q / sizeof(double), 1);
  fill(&k[0][0][0], sizeof k / sizeof(double), 2);
  fill(&v[0][0][0], sizeof v / sizeof(double), 3);
  fill(&dout[0][0][0], sizeof dout / sizeof(double), 4);
  fill(sinks, kHeads, 5), fill(scale, kHeads, 6), fill(&gate[0][0], kQ * kHeads, 7), fill(bias, kKv, 8);
  EXPECT(hw_mask_parse("causal | prefix(2)", &mask) == HW_OK);
  memset(&forward, 0, sizeof forward);
  forward.struct_size = sizeof forward;
  forward.q = &tq, forward.k = &tk, forward.v = &tv, forward.out = &to, forward.lse = &tl,
  forward.mask = mask;
  forward.sinks = &ts, forward.scale = &tc, forward.gate = &tg, forward.bias = &tb;
  forward.softcap = 3, forward.dropout = 0.2, forward.seed = 11;
  r.context = context, r.args = &forward;
  attention_loss(&r);

  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.forward = &forward, args.dout = &tdo, args.dq = &tdq, args.dk = &tdk, args.dv = &tdv;
  args.dsinks = &tds, args.dscale = &tdc, args.dgate = &tdg, args.dbias = &tdb;
  EXPECT(hw_attention_backward(context, &args) == HW_OK);
  EXPECT(SLOPES(q, dq, attention_loss, &r) == 0 && SLOPES(k, dk, attention_loss, &r) == 0);
  EXPECT(SLOPES(v, dv, attention_loss, &r) == 0 && SLOPES(sinks, dsinks, attention_loss, &r) == 0);
  EXPECT(SLOPES(scale, dscale, attention_loss, &r) == 0 && SLOPES(gate, dgate, attention_loss, &r) == 0);
  EXPECT(SLOPES(bias, dbias, attention_loss, &r) == 0);
  attention_loss(&r);

  // The same by a plan, on memory of the caller's.
  memset(&forward_problem, 0, sizeof forward_problem);
  memset(&problem, 0, sizeof problem);
  forward_problem.struct_size = sizeof forward_problem;
  problem.struct_size = sizeof problem;
  problem.forward = &forward_problem;
  EXPECT(hw_backward_problem_of(&args, &problem) == HW_OK);
  EXPECT(problem.gradients ==
         (HW_GRAD_Q | HW_GRAD_K | HW_GRAD_V | HW_GRAD_SINKS | HW_GRAD_SCALE | HW_GRAD_GATE | HW_GRAD_BIAS));
  EXPECT(problem.forward == &forward_problem && forward_problem.q_tokens == kQ && forward_problem.lse == 1);
  EXPECT(hw_backward_plan_create(context, &problem, &plan) == HW_OK);
  EXPECT(hw_backward_plan_kernel(plan, &kernel) == HW_OK && strcmp(kernel, "ref") == 0);
  EXPECT(hw_backward_plan_numerics(plan, text, sizeof text, &length) == HW_OK &&
         strcmp(text, "ref f64") == 0);
  EXPECT(hw_backward_plan_explain(plan, text, sizeof text, &length) == HW_OK);
  EXPECT(strstr(text, "gradients   q, k, v, bias, sinks, scale, gate") != NULL);
  EXPECT(hw_backward_plan_workspace_bytes(plan, &bytes) == HW_OK);
  workspace = malloc(bytes + 1);
  {
    double before[kQ][kHeads][kDim];
    memcpy(before, dq, sizeof dq);
    memset(dq, 0xff, sizeof dq);
    EXPECT(hw_backward_run(plan, context, &args, workspace, bytes + 1) == HW_OK);
    EXPECT(memcmp(before, dq, sizeof dq) == 0);
    EXPECT(hw_backward_run(plan, context, &args, NULL, 0) == HW_OK);
    EXPECT(memcmp(before, dq, sizeof dq) == 0);
    EXPECT(hw_backward_run(plan, context, &args, NULL, 9) == HW_BAD_ARGUMENT);
  }
  free(workspace);

  // What is not asked is not there; what is asked of nothing is refused.
  args.dk = NULL;
  EXPECT(hw_backward_run(plan, context, &args, NULL, 0) == HW_BAD_ARGUMENT);
  EXPECT(strstr(hw_last_error(), "attention_backward: dk is not given") == hw_last_error());
  forward.sinks = NULL;
  EXPECT(hw_attention_backward(context, &args) == HW_BAD_ARGUMENT);
  EXPECT(
      strcmp(
          hw_last_error(),
          "attention_backward: dsinks is asked but the forward has no sinks; leave dsinks out, or plan with "
          "sinks") == 0);
  forward.sinks = &ts;
  tl.shape = out_shape, tl.ndim = 4;
  EXPECT(hw_attention_backward(context, &args) == HW_BAD_SHAPE);
  EXPECT(strstr(hw_last_error(), "attention_backward: lse is f64 [1 4 4 3] but") == hw_last_error());
  hw_backward_plan_destroy(plan);
  hw_backward_plan_destroy(NULL);
  hw_mask_destroy(mask);
}

enum { kTokens = 3, kRow = 6 };
static double x[kTokens][2][kRow], y[kTokens][2][kRow], dy[kTokens][2][kRow], dx[kTokens][2][kRow];
static double weight[2][kRow], dweight[2][kRow];
static const int64_t x_shape[] = {1, kTokens, 2, kRow}, weight_shape[] = {2, kRow};

struct row_run {
  hw_context* context;
  int op;  // 0: rope, 1: RMS, 2: L2
  hw_rope_options rope;
  hw_norm_options norm;
};
static double row_loss(void* with) {
  struct row_run* r = (struct row_run*)with;
  hw_tensor tx = f64(x, x_shape, 4), ty = f64(y, x_shape, 4), tw = f64(weight, weight_shape, 2);
  if (r->op == 0) EXPECT(hw_rope(r->context, &r->rope, &tx, NULL, 7, &ty) == HW_OK);
  if (r->op == 1) EXPECT(hw_rms_norm(r->context, &r->norm, &tx, &tw, &ty) == HW_OK);
  if (r->op == 2) EXPECT(hw_l2_norm(r->context, &r->norm, &tx, &tw, &ty) == HW_OK);
  return dot(&y[0][0][0], &dy[0][0][0], sizeof y / sizeof(double));
}

static void test_rows(hw_context* context) {
  hw_tensor tx = f64(x, x_shape, 4), tdy = f64(dy, x_shape, 4), tdx = f64(dx, x_shape, 4);
  hw_tensor tw = f64(weight, weight_shape, 2), tdw = f64(dweight, weight_shape, 2);
  hw_norm_backward_args args;
  struct row_run r;
  memset(&r, 0, sizeof r);
  r.context = context;
  r.rope.struct_size = sizeof r.rope;
  r.norm.struct_size = sizeof r.norm;
  fill(&x[0][0][0], sizeof x / sizeof(double), 1);
  fill(&dy[0][0][0], sizeof dy / sizeof(double), 2);
  fill(&weight[0][0], sizeof weight / sizeof(double), 3);

  EXPECT(hw_rope_backward(context, &r.rope, &tdy, NULL, 7, &tdx) == HW_OK);
  EXPECT(SLOPES(x, dx, row_loss, &r) == 0);
  r.rope.kind = HW_ROPE_INTERLEAVED, r.rope.rotary_dim = 4, r.rope.base = 100;
  r.rope.scaling = HW_ROPE_SCALING_LINEAR, r.rope.factor = 3;
  EXPECT(hw_rope_backward(context, &r.rope, &tdy, NULL, 7, &tdx) == HW_OK);
  EXPECT(SLOPES(x, dx, row_loss, &r) == 0);
  r.rope.rotary_dim = HW_NONE;
  EXPECT(hw_rope_backward(context, &r.rope, &tdy, NULL, 7, &tdx) == HW_OK);
  EXPECT(memcmp(dx, dy, sizeof dx) == 0);

  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.x = &tx, args.weight = &tw, args.dout = &tdy, args.dx = &tdx, args.dweight = &tdw;
  r.op = 1, r.norm.one_plus = 1;
  EXPECT(hw_rms_norm_backward(context, &r.norm, &args) == HW_OK);
  EXPECT(SLOPES(x, dx, row_loss, &r) == 0 && SLOPES(weight, dweight, row_loss, &r) == 0);
  r.op = 2, r.norm.one_plus = 0, r.norm.eps = HW_NONE;
  EXPECT(hw_l2_norm_backward(context, &r.norm, &args) == HW_OK);
  EXPECT(SLOPES(x, dx, row_loss, &r) == 0 && SLOPES(weight, dweight, row_loss, &r) == 0);
}

int main(void) {
  hw_context_options options = {.struct_size = sizeof(hw_context_options), .threads = 2};
  hw_context* context = NULL;
  EXPECT(hw_context_create(&options, &context) == HW_OK);
  test_attention_backward(context);
  test_heads_backward(context);
  test_rows(context);
  hw_context_destroy(context);
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
