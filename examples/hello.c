// Hello from C: causal attention on three tokens, and the library's sentence when something does not fit.
#include <stdio.h>

#include "headwise/c/headwise.h"

static hw_tensor f32(float* data, const int64_t* shape) {
  hw_tensor t = {data, {HW_DEVICE_CPU, 0}, 4, {HW_FLOAT, 32, 1}, shape, NULL, 0};
  return t;
}

int main(void) {
  // [batch tokens heads dim]
  const int64_t shape[] = {1, 3, 1, 2};
  float q[] = {1, 0, 0, 1, 1, 1}, k[] = {1, 0, 0, 1, 1, 1}, v[] = {1, 2, 3, 4, 5, 6}, out[6];
  hw_tensor tq = f32(q, shape), tk = f32(k, shape), tv = f32(v, shape), to = f32(out, shape);
  hw_context* context = NULL;
  hw_mask* mask = NULL;
  hw_attention_args args = {.struct_size = sizeof args, .q = &tq, .k = &tk, .v = &tv, .out = &to};

  if (hw_context_create(NULL, &context) != HW_OK || hw_mask_parse("causal", &mask) != HW_OK) {
    fprintf(stderr, "%s\n", hw_last_error());
    return 1;
  }
  args.mask = mask;
  if (hw_attention(context, &args) != HW_OK) {
    fprintf(stderr, "%s\n", hw_last_error());
    return 1;
  }
  for (int t = 0; t < 3; ++t) printf("token %d: %.3f %.3f\n", t, (double)out[2 * t], (double)out[2 * t + 1]);

  args.out = &tv;  // out over an input is refused
  printf("%s\n", hw_status_name(hw_attention(context, &args)));
  hw_mask_destroy(mask);
  hw_context_destroy(context);
  return 0;
}
