#include "headwise/kernels/cpu/isa/isa.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "headwise/base/error.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/levels.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headwise::cpu {
namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_f16c() {  // clang 14 has no word for it in __builtin_cpu_supports
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/// AMX with bf16, AVX-512 conversions to bf16, and the kernel's permission to use tile registers (asked once
/// a process).
bool has_amx() {
  if (!has_avx512()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0, a1 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = (d >> 22 & 1u) && (d >> 24 & 1u);
  if (!tiles || !__get_cpuid_count(7, 1, &a1, &b, &c, &d) || !(a1 >> 5 & 1u)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
constexpr IsaLevel kLevels[] = {
    {"plain", always, [] { return &kPlain; }, [] { return &kGemmPlain; }},
    {"avx2", has_avx2, [] { return &kAvx2; }, [] { return &kGemmAvx2; }},
    {"avx512", has_avx512, [] { return &kAvx512; }, [] { return &kGemmAvx512; }},
    {"amx", has_amx, [] { return &kAmx; }, [] { return &kGemmAmx; }},
};
#elif defined(__aarch64__)
bool has_bf16() {
  constexpr unsigned long kHwcap2Bf16 = 1ul << 14;  // asm/hwcap.h of older kernels lacks the name
  return (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
}
constexpr IsaLevel kLevels[] = {
    {"plain", always, [] { return &kPlain; }, [] { return &kGemmPlain; }},
    {"neon", always, [] { return &kNeon; }, [] { return &kGemmNeon; }},
    {"neon_bf16", has_bf16, [] { return &kNeonBf16; }, [] { return &kGemmNeonBf16; }},
};
#else
constexpr IsaLevel kLevels[] = {{"plain", always, [] { return &kPlain; }, [] { return &kGemmPlain; }}};
#endif

const IsaLevel* choose() {
  const char* set = std::getenv("HEADWISE_ISA");
  const IsaLevel* best = nullptr;
  std::string names;
  for (const IsaLevel& level : kLevels) {
    if (!level.supported()) continue;
    names += (names.empty() ? "" : ", ") + std::string(level.name);
    if (!set || !*set || std::string_view(set) == level.name) best = &level;
  }
  require(best != nullptr, ErrorKind::bad_argument, "isa", "HEADWISE_ISA is \"", set ? set : "",
          "\", which this CPU cannot run or headwise does not know; use one of: ", names);
  return best;
}

std::atomic<const IsaLevel*> chosen{nullptr};

}  // namespace

std::span<const IsaLevel> isa_levels() { return kLevels; }

const IsaLevel& chosen_isa() {
  const IsaLevel* level = chosen.load(std::memory_order_acquire);
  if (!level) {
    level = choose();
    chosen.store(level, std::memory_order_release);
  }
  return *level;
}

void force_isa(const IsaLevel* level) { chosen.store(level, std::memory_order_release); }

}  // namespace headwise::cpu
