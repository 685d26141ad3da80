// The kernel for groups of few rows, a part of few.cu. It is bound by the speed
// of loading weights, so it keeps as many loads as possible in flight.
#ifndef KERNELS_GROUPED_MATMUL_FEW_CUH_
#define KERNELS_GROUPED_MATMUL_FEW_CUH_

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/grouped_matmul/groups.cuh"

namespace torch_xla_ext::grouped_matmul::few {

template <typename W>
inline constexpr bool kIsMx = std::is_same_v<W, Mx>;
// In each step, a warp takes 64 bytes of each of its rows of w. A lane has 16
// of them: one block of MXFP4, or 8 elements of 16 bits.
inline constexpr int kStepBytes = 64;
template <typename W>
inline constexpr int kDepth = kIsMx<W> ? 4 * kMxBlock : kStepBytes / 2;

// The tensor cores' first operand is w: a warp multiplies 16 * kColumnParts
// rows of it, columns of the results, by 8 * kRowParts rows of x. kDepthWarps
// share a sum: each takes the next step. kColumnWarps share a copy of x.
template <int kColumnParts_, int kRowParts_, int kColumnWarps_,
          int kDepthWarps_, int kStages_>
struct Shape {
  static constexpr int kColumnParts = kColumnParts_, kRowParts = kRowParts_;
  static constexpr int kColumnWarps = kColumnWarps_, kDepthWarps = kDepthWarps_;
  static constexpr int kStages = kStages_;
  static constexpr int kRows = 8 * kRowParts;
  static constexpr int kWarpColumns = 16 * kColumnParts;
  static constexpr int kColumns = kWarpColumns * kColumnWarps;
  static constexpr int kWarps = kColumnWarps * kDepthWarps;
  static constexpr int kThreads = 32 * kWarps;
};

template <typename W, typename S>
struct Memory {
  // Each lane reads only what it has copied: of w, a chunk of one of 8 rows; of
  // x, every eighth chunk.
  uint4 w[S::kWarps][S::kStages][2 * S::kColumnParts][32];
  uint4 x[S::kDepthWarps][S::kStages][S::kRows][kDepth<W> / 8];
  // The four exponents of each row, at any offset within 8 bytes.
  uint32_t exponents[S::kWarps][S::kStages][kIsMx<W> ? S::kWarpColumns : 1][2];
  float sums[S::kDepthWarps][S::kRows][S::kColumns + 4];
};

template <typename W, typename S>
int SharedBytes(int groups) {
  return static_cast<int>(sizeof(Memory<W, S>)) +
         NumSegmentEntries(groups) * static_cast<int>(sizeof(int2));
}

__device__ inline uint32_t MultiplyPair(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
              reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(product);
}

// Decodes eight elements of MXFP4, the first in the lowest bits. `factor` is
// 2^126 times their scale. pairs[i] receives elements i and i + 4. The products
// with 0x1040 and 0x104 move an element's sign to bfloat16's sign bit, and a
// copy of its other bits to where they represent the value times 2^-126.
__device__ inline void Decode(uint32_t codes, uint32_t factor,
                              uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t moved = i < 2 ? codes : codes >> 8;
    const uint32_t bits = i % 2 == 0 ? (moved & 0x000f000fu) * 0x1040u
                                     : (moved & 0x00f000f0u) * 0x104u;
    pairs[i] = MultiplyPair(bits & 0x81c081c0u, factor);
  }
}

// Word j of a vector.
__device__ inline uint32_t Word(const uint4& vector, int j) {
  return j == 0 ? vector.x : j == 1 ? vector.y : j == 2 ? vector.z : vector.w;
}

// The source of a lane's next copy, and the remaining rows and bytes.
template <typename T>
struct Source {
  const uint8_t* w;
  const T* x;
  const uint8_t* exponents;
  int w_rows, x_rows, exponent_bytes;
  int at, x_at;  // byte offsets in rows of w and in the matching rows of x
};

// A warp's share of the block's work: its copies and its products.
template <typename W, typename T, typename S>
struct Warp {
  using Sums = float[S::kColumnParts][S::kRowParts][4];
  // The pieces of 16 bytes, 8 elements, of a row of x; a thread copies one.
  static constexpr int kChunks = kDepth<W> / 8;
  static constexpr int kRowsAtOnce = 32 * S::kColumnWarps / kChunks;

