// The kernels for Hopper: a warp copies the operands' tiles by the copy engine,
// and two warpgroups multiply them.
//
// Blocks are persistent: the copies of the next tile run while the results of
// one are written.
#include <cuda.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/grouped_matmul/mxfp4.cuh"
#include "kernels/grouped_matmul/sm90.h"

namespace torch_xla_ext::grouped_matmul {
namespace {

constexpr int kThreads = 384;  // two multiplying warpgroups and the copying one
constexpr int kPanelBytes = 64 * 128;
constexpr int kConsumerBarrier = 1;  // a named barrier

template <typename T>
constexpr bool kIsScaled = std::is_same_v<T, __nv_fp8_e4m3>;
template <typename T>
constexpr bool kIsMx = std::is_same_v<T, Mx>;
// The depth of a stage in elements: 128 bytes of each row. In fp8, these
// elements share a scale.
template <typename T>
constexpr int kDepth = kIsScaled<T> ? 128 : 64;
static_assert(kDepth<__nv_fp8_e4m3> == kScaleBlock);

// Double buffer in shared memory for `count` rows of w, converted from MXFP4 to
// bfloat16: 128 bytes a row.
template <int count>
struct Converted {
  uint8_t converted[2][count * 128];
};
template <>
struct Converted<0> {};

// The shape of a tile of results, the number of stages of pending copies, the
// number of blocks per multiprocessor, and whether elements of w have four
// bits.
template <int kTileRows, int kTileColumns, int kNumStages, int kNumBlocks,
          bool kIsPacked = false>
struct Shape {
  static constexpr int kRows = kTileRows, kColumns = kTileColumns;
  static constexpr int kStages = kNumStages, kBlocks = kNumBlocks;
  // The warpgroups that multiply share the rows or the columns.
  static constexpr bool kSharesRows = kRows == 128;
  static constexpr int kGroupColumns = kSharesRows ? kColumns : kColumns / 2;
  // Small tiles copy only rows that exist in the group, 16 at a time.
  static constexpr int kBoxRows = kSharesRows ? kRows : 16;
  // A tile consists of panels: one per 64 rows if the depth is the operand's
  // last dimension, one per 64 columns if it is the first.
  struct alignas(1024) Memory : Converted<kIsPacked ? kColumns : 0> {
    uint8_t a[kStages][kRows * 128];
    uint8_t b[kStages][kColumns * (kIsPacked ? 32 : 128)];
    uint64_t full[kStages], empty[kStages];
  };
  static int SharedBytes(int groups) {
    return static_cast<int>(sizeof(Memory)) + 1024 +
           NumSegmentEntries(groups) * static_cast<int>(sizeof(int2));
  }
};

// For groups of many rows; for groups of some rows and a short sum; and for
// groups of few rows, where the number of weight loads in flight limits the
// speed.
using Large = Shape<128, 256, 4, 1>;
using Medium = Shape<64, 256, 5, 1>;
using Small = Shape<64, 128, 4, 2>;
// For groups of many rows in fp8: leaves registers for a stage's sums beside
// the total sums.
using LargeScaled = Shape<128, 128, 6, 1>;
using SmallMx = Shape<64, 128, 6, 2, true>;
using LargeMx = Shape<128, 128, 8, 1, true>;

// Registers per thread: the three warpgroups redistribute their initial
// registers.
template <typename S>
struct Registers {
  static constexpr int kAtFirst = 65536 / (kThreads * S::kBlocks) / 8 * 8;
  static constexpr int kProducer = S::kBlocks == 1 ? 40 : 24;
  static constexpr int kConsumer = (3 * kAtFirst - kProducer) / 2 / 8 * 8;
};

struct Maps {
  CUtensorMap a, b;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Run by one thread: copies the operands of all tiles of the block.
template <typename T, Product kProduct, typename S, typename Tiles>
__device__ void Produce(const Maps& maps, const Tiles& tiles,
                        typename S::Memory& shared) {
  constexpr int kBBytes = sizeof(shared.b[0]);
  Ring<S::kStages> ring;
  const int count = tiles.Count();
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const Tile tile = tiles.Get(index);
    const int boxes =
        kProduct == Product::kOuter
            ? S::kRows / 64
            : CeilDiv(min(tile.row_end - tile.row, S::kRows), S::kBoxRows);
    constexpr int kABoxBytes =
        kProduct == Product::kOuter ? kPanelBytes : S::kBoxRows * 128;
    for (int depth = tile.k_begin; depth < tile.k_end; depth += kDepth<T>) {
      const uint32_t full = SharedAddress(&shared.full[ring.slot]);
      const uint32_t a = SharedAddress(shared.a[ring.slot]);
      const uint32_t b = SharedAddress(shared.b[ring.slot]);
      Wait(SharedAddress(&shared.empty[ring.slot]), ring.parity ^ 1);
      ArriveExpecting(full, boxes * kABoxBytes + kBBytes);
      for (int i = 0; i < boxes; ++i) {
        if constexpr (kProduct == Product::kOuter) {
          CopyBox(a + i * kABoxBytes, &maps.a, tile.row + i * 64, depth, 0,
                  full);
        } else {
          CopyBox(a + i * kABoxBytes, &maps.a, depth,
                  tile.row + i * S::kBoxRows, 0, full);
        }
      }
      if constexpr (kProduct == Product::kLinear) {
        CopyBox(b, &maps.b, kIsMx<T> ? depth / 2 : depth, tile.column,
                tile.group, full);
      } else {
#pragma unroll
        for (int i = 0; i < S::kColumns / 64; ++i) {
          CopyBox(b + i * kPanelBytes, &maps.b, tile.column + i * 64, depth,
                  kProduct == Product::kOuter ? 0 : tile.group, full);
        }
      }
      ring.Advance();
    }
  }
}

// Run by the consumers: zeroes rows [first, 64) of both operands' panels in a
// stage. These rows belong to another group.
template <typename S>
__device__ void ZeroRows(int first, int slot, typename S::Memory& shared) {
  const auto zero = [first](uint8_t* panel) {
    for (int i = first * 8 + static_cast<int>(threadIdx.x); i < 64 * 8;
         i += 256) {
      reinterpret_cast<uint4*>(panel)[i] = make_uint4(0, 0, 0, 0);
    }
  };
  for (int i = 0; i < S::kRows / 64; ++i) {
    zero(shared.a[slot] + i * kPanelBytes);
  }
  for (int i = 0; i < S::kColumns / 64; ++i) {
    zero(shared.b[slot] + i * kPanelBytes);
  }
  FenceAsyncProxy();
  SyncNamed(kConsumerBarrier, 256);
}

// Starts a stage's product. Descriptors contain addresses divided by 16.
template <typename T, Product kProduct, int n>
__device__ void MultiplyStage(float (&sums)[n], uint64_t a, uint64_t b) {
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Sixteen rows of 128 bytes, or 32 bytes of each row.
    if constexpr (kProduct == Product::kOuter) {
      WgmmaBothTransposed<T>(sums, a + (i * 2048 >> 4), b + (i * 2048 >> 4),
                             true);
    } else if constexpr (kProduct == Product::kMatmul) {
      WgmmaTransposed<T>(sums, a + (i * 32 >> 4), b + (i * 2048 >> 4), true);
    } else {
      // In fp8, the tensor cores accumulate with few bits, so each stage starts
      // a new sum.
      Wgmma<T>(sums, a + (i * 32 >> 4), b + (i * 32 >> 4),
               !kIsScaled<T> || i > 0);
    }
  }
  WgmmaCommit();
}

// Run by a warpgroup: computes its part of all tiles of the block. T is the
// dtype of the results, In that of the operands.
template <typename In, typename T, Product kProduct, typename S, typename Tiles>
__device__ void Consume(const Arguments& arguments, const Tiles& tiles,
                        typename S::Memory& shared, int warpgroup) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int64_t m = arguments.m, n = arguments.n;
  const int group_row = S::kSharesRows ? warpgroup * 64 : 0;
  const int group_column = S::kSharesRows ? 0 : warpgroup * S::kGroupColumns;
  // A panel has 64 rows or columns either way.
  const uint32_t a_address =
      SharedAddress(shared.a) + group_row / 64 * kPanelBytes;
  const uint32_t b_address =
      SharedAddress(shared.b) + group_column / 64 * kPanelBytes;
  const uint64_t a_descriptor = MatrixDescriptor(
      a_address, kProduct == Product::kOuter ? kPanelBytes : 16, 1024);
  const uint64_t b_descriptor = MatrixDescriptor(
      b_address, kProduct == Product::kLinear ? 16 : kPanelBytes, 1024);
  Ring<S::kStages> ring;
  [[maybe_unused]] unsigned stage = 0;
  const int count = tiles.Count();
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const Tile tile = tiles.Get(index);
    float sums[S::kGroupColumns / 2];
#pragma unroll
    for (int i = 0; i < S::kGroupColumns / 2; ++i) sums[i] = 0;
    int slot_before = -1;
    const Scales& scales = arguments.scales;
    const int first_row = tile.row + group_row + thread / 32 * 16 + lane / 4;
    // Rows after the last one read its scale, which is not used.
    const int scaled_rows[2] = {min(first_row, arguments.m - 1),
                                min(first_row + 8, arguments.m - 1)};
    for (int depth = tile.k_begin; depth < tile.k_end; depth += kDepth<In>) {
      float factors[2] = {1, 1};
      if (kIsScaled<In> && scales.blocks > 1) {
        // A tile's columns are within one block of scales.
        const float of_b = scales.OfB(tile.group, tile.column, depth);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factors[r] = scales.OfA(scaled_rows[r], depth) * of_b;
        }
      }
      int exponent = 127;
      if constexpr (kIsMx<In>) {
        const int column = tile.column + threadIdx.x / 2;
        const int block = depth / kMxBlock + threadIdx.x % 2;
        const int blocks = arguments.k / kMxBlock;
        if (column < arguments.n && block < blocks) {
          exponent = __ldg(
              &arguments.exponents[(tile.group * n + column) * blocks + block]);
        }
      }
      Wait(SharedAddress(&shared.full[ring.slot]), ring.parity);
      if constexpr (kProduct == Product::kOuter) {
        if (tile.k_end - depth < kDepth<In>) {
          ZeroRows<S>(tile.k_end - depth, ring.slot, shared);
        }
      }
      const uint64_t a =
          a_descriptor +
          (ring.slot * static_cast<int>(sizeof(shared.a[0])) >> 4);
      const uint64_t b =
          b_descriptor +
          (ring.slot * static_cast<int>(sizeof(shared.b[0])) >> 4);
      if constexpr (kIsScaled<In>) {
        float products[S::kGroupColumns / 2];
        MultiplyStage<In, kProduct>(products, a, b);
        WgmmaWait<0>();
        Pin(products);
        if (lane == 0) Arrive(SharedAddress(&shared.empty[ring.slot]));
#pragma unroll
        for (int i = 0; i < S::kGroupColumns / 2; ++i) {
          sums[i] += factors[i / 2 % 2] * products[i];
        }
      } else if constexpr (kIsMx<In>) {
        // This runs while the tensor cores multiply the previous stage.
        const int row = threadIdx.x / 2;
        uint8_t(&converted)[S::kColumns * 128] = shared.converted[stage % 2];
        Convert(
            reinterpret_cast<const uint4*>(shared.b[ring.slot])[threadIdx.x],
            exponent, threadIdx.x % 2, row, converted + row * 128);
        WgmmaWait<0>();
        if (slot_before >= 0 && lane == 0) {
          Arrive(SharedAddress(&shared.empty[slot_before]));
        }
        FenceAsyncProxy();
        if constexpr (S::kSharesRows) {
          SyncNamed(kConsumerBarrier, 256);
        } else {
          SyncNamed(kConsumerBarrier + warpgroup, 128);
        }
        MultiplyStage<T, kProduct>(
            sums, a,
            MatrixDescriptor(SharedAddress(converted) + group_column * 128, 16,
                             1024));
        slot_before = ring.slot;
        ++stage;
      } else {
        MultiplyStage<In, kProduct>(sums, a, b);
        if (slot_before >= 0) {
          WgmmaWait<1>();
          if (lane == 0) Arrive(SharedAddress(&shared.empty[slot_before]));
        }
        slot_before = ring.slot;
      }
      ring.Advance();
    }
    if constexpr (!kIsScaled<In>) {
      WgmmaWait<0>();
      Pin(sums);
      if (slot_before >= 0 && lane == 0) {
        Arrive(SharedAddress(&shared.empty[slot_before]));
      }
    } else if (scales.blocks == 1 && tile.k_end > 0) {
#pragma unroll
      for (int i = 0; i < S::kGroupColumns / 2; ++i) {
        const int column =
            tile.column + group_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        sums[i] *= scales.OfA(scaled_rows[i / 2 % 2], 0) *
                   scales.OfB(tile.group, min(column, arguments.n - 1), 0);
      }
    }

    T* out = static_cast<T*>(arguments.out);
    if (kProduct == Product::kOuter) out += tile.group * m * n;
    const int first_column = tile.column + group_column + lane % 4 * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + r * 8;
