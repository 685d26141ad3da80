// Warp-wide matrix products and copies of compute capability 8.0 and later.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_MMA_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/ragged_paged_attention/arguments.cuh"

namespace torch_xla_ext::ragged {

// d += a * b, with a of 16 x 16, b of 16 x 8 and d of 16 x 8 elements.
template <typename T>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                           uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void LoadMatrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
      : "r"(address));
}
__device__ inline void LoadMatricesTransposed(uint32_t (&m)[4],
                                              uint32_t address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
      : "r"(address));
}

// Copies 16 bytes to shared memory, or writes zeros and reads nothing.
__device__ inline void CopyAsync(uint32_t to, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(zeros ? 0 : 16)
               : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Eight values of F8E4M3FN as T: exact, with NaN for NaN.
template <typename T>
__device__ inline uint4 FromF8(uint2 values) {
  uint4 result;
  uint32_t* words = reinterpret_cast<uint32_t*>(&result);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (i < 2 ? values.x : values.y) >> (i % 2 * 16);
    const __half2 half(__nv_cvt_fp8x2_to_halfraw2(
        static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3));
    if constexpr (std::is_same_v<T, __half>) {
      words[i] = reinterpret_cast<const uint32_t&>(half);
    } else {
      const float2 wide = __half22float2(half);
      words[i] = Pack<T>(wide.x, wide.y);
    }
  }
  return result;
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_MMA_CUH_