  const Arguments& arguments;
  Memory<W, S>& shared;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int column_warp = warp % S::kColumnWarps;
  const int depth_warp = warp / S::kColumnWarps;
  const int x_row = (column_warp * 32 + lane) / kChunks;
  const int x_chunk = (column_warp * 32 + lane) % kChunks;
  const int row_bytes = kIsMx<W> ? arguments.k / 2 : arguments.k * 2;  // of w
  const int blocks = arguments.k / kMxBlock;
  const uint32_t w_shared = SharedAddress(&shared.w[warp][0][0][lane]);
  const uint32_t x_shared =
      SharedAddress(&shared.x[depth_warp][0][x_row][Place(x_row, x_chunk)]);
  const uint32_t exponents_shared =
      SharedAddress(&shared.exponents[warp][0][lane / 2][lane % 2]);

  __device__ int64_t RowOfW(const Tile& tile, int row) const {
    return static_cast<int64_t>(tile.group) * arguments.n + tile.column +
           column_warp * S::kWarpColumns + row;
  }
  // The position of 8 elements in a row of x. It is permuted, so that lanes
  // that read x for MXFP4 at the same time hit different banks.
  __device__ static int Place(int row, int chunk) {
    return kIsMx<W> ? chunk ^ (chunk >> 3 | row % 2 << 1) : chunk;
  }

  // Waits for the warps that share a copy of x.
  __device__ void Sync() const {
    if constexpr (S::kColumnWarps == 1) {
      __syncwarp();
    } else {
      SyncNamed(1 + depth_warp, 32 * S::kColumnWarps);
    }
  }

  __device__ Source<T> Begin(const Tile& tile) const {
    Source<T> source = {};
    source.at = depth_warp * kStepBytes + lane % 4 * 16;
    source.w = static_cast<const uint8_t*>(arguments.b) +
               RowOfW(tile, lane / 4) * row_bytes + source.at;
    source.w_rows =
        arguments.n - tile.column - column_warp * S::kWarpColumns - lane / 4;
    source.x = static_cast<const T*>(arguments.a) +
               static_cast<int64_t>(tile.row + x_row) * arguments.k +
               depth_warp * kDepth<W> + x_chunk * 8;
    source.x_rows = min(tile.row_end - tile.row, S::kRows) - x_row;
    source.x_at = depth_warp * kStepBytes + x_chunk * kStepBytes / kChunks;
    if constexpr (kIsMx<W>) {
      const int64_t from = RowOfW(tile, lane / 2) * blocks + depth_warp * 4;
      const int64_t word = from / 4 * 4 + lane % 2 * 4;
      const int64_t size =
          static_cast<int64_t>(arguments.groups) * arguments.n * blocks;
      source.exponents = arguments.exponents + word;
      source.exponent_bytes =
          static_cast<int>(min(size - word, int64_t{1} << 30));
    }
    return source;
  }

  // Starts the copies of a step. Rows after the tile's last row stay
  // uninitialized; they affect no result.
  __device__ void Load(Source<T>& source, int slot) const {
    const bool exists = source.at < row_bytes;
    const uint32_t w =
        w_shared + slot * static_cast<int>(sizeof(shared.w[0][0]));
    const uint8_t* w_from = source.w;
#pragma unroll
    for (int i = 0; i < 2 * S::kColumnParts; ++i) {
      if (8 * i < source.w_rows) CopyAsync16(w + i * 512, w_from, exists);
      w_from += static_cast<int64_t>(row_bytes) * 8;
    }
    const uint32_t x =
        x_shared + slot * static_cast<int>(sizeof(shared.x[0][0]));
    const T* x_from = source.x;
#pragma unroll
    for (int i = 0; i < S::kRows; i += kRowsAtOnce) {
      if (i < source.x_rows) {
        CopyAsync16(x + i * kChunks * 16, x_from, source.x_at < row_bytes);
      }
      x_from += static_cast<int64_t>(arguments.k) * kRowsAtOnce;
    }
    if constexpr (kIsMx<W>) {
      const uint32_t to =
          exponents_shared +
          slot * static_cast<int>(sizeof(shared.exponents[0][0]));
      // Rows that are 16 apart begin at the same remainder.
#pragma unroll
      for (int i = 0; i < S::kColumnParts; ++i) {
        if (16 * i * blocks < source.exponent_bytes) {
          CopyAsync4(to + i * 128, source.exponents + 16 * i * blocks, true);
        }
      }
    }
    source.x_at += S::kDepthWarps * kStepBytes;
    source.w += S::kDepthWarps * kStepBytes;
    source.x += S::kDepthWarps * kDepth<W>;
    source.exponents += S::kDepthWarps * kStepBytes / 16;
    source.exponent_bytes -= S::kDepthWarps * kStepBytes / 16;
    source.at += S::kDepthWarps * kStepBytes;
  }

