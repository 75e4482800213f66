// FloatEnv: round to nearest, denormals kept, for the length of a scope; then the caller's setting again.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headwise {

class FloatEnv {
 public:
#if defined(__x86_64__)
  FloatEnv() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // all exceptions masked, nearest, no FTZ, no DAZ
  ~FloatEnv() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnv() {
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("mrs %0, fpsr" : "=r"(status_));
    asm volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
  }
  ~FloatEnv() {
    asm volatile("msr fpcr, %0" ::"r"(control_));
    asm volatile("msr fpsr, %0" ::"r"(status_));
  }

 private:
  std::uint64_t control_, status_;
#else
  FloatEnv() { std::feholdexcept(&saved_), std::fesetround(FE_TONEAREST); }
  ~FloatEnv() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;
};

}  // namespace headwise