#pragma unroll
      for (int j = 0; j < S::kGroupColumns / 8; j += 4) {
        const auto word = [&](int w) {
          const float* sum = &sums[(j + w) * 4 + r * 2];
          return Pack<T>(sum[0], sum[1]);
        };
        const uint4 packet = TransposeQuad(word(0), word(1), word(2), word(3));
        const int column = first_column + j * 8;
        if (row < tile.row_end && column < arguments.n) {
          *reinterpret_cast<uint4*>(out + row * n + column) = packet;
        }
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename In, typename T, Product kProduct, typename S>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    Kernel(const __grid_constant__ Arguments arguments,
           const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t shared_bytes[];
  // The swizzle is a function of the address, so panels must begin at multiples
  // of 1 KB.
  auto& shared = *reinterpret_cast<typename S::Memory*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  Tiles<kProduct, S::kRows, S::kColumns> tiles{
      arguments, reinterpret_cast<int2*>(&shared + 1)};
  if (threadIdx.x < 32) {
    tiles.Prepare();
  } else if (threadIdx.x == 32) {
    if (arguments.k > 0) {
      PrefetchMap(&maps.a);
      PrefetchMap(&maps.b);
    }
    for (int i = 0; i < S::kStages; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), 8);  // warps
    }
    FenceBarrierInit();
  }
  __syncthreads();
  constexpr bool kMovesRegisters = S::kBlocks == 1 || !std::is_same_v<In, T>;
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 2) {
    if constexpr (kMovesRegisters) {
      asm volatile(
          "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers<S>::kProducer));
    }
    if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 8 && ElectOne()) {
      Produce<In, kProduct, S>(maps, tiles, shared);
    }
    return;
  }
  if constexpr (kMovesRegisters) {
    asm volatile(
        "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers<S>::kConsumer));
  }
  Consume<In, T, kProduct, S>(arguments, tiles, shared, warpgroup);
#endif
}

