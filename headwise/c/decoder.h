// Language models in C: open a model, write a text on, hear it as it comes. In libheadwise_text.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/c/headwise.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/// A model with its tokenizer, its threads and its memory for keys and values. Used by one thread at a time.
typedef struct hw_decoder hw_decoder;

/// Structs begin with struct_size and 0 is every field's default, as in headwise.h.
typedef struct hw_decoder_options {
  uint32_t struct_size;
  int32_t threads;       // 0: HEADWISE_THREADS, else the CPUs this process may use
  const char* dtype;     // of the weights: "f32", "bf16", "f16"; NULL or "stored": as the file has them
  const char* kv_dtype;  // of keys and values: "bf16", "f16", "i8", "e4m3"; NULL or "f32": f32
  int64_t kv_bytes;      // for keys and values; 0: 256 MiB
} hw_decoder_options;

/// `path`: a folder of Hugging Face, a .gguf file or a llama2.c .bin file. Options may be NULL.
hw_status hw_decoder_open(const char* path, const hw_decoder_options* options, hw_decoder** decoder);
/// Takes NULL too.
void hw_decoder_free(hw_decoder* decoder);

typedef struct hw_generate_options {
  uint32_t struct_size;
  int32_t top_k;       // 0: all tokens
  int64_t max_tokens;  // 0: 256
  double temperature;  // 0: always the likeliest
  double top_p;        // 0: 1
  double min_p;
  double repetition_penalty;  // 0: 1
  double frequency_penalty;
  double presence_penalty;
  uint64_t seed;
  const char* const* stops;  // texts that end it, not shown
  size_t stop_count;
  int32_t ignore_end;  // not 0: goes on behind the model's own end tokens
} hw_generate_options;

enum { HW_FINISH_STOP = 1, HW_FINISH_LENGTH = 2, HW_FINISH_CANCELLED = 3 };

/// Whole characters of UTF-8, not ended by 0; anything but 0 ends the text. It must not call the decoder.
typedef int32_t (*hw_text_callback)(const char* text, size_t bytes, void* user);

/// Writes on behind `prompt`, and calls `callback` with each piece. `finish` (may be NULL) is why it ended.
/// The text depends on model, prompt and options alone.
hw_status hw_decoder_generate(hw_decoder* decoder, const char* prompt, const hw_generate_options* options,
                              hw_text_callback callback, void* user, int32_t* finish);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
