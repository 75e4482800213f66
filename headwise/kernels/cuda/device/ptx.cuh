// The instructions that CUDA C++ has no word for (sm_90a, a few older): barriers, copies, wgmma, fragments.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace headwise::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// Asked of the machine again at every use: no register holds it in between.
__device__ __forceinline__ int lane_now() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ bool elect_one() {
  std::uint32_t chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(chosen));
  return chosen != 0;
}

// ---- registers move from the warpgroup that copies to those that compute
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Count));
}

// ---- named barriers, counted in threads
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- mbarriers in shared memory
__device__ __forceinline__ void mbarrier_init(std::uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_expect(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/// Bytes to come, without an arrival.
__device__ __forceinline__ void mbarrier_announce(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ bool mbarrier_passed(std::uint32_t bar, std::uint32_t parity) {
  std::uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(bar), "r"(parity)
      : "memory");
  return passed != 0;
}
/// The same without waiting a moment.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t bar, std::uint32_t parity) {
  std::uint32_t passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(bar), "r"(parity)
      : "memory");
  return passed != 0;
}
__device__ __forceinline__ void mbarrier_wait(std::uint32_t bar, std::uint32_t parity) {
  while (!mbarrier_passed(bar, parity)) {
  }
}

/// Shared memory written by ordinary stores is seen by wgmma and bulk copies only past this fence.
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Adds x and gives what stood there: behind all this block has written, before all it reads from here on.
__device__ __forceinline__ int add_in_order(int* to, int x) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
  return before;
}

// ---- turns between blocks, counted in device memory
__device__ __forceinline__ int load_acquire(const int* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
__device__ __forceinline__ void add_release(int* p, int x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

// ---- bulk tensor copies
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull, kEvictLast = 0x14F0000000000000ull,
                               kEvictNormal = 0x1000000000000000ull;
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// A box of a map: where it goes, the barrier that counts its bytes, its coordinates, how long L2 keeps it.
struct TileCopy {
  std::uint32_t to;
  const CUtensorMap* map;
  std::uint32_t bar;
  int row, panel = 0, head, batch;
  std::uint64_t keep;
  int column = 0;  // in its panel
};
__device__ __forceinline__ void load_tile(const TileCopy& x) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;" ::"r"(x.to),
      "l"(x.map), "r"(x.bar), "r"(x.column), "r"(x.row), "r"(x.panel), "r"(x.head), "r"(x.batch), "l"(x.keep)
      : "memory");
}
/// Bytes in a row, 16 at least; both ends on 16.
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap* map, std::uint32_t from, int row, int panel,
                                           int head, int batch, int column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5,%6}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row), "r"(panel), "r"(head), "r"(batch)
      : "memory");
}
/// to[i] += from[i] over floats in shared memory, in no order among themselves.
__device__ __forceinline__ void add_floats(float* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// All but the last `Pending` stores have read their shared memory.
template <int Pending = 0>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- copies of single threads, 16 bytes each (sm_80)
/// The first `bytes` of 16 come from memory, the rest is 0.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Four bytes from memory, or zeros.
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}
/// Arrives when the copies this thread has begun are there; the barrier counts it as one arrival.
__device__ __forceinline__ void mbarrier_arrive_copied(std::uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most so many committed groups are under way. 0: every copy this thread has begun, committed or
/// not.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  if constexpr (Pending == 0)
    asm volatile("cp.async.wait_all;" ::: "memory");
  else
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- blocks of a cluster
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Arrives on the barrier of block `rank` that lies where `bar` is in this block's shared memory.
/// Orders nothing in memory beyond this block: for readers whose reads are over (a fence of the device takes
/// 1,000 cycles).
__device__ __forceinline__ void mbarrier_arrive_at(int rank, std::uint32_t bar) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
/// Into the shared memory of block `rank`, at the place where `to` is in this block's; counts 4 bytes there
/// on `bar`.
__device__ __forceinline__ void send_float(int rank, std::uint32_t to, float x, std::uint32_t bar) {
  asm volatile(
      "{\n.reg .b32 there, bell;\nmapa.shared::cluster.u32 there, %0, %1;\nmapa.shared::cluster.u32 bell, "
      "%3, "
      "%1;\nst.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, [bell];\n}" ::"r"(to),
      "r"(rank), "r"(__float_as_uint(x)), "r"(bar)
      : "memory");
}
/// Likewise two numbers side by side, 8 bytes.
__device__ __forceinline__ void send_pair(int rank, std::uint32_t to, float x, float y, std::uint32_t bar) {
  asm volatile(
      "{\n.reg .b32 there, bell;\nmapa.shared::cluster.u32 there, %0, %1;\nmapa.shared::cluster.u32 bell, "
      "%4, "
      "%1;\nst.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [there], {%2,%3}, [bell];\n}" ::"r"(
          to),
      "r"(rank), "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(bar)
      : "memory");
}

// ---- wgmma control
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Pins registers of a product that is under way: the compiler moves no use of them across.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(std::uint32_t (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// threadIdx.x, read anew: what is made of it takes no register before.
__device__ __forceinline__ unsigned thread_now() {
  unsigned x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// ---- numbers
/// x, not before y is there: `zero` is 0, which ptxas does not know.
__device__ __forceinline__ float after(float y, float x, int zero) {
  return __int_as_float(__float_as_int(x) | (__float_as_int(y) & zero));
}
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The highest bit of byte `at` of two words, each over a half of the result.
__device__ __forceinline__ std::uint32_t spread_signs(std::uint32_t low, std::uint32_t high, int at) {
  const unsigned how = 0x1100u * static_cast<unsigned>(12 + at) + 0x11u * static_cast<unsigned>(8 + at);
  std::uint32_t x;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(low), "r"(high), "r"(how));
  return x;
}

/// `count` ones from the lowest bit on, up to 32.
__device__ __forceinline__ std::uint32_t low_bits(int count) {
  std::uint32_t x;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(x) : "r"(count));
  return x;
}

// ---- moves between fragments and shared memory, four 8x8 matrices at a time
__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                               std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_matrices_turned(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                                      std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void load_matrices(std::uint32_t from, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices_turned(std::uint32_t from, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                             std::uint32_t c, std::uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
/// 16 bytes of 0.
__device__ __forceinline__ void clear_shared(std::uint32_t at) {
  asm volatile("{\n.reg .b32 z;\nmov.b32 z, 0;\nst.shared.v4.b32 [%0], {z,z,z,z};\n}" ::"r"(at) : "memory");
}
template <class T>
__device__ __forceinline__ void store_number(std::uint32_t to, T x) {
  if constexpr (sizeof(T) == 4)
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  else
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(__builtin_bit_cast(unsigned short, x)) : "memory");
}
__device__ __forceinline__ void store_floats(std::uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ void store_pair(std::uint32_t to, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ float2 load_pair(std::uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
  return v;
}
__device__ __forceinline__ std::uint32_t load_word(std::uint32_t from) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_word(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ int add_shared(std::uint32_t at, int x) {
  int before;
  asm volatile("atom.shared.add.s32 %0, [%1], %2;" : "=r"(before) : "r"(at), "r"(x) : "memory");
  return before;
}
__device__ __forceinline__ float load_float(std::uint32_t from) { return __uint_as_float(load_word(from)); }
__device__ __forceinline__ void store_float(std::uint32_t to, float x) { store_word(to, __float_as_uint(x)); }
__device__ __forceinline__ float4 load_floats(std::uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ int4 load_shared(std::uint32_t from) {
  int4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// ---- programmatic dependent launch
__device__ __forceinline__ void wait_for_forerunner() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_follower_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace headwise::cuda::ptx
