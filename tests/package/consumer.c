#include <stdio.h>

#include "headwise/c/headwise.h"

int main(void) {
  float q[10], v[10], out[10];
  int64_t shape[] = {1, 5, 1, 2};  // [batch tokens heads dim]
  for (int i = 0; i < 10; ++i) q[i] = (float)i * 0.1f, v[i] = 1.0f, out[i] = 0.0f;
  hw_tensor tq = {q, {HW_DEVICE_CPU, 0}, 4, {HW_FLOAT, 32, 1}, shape, NULL, 0}, tv = tq, tout = tq;
  tv.data = v, tout.data = out;
  hw_context* context = NULL;
  hw_mask* mask = NULL;
  if (hw_context_create(NULL, &context) != HW_OK || hw_mask_causal(&mask) != HW_OK) return 1;
  hw_attention_args args = {
      .struct_size = sizeof args, .q = &tq, .k = &tq, .v = &tv, .out = &tout, .mask = mask};
  if (hw_attention(context, &args) != HW_OK) return fprintf(stderr, "%s\n", hw_last_error()), 2;
  for (int i = 0; i < 10; ++i)
    if (out[i] < 0.999999f || out[i] > 1.000001f) return 3;
  hw_mask_destroy(mask);
  if (hw_mask_parse("causal &", &mask) == HW_OK) return 4;
  printf("%s %s\n", hw_version(), hw_last_error());
  hw_context_destroy(context);
  return 0;
}
