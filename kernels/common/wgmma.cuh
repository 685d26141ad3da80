// Hopper's asynchronous copies, barriers and matrix products: PTX instructions
// of sm_90a. The encodings are those of the PTX manual (sections on wgmma,
// mbarrier and cp.async.bulk.tensor) and of CUTLASS's
// cute/arch/mma_sm90_desc.hpp.
#ifndef KERNELS_COMMON_WGMMA_CUH_
#define KERNELS_COMMON_WGMMA_CUH_

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace torch_xla_ext {

// Barriers in shared memory. A phase ends when the expected arrivals, and the
// announced bytes of the copies, are complete.

__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(arrivals)
               : "memory");
}
// Makes the barriers visible to the copy engine.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
__device__ inline void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
// Waits for the end of the phase with this parity.
__device__ inline void Wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra wait;\n"
      "end:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A ring's position: the slot, and the parity of its phase.
template <int kSlots>
struct Ring {
  int slot = 0;
  int parity = 0;
  __device__ void Advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Hardware barriers, 1 to 15, for `threads` threads.
__device__ inline void SyncNamed(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void ArriveNamed(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Makes earlier writes to shared memory visible to the copy engine and the
// tensor cores.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// True in one thread of the warp. The compiler knows this and issues the copies
// one after another; if each lane copied a page, it would generate a loop.
__device__ inline bool ElectOne() {
  int elected;
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

// Copies a box of a tensor; coordinates outside it give zeros.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap* map, int x,
                               int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
__device__ inline void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A matrix in shared memory in the 128-byte swizzle: atoms of 8 rows of 128
// bytes. If the rows run along M or N ("K-major"), `stride` is the distance in
// bytes between atoms along that dimension. If they run along K, `stride` is
// the distance between atoms along K, and `leading` the one along M or N.
__device__ inline uint64_t MatrixDescriptor(uint32_t address, int leading,
                                            int stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

// The products of a warpgroup (four warps) run in the order in which they were
// issued, in groups that end with a commit.
__device__ inline void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kPending` groups are unfinished.
template <int kPending>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of registers across this point.
template <typename R, int n>
__device__ inline void Pin(R (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<R, float>) {
      asm volatile("" : "+f"(registers[i])::"memory");
    } else {
      asm volatile("" : "+r"(registers[i])::"memory");
    }
  }
}

// Transposes 4 x 4 words in each group of four threads. The tensor cores leave
// columns 8 j + 2 t and 8 j + 2 t + 1 of a row of 32 in word j of thread t.
// Afterwards, thread t has columns 8 t to 8 t + 7, 16 bytes that it can store
// at once.
__device__ inline uint4 TransposeQuad(uint32_t w0, uint32_t w1, uint32_t w2,
                                      uint32_t w3) {
  const int t = threadIdx.x % 4;
  // Exchange with the neighbouring thread, then with the thread at distance
  // two.
  const uint32_t a = __shfl_xor_sync(~0u, t & 1 ? w0 : w1, 1);
  const uint32_t b = __shfl_xor_sync(~0u, t & 1 ? w2 : w3, 1);
  if (t & 1) {
    w0 = a;
    w2 = b;
  } else {
    w1 = a;
    w3 = b;
  }
  const uint32_t c = __shfl_xor_sync(~0u, t & 2 ? w0 : w2, 2);
  const uint32_t d = __shfl_xor_sync(~0u, t & 2 ? w1 : w3, 2);
  if (t & 2) {
    w0 = c;
    w1 = d;
  } else {
    w2 = c;
    w3 = d;
  }
  return make_uint4(w0, w1, w2, w3);
}

// d = a * b, or d += a * b, with a of 64 x 16, b of 16 x N and d of 64 x N
// elements; of F8E4M3FN, a of 64 x 32 and b of 32 x N, by Wgmma alone. Thread t
// of the warpgroup holds, in d[4 j] to d[4 j + 3], columns 8 j + 2 (t % 4) and
// the next one, of row 16 (t / 32) + t % 32 / 4 and of the row 8 below it. N is
// 64, 128 or 256, given by the size of d.
//   Wgmma(d, a, b, add): a and b in shared memory, both K-major
//   WgmmaTransposed(d, a, b, add): the same, with b's K in rows
//   WgmmaBothTransposed(d, a, b, add): the same, with a's K in rows, too
//   WgmmaRegisters(d, a, b, add): a in registers, of the layout of d's pairs;
//     b in shared memory with its K in rows

#define WGMMA_R32                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
  "%26, %27, %28, %29, %30, %31"
#define WGMMA_R64                                                  \
  WGMMA_R32                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "   \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R128                                                 \
  WGMMA_R64                                                        \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
  "%76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, "   \
  "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "   \
  "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "   \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "   \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_REGISTERS_64 "{" WGMMA_R32 "}"
#define WGMMA_REGISTERS_128 "{" WGMMA_R64 "}"
#define WGMMA_REGISTERS_256 "{" WGMMA_R128 "}"

#define WGMMA_D8(i)                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_D32(i) \
  WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)
#define WGMMA_OPERANDS_64 WGMMA_D32(0)
#define WGMMA_OPERANDS_128 WGMMA_D32(0), WGMMA_D32(32)
#define WGMMA_OPERANDS_256 WGMMA_OPERANDS_128, WGMMA_D32(64), WGMMA_D32(96)

#define WGMMA_SHARED(n, depth, type, transposed, a_, b_, add_)                 \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_                        \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n depth ".f32." type \
               "." type " " WGMMA_REGISTERS_##n ", " a_ ", " b_                \
                                                ", p, 1, 1" transposed ";\n}"  \
               : WGMMA_OPERANDS_##n                                            \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define WGMMA_A_IN_REGISTERS(n, type, a0_, a1_, a2_, a3_, b_, add_)            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_                        \
               ", 0;\n"                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " " WGMMA_REGISTERS_##n ", {" a0_ ", " a1_ ", " a2_ ", " a3_    \
                                       "}, " b_ ", p, 1, 1, 1;\n}"             \
               : WGMMA_OPERANDS_##n                                            \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b),                   \
                 "r"(static_cast<int>(add)))
#define WGMMA_DEFINE(n, i0, i1, i2, i3, i4, i5)                                \
  template <typename T>                                                        \
  __device__ inline void Wgmma(float(&d)[n / 2], uint64_t a, uint64_t b,       \
                               bool add) {                                     \
    if constexpr (std::is_same_v<T, __half>) {                                 \
      WGMMA_SHARED(n, "k16", "f16", ", 0, 0", i0, i1, i2);                     \
    } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {                   \
      WGMMA_SHARED(n, "k32", "e4m3", "", i0, i1, i2);                          \
    } else {                                                                   \
      WGMMA_SHARED(n, "k16", "bf16", ", 0, 0", i0, i1, i2);                    \
    }                                                                          \
  }                                                                            \
  template <typename T>                                                        \
  __device__ inline void WgmmaTransposed(float(&d)[n / 2], uint64_t a,         \
                                         uint64_t b, bool add) {               \
    if constexpr (std::is_same_v<T, __half>) {                                 \
      WGMMA_SHARED(n, "k16", "f16", ", 0, 1", i0, i1, i2);                     \
    } else {                                                                   \
      WGMMA_SHARED(n, "k16", "bf16", ", 0, 1", i0, i1, i2);                    \
    }                                                                          \
  }                                                                            \
  template <typename T>                                                        \
  __device__ inline void WgmmaBothTransposed(float(&d)[n / 2], uint64_t a,     \
                                             uint64_t b, bool add) {           \
    if constexpr (std::is_same_v<T, __half>) {                                 \
      WGMMA_SHARED(n, "k16", "f16", ", 1, 1", i0, i1, i2);                     \
    } else {                                                                   \
      WGMMA_SHARED(n, "k16", "bf16", ", 1, 1", i0, i1, i2);                    \
    }                                                                          \
  }                                                                            \
  template <typename T>                                                        \
  __device__ inline void WgmmaRegisters(float(&d)[n / 2], uint32_t a0,         \
                                        uint32_t a1, uint32_t a2, uint32_t a3, \
                                        uint64_t b, bool add) {                \
    if constexpr (std::is_same_v<T, __half>) {                                 \
      WGMMA_A_IN_REGISTERS(n, "f16", i0, i1, i2, i3, i4, i5);                  \
    } else {                                                                   \
      WGMMA_A_IN_REGISTERS(n, "bf16", i0, i1, i2, i3, i4, i5);                 \
    }                                                                          \
  }
WGMMA_DEFINE(64, "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_DEFINE(128, "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA_DEFINE(256, "%128", "%129", "%130", "%131", "%132", "%133")

#undef WGMMA_DEFINE
#undef WGMMA_A_IN_REGISTERS
#undef WGMMA_SHARED

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_WGMMA_CUH_