template <typename In, Product kProduct, typename S>
bool MakeMaps(const Arguments& arguments, Maps* maps) {
  const uint64_t m = arguments.m, n = arguments.n, k = arguments.k;
  const uint64_t groups = arguments.groups;
  constexpr CUtensorMapDataType kBytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUtensorMapDataType type =
      kIsScaled<In> ? kBytes : MapType(arguments.is_bf16);
  constexpr uint64_t kSize = kIsScaled<In> ? 1 : 2;
  constexpr uint32_t kBoxRows = S::kBoxRows, kColumns = S::kColumns;
  constexpr uint32_t kBoxDepth = kDepth<In>;
  const auto encode = [type](CUtensorMap* map, const void* data, uint64_t z,
                             uint64_t y, uint64_t x, uint32_t box_rows) {
    return EncodeMap(map, data, type, {x, y, z}, {x * kSize, y * x * kSize},
                     {kBoxDepth, box_rows, 1}) == CUDA_SUCCESS;
  };
  if constexpr (kIsMx<In>) {
    return encode(&maps->a, arguments.a, 1, m, k, kBoxRows) &&
           EncodeMap(&maps->b, arguments.b, kBytes, {k / 2, n, groups},
                     {k / 2, n * k / 2}, {32, kColumns, 1},
                     CU_TENSOR_MAP_SWIZZLE_NONE) == CUDA_SUCCESS;
  }
  switch (kProduct) {
    case Product::kMatmul:
      return encode(&maps->a, arguments.a, 1, m, k, kBoxRows) &&
             encode(&maps->b, arguments.b, groups, k, n, kBoxDepth);
    case Product::kLinear:
      return encode(&maps->a, arguments.a, 1, m, k, kBoxRows) &&
             encode(&maps->b, arguments.b, groups, n, k, kColumns);
    default:
      return encode(&maps->a, arguments.a, 1, k, m, kBoxDepth) &&
             encode(&maps->b, arguments.b, 1, k, n, kBoxDepth);
  }
}

