// A language model in C: the text as it comes. Usage: generate MODEL PROMPT [TOKENS]
#include <stdio.h>
#include <stdlib.h>

#include "headwise/c/decoder.h"

static int32_t show(const char* text, size_t bytes, void* user) {
  *(size_t*)user += bytes;
  return fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0;  // nobody reads it: end
}

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, hw_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: generate MODEL PROMPT [TOKENS]\n");
    return 2;
  }
  hw_decoder* model = NULL;
  const hw_decoder_options how = {.struct_size = sizeof how, .kv_bytes = 64 << 20};
  if (hw_decoder_open(argv[1], &how, &model) != HW_OK) return failed("open");

  size_t bytes = 0;
  int32_t finish = 0;
  const char* stops[] = {"\n\n"};
  const hw_generate_options options = {.struct_size = sizeof options,
                                       .max_tokens = argc > 3 ? atoi(argv[3]) : 60,
                                       .stops = stops,
                                       .stop_count = 1};
  const hw_status status = hw_decoder_generate(model, argv[2], &options, show, &bytes, &finish);
  hw_decoder_free(model);
  if (status != HW_OK) return failed("generate");
  fprintf(stderr, "\n%zu bytes, ended by %s\n", bytes, finish == HW_FINISH_LENGTH ? "length" : "stop");
  return 0;
}
