// The PTX instructions of the attention kernels: asynchronous copies to shared
// memory and the tensor cores' 16×8×16 product (compute capability 8.0);
// dependent launch and thread block clusters (9.0).
#ifndef KERNELS_COMMON_PTX_CUH_
#define KERNELS_COMMON_PTX_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace torch_xla_ext {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// The offset of 16-byte chunk `chunk` of row `row` in a tile. Chunks are
// permuted so that the same chunk of 8 rows is in 8 different groups of banks.
template <int kRowBytes>
__device__ inline uint32_t ChunkOffset(int row, int chunk) {
  constexpr int kChunks = kRowBytes / 16;
  constexpr int kLowBits = kChunks & -kChunks;
  constexpr int kSpan = kLowBits < 8 ? kLowBits : 8;
  return (row * kChunks + (chunk ^ (row / (8 / kSpan)) % kSpan)) * 16;
}

// Copies 16 bytes, or writes 16 bytes of zeros and reads nothing.
__device__ inline void CopyAsync16(uint32_t shared, const void* global,
                                   bool read) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
      "l"(global), "r"(read ? 16 : 0)
      : "memory");
}

// Copies 4 bytes, or writes zeros and reads nothing.
__device__ inline void CopyAsync4(uint32_t shared, const void* global,
                                  bool read) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared),
               "l"(global), "r"(read ? 4 : 0)
               : "memory");
}

__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of the thread's groups of copies are pending.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8×8 matrices of 16-bit elements. Lane i passes the address of row
// i % 8 of matrix i / 8, and gets elements 2 * (i % 4) and + 1 of row i / 4 of
// each.
__device__ inline void LoadMatrices(uint32_t (&matrices)[4], uint32_t shared) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]),
        "=r"(matrices[3])
      : "r"(shared));
}

// Like LoadMatrices, but transposes each matrix.
__device__ inline void LoadTransposed(uint32_t (&matrices)[4],
                                      uint32_t shared) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]),
        "=r"(matrices[3])
      : "r"(shared));
}

// Transposes an 8×8 matrix of 16-bit elements that a warp holds.
__device__ inline uint32_t Transpose(uint32_t matrix) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(transposed)
      : "r"(matrix));
  return transposed;
}

// Stands for BF16 or F16 in a kernel that is compiled once for both: an
// argument of MultiplyAdd and Pack selects the type. The other type's product
// is issued, too, but has no effect. That costs almost nothing in a
// memory-bound kernel, and halves the number of kernels to compile.
struct Bf16OrF16 {
  uint16_t bits;
};

// sum[16×8] += a[16×16] * b[16×8]. Lane i has, with r = i / 4 and c = 2 * (i %
// 4), of a: rows r and r + 8 of columns c and c + 1, then the same rows of
// columns c + 8 and c + 9; of b: rows c and c + 1, then c + 8 and c + 9, of
// column r; of the sum: columns c and c + 1 of row r, then of row r + 8.
template <typename T>
__device__ inline void MultiplyAdd(float (&sum)[4], const uint32_t (&a)[4],
                                   const uint32_t (&b)[2],
                                   bool is_bf16 = false);

template <>
__device__ inline void MultiplyAdd<__half>(float (&sum)[4],
                                           const uint32_t (&a)[4],
                                           const uint32_t (&b)[2], bool) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void MultiplyAdd<__nv_bfloat16>(float (&sum)[4],
                                                  const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2],
                                                  bool) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ inline void MultiplyAdd<Bf16OrF16>(float (&sum)[4],
                                              const uint32_t (&a)[4],
                                              const uint32_t (&b)[2],
                                              bool is_bf16) {
  asm("{\n.reg .pred is_bf16;\n"
      "setp.ne.u32 is_bf16, %10, 0;\n"
      "@is_bf16 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      "@!is_bf16 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n}"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(static_cast<uint32_t>(is_bf16)));
}

// Two floats as two 16-bit elements, the first in the lower half.
template <typename T>
__device__ inline uint32_t Pack(float x, float y, bool is_bf16 = false);

template <>
__device__ inline uint32_t Pack<__half>(float x, float y, bool) {
  const __half2 pair = __floats2half2_rn(x, y);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <>
__device__ inline uint32_t Pack<__nv_bfloat16>(float x, float y, bool) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <>
__device__ inline uint32_t Pack<Bf16OrF16>(float x, float y, bool is_bf16) {
  return is_bf16 ? Pack<__nv_bfloat16>(x, y) : Pack<__half>(x, y);
}

// Two F8E4M3FN, the lower half of `pair`, as two F16; exact, with NaN for NaN.
__device__ inline uint32_t WidenF8Pair(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  const __half2_raw wide = __nv_cvt_fp8x2_to_halfraw2(
      static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(wide.x) | static_cast<uint32_t>(wide.y) << 16;
#else
  // Older GPUs have no instruction for this. Shifted to F16's position,
  // exponent and mantissa represent a value that is 2^8 times too small. The
  // only encoding above 448 is NaN.
  const uint32_t bytes = __byte_perm(pair, 0, 0x1404);
  const uint32_t bits = (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1;
  const __half2 wide =
      __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256.0f));
  return reinterpret_cast<const uint32_t&>(wide) |
         __hgt2_mask(__habs2(wide), __float2half2_rn(448.0f));
#endif
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Programmatic dependent launch: the next kernel on the stream may start when
// every block has called this. That kernel must itself wait for the end of this
// one.
__device__ inline void AllowNextKernelToStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void WaitForPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Thread block clusters (compute capability 9.0). WaitForCluster returns when
// all threads of the cluster's blocks have arrived. This orders only
// InitReceiver, no other memory accesses.
__device__ inline void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ inline void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Called by one thread before it arrives at the cluster. `barrier`, 8 bytes of
// shared memory, tracks the data that other blocks send.
__device__ inline void InitReceiver(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Called by one thread: sets the number of bytes for which `barrier` waits.
// Some of them may have arrived already.
__device__ inline void ExpectBytes(uint32_t barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

// Waits until all expected bytes have arrived.
__device__ inline void Receive(uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred done;\nwait%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
      "0;\n"
      "@!done bra wait%=;\n}" ::"r"(barrier)
      : "memory");
}

// Maps `shared`, an address in this block's memory, to block `rank` of the
// cluster.
__device__ inline uint32_t InBlock(uint32_t shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared), "r"(rank));
  return address;
}

// Writes to another block's memory and signals its barrier. Both addresses come
// from InBlock.
__device__ inline void SendToBlock(uint32_t address, float4 value,
                                   uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

__device__ inline void SendToBlock(uint32_t address, float2 value,
                                   uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
      "[%0], {%1, %2}, [%3];" ::"r"(address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_PTX_CUH_