template <typename In, typename T, Product kProduct, typename S>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   int multiprocessors) {
  // Without a depth there is nothing to copy, and a map cannot be made.
  Maps maps = {};
  if (arguments.k > 0 && !MakeMaps<In, kProduct, S>(arguments, &maps)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = Kernel<In, T, kProduct, S>;
  const int bytes = S::SharedBytes(arguments.groups);
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles = MaxTiles<kProduct>(arguments, S::kRows, S::kColumns);
  const int64_t grid =
      std::min<int64_t>(tiles, int64_t{multiprocessors} * S::kBlocks);
  kernel<<<static_cast<unsigned>(grid), kThreads, bytes, stream>>>(arguments,
                                                                   maps);
  return cudaGetLastError();
}

// The host knows the average number of rows only.
template <typename T, Product kProduct>
cudaError_t LaunchRows(cudaStream_t stream, const Arguments& arguments,
                       int multiprocessors) {
  const int rows = arguments.m / arguments.groups;
  const auto launch = rows < 96 ? Launch<T, T, kProduct, Small>
                      : rows < 384 && arguments.k < 1024
                          ? Launch<T, T, kProduct, Medium>
                          : Launch<T, T, kProduct, Large>;
  return launch(stream, arguments, multiprocessors);
}

template <typename S>
cudaError_t LaunchMx(cudaStream_t stream, const Arguments& arguments,
                     int multiprocessors) {
  return Launch<Mx, __nv_bfloat16, Product::kLinear, S>(stream, arguments,
                                                        multiprocessors);
}

template <typename T>
cudaError_t LaunchTyped(cudaStream_t stream, Product product,
                        const Arguments& arguments, int multiprocessors) {
  using F8 = __nv_fp8_e4m3;
  const bool is_scaled = arguments.scales.a != nullptr;
  const bool is_small = arguments.m / arguments.groups < 96;
  if (arguments.exponents != nullptr) {
    return (is_small ? LaunchMx<SmallMx> : LaunchMx<LargeMx>)(stream, arguments,
                                                              multiprocessors);
  }
  const auto launch =
      is_scaled ? (is_small ? Launch<F8, T, Product::kLinear, Small>
                            : Launch<F8, T, Product::kLinear, LargeScaled>)
      : product == Product::kMatmul ? LaunchRows<T, Product::kMatmul>
      : product == Product::kLinear ? LaunchRows<T, Product::kLinear>
                                    : Launch<T, T, Product::kOuter, Large>;
  return launch(stream, arguments, multiprocessors);
}

}  // namespace

cudaError_t LaunchSm90(cudaStream_t stream, Product product,
                       const Arguments& arguments, int multiprocessors) {
  return (arguments.is_bf16 ? LaunchTyped<__nv_bfloat16>
                            : LaunchTyped<__half>)(stream, product, arguments,
                                                   multiprocessors);
}

}  // namespace torch_xla_ext::grouped_matmul