  // The offset of a tile's exponents in the words that contain them.
  __device__ int Remainder(const Tile& tile) const {
    return static_cast<int>(RowOfW(tile, lane / 4) * blocks % 4);
  }

  // Adds the products of a step, whose part of w's rows begins at `at`.
  __device__ void Multiply(int at, int remainder, int slot, Sums& sums) const {
    if (at >= row_bytes) return;
    if constexpr (kIsMx<W>) {
      const auto* const exponents =
          reinterpret_cast<const uint8_t*>(
              shared.exponents[warp][slot][lane / 4]) +
          remainder + lane % 4;
      uint32_t factors[2 * S::kColumnParts], all = 0;
#pragma unroll
      for (int i = 0; i < 2 * S::kColumnParts; ++i) {
        const uint32_t exponent = exponents[64 * i];
        all |= exponent;
        factors[i] = (exponent + 126) * 0x00800080u;
      }
      // A scale is 2^(exponent - 127). A large scale needs a second factor.
      // After the end of a row, any finite scale will do.
      if (__any_sync(~0u, all > 128)) {
        const bool exists = at / 16 + lane % 4 < blocks;
        MultiplyMx(slot, sums, [&](int i, uint32_t codes, uint32_t(&to)[4]) {
          const uint32_t exponent = exists ? exponents[64 * i] : 127;
          Decode(codes, (min(exponent, 128u) + 126) * 0x00800080u, to);
          const uint32_t more = exponent == 255
                                    ? 0x7fc07fc0u
                                    : (max(exponent, 128u) - 1) * 0x00800080u;
#pragma unroll
          for (uint32_t& pair : to) pair = MultiplyPair(pair, more);
        });
      } else {
        MultiplyMx(slot, sums, [&](int i, uint32_t codes, uint32_t(&to)[4]) {
          Decode(codes, factors[i], to);
        });
      }
    } else {
#pragma unroll
      for (int r = 0; r < S::kRowParts; ++r) {
        const uint4 x = shared.x[depth_warp][slot][r * 8 + lane / 4][lane % 4];
#pragma unroll
        for (int c = 0; c < S::kColumnParts; ++c) {
          const uint4 top = shared.w[warp][slot][2 * c][lane];
          const uint4 bottom = shared.w[warp][slot][2 * c + 1][lane];
          MultiplyAdd<T>(sums[c][r], {top.x, bottom.x, top.y, bottom.y},
                         {x.x, x.y});
          MultiplyAdd<T>(sums[c][r], {top.z, bottom.z, top.w, bottom.w},
                         {x.z, x.w});
        }
      }
    }
  }

  template <typename Decoder>
  __device__ void MultiplyMx(int slot, Sums& sums,
                             const Decoder& decode) const {
    uint4 codes[2 * S::kColumnParts];
#pragma unroll
    for (int i = 0; i < 2 * S::kColumnParts; ++i) {
      codes[i] = shared.w[warp][slot][i][lane];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t right[S::kRowParts][4];  // the pairs of Decode
#pragma unroll
      for (int r = 0; r < S::kRowParts; ++r) {
        const int row = r * 8 + lane / 4;
        const uint4 x =
            shared.x[depth_warp][slot][row][Place(row, lane % 4 * 4 + j)];
        right[r][0] = __byte_perm(x.x, x.z, 0x5410);
        right[r][1] = __byte_perm(x.x, x.z, 0x7632);
        right[r][2] = __byte_perm(x.y, x.w, 0x5410);
        right[r][3] = __byte_perm(x.y, x.w, 0x7632);
      }
#pragma unroll
      for (int c = 0; c < S::kColumnParts; ++c) {
        uint32_t top[4], bottom[4];
        decode(2 * c, Word(codes[2 * c], j), top);
        decode(2 * c + 1, Word(codes[2 * c + 1], j), bottom);
#pragma unroll
        for (int r = 0; r < S::kRowParts; ++r) {
          MultiplyAdd<T>(sums[c][r], {top[0], bottom[0], top[1], bottom[1]},
                         {right[r][0], right[r][1]});
          MultiplyAdd<T>(sums[c][r], {top[2], bottom[2], top[3], bottom[3]},
                         {right[r][2], right[r][3]});
        }
      }
    }
  }
};

