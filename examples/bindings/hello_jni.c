// What Hello.java calls: Java's arrays as tensors, and the library's sentence as an exception.
// SPDX-License-Identifier: Apache-2.0
#include <jni.h>
#include <stdint.h>

#include "headwise/c/headwise.h"

static void refuse(JNIEnv* env, const char* sentence) {
  (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/IllegalArgumentException"), sentence);
}

static hw_tensor f32(float* data, const int64_t* shape) {
  hw_tensor t = {data, {HW_DEVICE_CPU, 0}, 4, {HW_FLOAT, 32, 1}, shape, NULL, 0};
  return t;
}

/// How many numbers the shape holds; -1 where the arrays do not fit it.
static int64_t count_of(JNIEnv* env, const jfloatArray given[3], jlongArray shape, int64_t sizes[4]) {
  int64_t count = 1;
  if (!shape || (*env)->GetArrayLength(env, shape) != 4) return -1;
  (*env)->GetLongArrayRegion(env, shape, 0, 4, (jlong*)sizes);
  for (int i = 0; i < 4; ++i)
    if (sizes[i] < 0 || __builtin_mul_overflow(count, sizes[i], &count)) return -1;
  for (int i = 0; i < 3; ++i)
    if (!given[i] || (*env)->GetArrayLength(env, given[i]) != count) return -1;
  return count;
}

JNIEXPORT jfloatArray JNICALL Java_Hello_attention(JNIEnv* env, jclass type, jfloatArray q, jfloatArray k,
                                                   jfloatArray v, jlongArray shape, jstring mask) {
  (void)type;
  const jfloatArray given[3] = {q, k, v};
  int64_t sizes[4];
  const int64_t count = count_of(env, given, shape, sizes);
  if (count < 0 || !mask) {
    refuse(env,
           "attention: q, k, v or shape do not fit; give a shape of 4 sizes and as many numbers as it holds");
    return NULL;
  }
  const char* text = (*env)->GetStringUTFChars(env, mask, NULL);
  jfloatArray out = text ? (*env)->NewFloatArray(env, (jsize)count) : NULL;
  float* data[4] = {NULL, NULL, NULL, NULL};
  int have = out != NULL;
  for (int i = 0; i < 4 && have; ++i) {
    data[i] = (*env)->GetFloatArrayElements(env, i < 3 ? given[i] : out, NULL);
    have = data[i] != NULL;
  }
  hw_context* context = NULL;
  hw_mask* made = NULL;
  int done = 0;
  if (have) {
    hw_tensor tq = f32(data[0], sizes), tk = f32(data[1], sizes), tv = f32(data[2], sizes),
              to = f32(data[3], sizes);
    hw_attention_args args = {.struct_size = sizeof args, .q = &tq, .k = &tk, .v = &tv, .out = &to};
    done = hw_context_create(NULL, &context) == HW_OK && hw_mask_parse(text, &made) == HW_OK;
    args.mask = made;
    done = done && hw_attention(context, &args) == HW_OK;
  }
  for (int i = 0; i < 4; ++i)
    if (data[i])
      (*env)->ReleaseFloatArrayElements(env, i < 3 ? given[i] : out, data[i], i < 3 ? JNI_ABORT : 0);
  if (text) (*env)->ReleaseStringUTFChars(env, mask, text);
  hw_mask_destroy(made);
  hw_context_destroy(context);
  if (have && !done) refuse(env, hw_last_error());
  return done ? out : NULL;
}
