// The kernel that serves a call of paged_attention: the first of this list that
// is for the call, and compiled for it (the table in IsCompiled).
//
//   kernel        for                                          file
//   float32       queries of F32; the others: of F16 and BF16  float32.cuh
//   kCluster      few sequences, not long (UseClusters)        cluster.cuh
//   kHalfCluster  a few more of them (UseHalfClusters)         cluster.cuh
//   kAttendPlain  calls without sinks and lse                  attend.cuh
//   kAttend       all calls                                    attend.cuh
//
// launch.cuh makes the choice.
#ifndef KERNELS_PAGED_ATTENTION_VARIANTS_CUH_
#define KERNELS_PAGED_ATTENTION_VARIANTS_CUH_

#include <climits>
#include <type_traits>

#include "kernels/common/ptx.cuh"

namespace torch_xla_ext::paged_attention {

enum class Kernel { kCluster, kHalfCluster, kAttendPlain, kAttend };

// Sets of types of the cache.
inline constexpr unsigned kBf16 = 1, kF16 = 2, kF8 = 4, kAnyCache = 7;

template <typename C>
__host__ __device__ constexpr unsigned CachesOf() {
  if (std::is_same_v<C, __nv_bfloat16>) return kBf16;
  if (std::is_same_v<C, __half>) return kF16;
  return std::is_same_v<C, Bf16OrF16> ? kBf16 | kF16 : kF8;
}

struct Variants {
  Kernel kernel;
  unsigned caches;
  int head_tiles;  // 1: up to 8 heads of a kv head in a block; 2: up to 16
  int first_arch;  // first_arch to last_arch: of the code that the GPU runs
                   // (CodeArch)
  int last_arch;
  int head_dims[5];
};

// Whether the code for an architecture contains a kernel. Each kernel takes
// nvcc about a second. Compute capability 9.0, on which the kernels were
// compared, has the most.
template <typename Traits>
__host__ __device__ constexpr bool IsCompiled(Kernel kernel, int arch) {
  // kAttend serves BF16 and F16 with one kernel, in which there may be sinks,
  // or lse may be requested. ptxas gives it fewer registers, and 128 × 4,096
  // tokens took 1.5% longer than with kAttendPlain.
  //
  // GPUs of compute capability 12 run the code for 10.0, but have less than
  // half the shared memory: too little for clusters.
  constexpr Variants kTable[] = {
      // kernel, cache, tiles of heads, architectures, head_dim
      {Kernel::kCluster, kBf16 | kF8, 1, 900, 900, {64, 96, 128, 256}},
      {Kernel::kCluster, kBf16 | kF8, 2, 900, 900, {128}},
      {Kernel::kCluster, kAnyCache, 1, 900, 1199, {128}},
      {Kernel::kHalfCluster, kBf16 | kF16, 1, 900, 1199, {128}},
      {Kernel::kAttendPlain, kBf16 | kF8, 1, 900, 900, {64, 128}},
      {Kernel::kAttend, kAnyCache, 1, 900, 900, {64, 96, 128, 192, 256}},
      {Kernel::kAttend, kAnyCache, 2, 0, INT_MAX, {64, 96, 128, 192, 256}},
  };
  constexpr unsigned kCaches = CachesOf<typename Traits::Cache>();
  for (const Variants& row : kTable) {
    if (row.kernel != kernel || row.head_tiles != Traits::kHeadTiles) continue;
    if ((row.caches & kCaches) != kCaches) continue;
    if (arch < row.first_arch || arch > row.last_arch) continue;
    for (const int head_dim : row.head_dims) {
      if (head_dim == Traits::kHeadDim) return true;
    }
  }
  return false;
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_VARIANTS_CUH_