// T is the dtype of x and the results, W that of w.
template <typename W, typename T, typename S>
__global__ void __launch_bounds__(S::kThreads)
    Kernel(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Memory<W, S>*>(shared_bytes);
  Tiles<Product::kLinear, S::kRows, S::kColumns> tiles{
      arguments, reinterpret_cast<int2*>(&shared + 1)};
  if (threadIdx.x < 32) tiles.Prepare();
  __syncthreads();
  const Warp<W, T, S> warp{arguments, shared};
  const int count = tiles.Count();
  const int steps = CeilDiv(warp.row_bytes, kStepBytes * S::kDepthWarps);

  // Copies run ahead of products, into the tiles that follow.
  int next = blockIdx.x, next_step = 0;
  Source<T> source = {};
  const auto load = [&](int slot) {
    if (next < count) {
      if (next_step == 0) {
        Tile tile = tiles.template Get<true>(next);
        while (tile.k_end == 0 && (next += gridDim.x) < count) {
          tile = tiles.template Get<true>(next);
        }
        source = warp.Begin(tile);
      }
      if (next < count) warp.Load(source, slot);
      if (++next_step == steps) {
        next_step = 0;
        next += gridDim.x;
      }
    }
    CommitCopies();
  };
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) load(i);

  int slot = 0;
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const Tile tile = tiles.template Get<true>(index);
    float sums[S::kColumnParts][S::kRowParts][4] = {};
    if (tile.k_end > 0) {
      const int remainder = warp.Remainder(tile);
      int at = warp.depth_warp * kStepBytes;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        WaitForCopies<S::kStages - 2>();
        warp.Sync();
        load(slot == 0 ? S::kStages - 1 : slot - 1);
        warp.Multiply(at, remainder, slot, sums);
        at += S::kDepthWarps * kStepBytes;
        if (++slot == S::kStages) slot = 0;
      }
    }
    const int lane = warp.lane;
#pragma unroll
    for (int c = 0; c < S::kColumnParts; ++c) {
#pragma unroll
      for (int r = 0; r < S::kRowParts; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = r * 8 + lane % 4 * 2 + i % 2;
          const int column = warp.column_warp * S::kWarpColumns + c * 16 +
                             i / 2 * 8 + lane / 4;
          shared.sums[warp.depth_warp][row][column] = sums[c][r][i];
        }
      }
    }
    __syncthreads();
    T* const out = static_cast<T*>(arguments.out);
#pragma unroll
    for (int i = 0; i < S::kRows * S::kColumns; i += 2 * S::kThreads) {
      const int element = i + static_cast<int>(threadIdx.x) * 2;
      const int row = element / S::kColumns, column = element % S::kColumns;
      if (row < S::kRows && tile.row + row < tile.row_end &&
          tile.column + column < arguments.n) {
        float2 sum = {0, 0};
#pragma unroll
        for (int d = 0; d < S::kDepthWarps; ++d) {
          const auto part =
              *reinterpret_cast<const float2*>(&shared.sums[d][row][column]);
          sum.x += part.x;
          sum.y += part.y;
        }
        *reinterpret_cast<uint32_t*>(
            out + static_cast<int64_t>(tile.row + row) * arguments.n +
            tile.column + column) = Pack<T>(sum.x, sum.y);
      }
    }
    __syncthreads();
  }
}

}  // namespace torch_xla_ext::grouped_matmul::few

#endif  // KERNELS_GROUPED_MATMUL_FEW_CUH_
