// Recognisers of intents in C: load a folder that headwise train wrote, ask it, and ask why. In
// libheadwise_text.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/c/headwise.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/// A recogniser with its threads and memory. Used by one thread at a time.
typedef struct hw_recognizer hw_recognizer;

/// Structs begin with struct_size and 0 is every field's default, as in headwise.h.
typedef struct hw_recognizer_options {
  uint32_t struct_size;
  int32_t threads;  // 0: HEADWISE_THREADS, else the CPUs this process may use
  int64_t top;      // likeliest labels that an answer lists; 0: 3
} hw_recognizer_options;

/// `folder`: what headwise train wrote. Options may be NULL.
hw_status hw_recognizer_load(const char* folder, const hw_recognizer_options* options,
                             hw_recognizer** recognizer);
/// Takes NULL too.
void hw_recognizer_free(hw_recognizer* recognizer);

/// The answer to `text` as one JSON object, as `headwise predict --json` prints it, ended by 0. The caller
/// frees it with hw_recognizer_answer_free.
hw_status hw_recognizer_predict(hw_recognizer* recognizer, const char* text, char** answer);
/// The same with "explanations": of every label that was given, or of `label` alone, given or not. `label`
/// may be NULL.
hw_status hw_recognizer_explain(hw_recognizer* recognizer, const char* text, const char* label,
                                char** answer);
/// Takes NULL too.
void hw_recognizer_answer_free(char* answer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
