// The computing half of the Hopper kernel: products, softmax and results of the
// tiles that the other half copies.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_CONSUMER_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_CONSUMER_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/common/wgmma.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_producer.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"

namespace torch_xla_ext::ragged::sm90 {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The stages from which the tensor cores read the keys.
template <Products kProducts>
__device__ inline auto& KeyStages(Memory<kProducts>& shared) {
  if constexpr (kProducts == Products::kF8) {
    return shared.narrow.stages[0];
  } else {
    return shared.stages[0];
  }
}
template <Products kProducts>
__device__ inline const uint8_t* KeyTiles(Memory<kProducts>& shared) {
  if constexpr (kProducts == Products::kF8) {
    return shared.narrow.kv[0][0];
  } else {
    return shared.kv[0][0];
  }
}

// Run by a warpgroup: computes its 64 rows of each tile.
template <typename T, Products kProducts, bool kSoftCap>
__device__ inline void Consume(const Arguments& arguments, const Split& split,
                               Memory<kProducts>& shared, int warpgroup) {
  constexpr bool kF8 = kProducts == Products::kF8;
  // The dtype of values and weights.
  using V = std::conditional_t<kProducts == Products::kSame, T, __half>;
  constexpr int kStages = Memory<kProducts>::kStages;
  constexpr int kKeyBytes = kF8 ? kNarrowBytes : kKvBytes;
  auto& key_stages = KeyStages<kProducts>(shared);
  auto& value_stages = shared.stages[1];
  uint64_t* const q_full = kF8 ? shared.narrow_q_full() : &shared.q_full;
  uint64_t* const q_empty = kF8 ? shared.narrow_q_empty() : &shared.q_empty;
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const float input_scale = arguments.logit_scale * kLog2e;
  const float cap_factor = kSoftCap ? 2 * input_scale / arguments.soft_cap : 0;
  const float cap = arguments.soft_cap * kLog2e;
  // The scale of the logits after the soft cap, to the base 2.
  const float scale = kSoftCap ? 1.0f : input_scale;
  const unsigned window = arguments.sliding_window;
  const int box_tokens = min(arguments.page_size, kTokens);

  const uint64_t q_descriptor =
      MatrixDescriptor(SharedAddress(kF8 ? shared.narrow_q() : shared.q) +
                           warpgroup * (64 * 128),
                       16, 1024);
  const uint64_t k_descriptor =
      MatrixDescriptor(SharedAddress(KeyTiles<kProducts>(shared)), 16, 1024);
  const uint64_t v_descriptor =
      MatrixDescriptor(SharedAddress(shared.kv[1]), kTokens * 128, 1024);

  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;
  Ring<kStages> k_ring, v_ring;
  auto release = [&](uint64_t* barrier) {
    if (lane == 0) Arrive(SharedAddress(barrier));
  };

  if (warpgroup == 1) ArriveNamed(kTurnBarrier, 256);
  while (true) {
    const Tile tile = TakeTile(shared, tile_ring);
    if (tile.is_last) break;

    // Each thread has rows `row` and `row` + 8 of the tile.
    const int first_row = warpgroup * 64;
    const int row = first_row + thread / 32 * 16 + lane / 4;
    const int group = arguments.group_size;
    const int step = tile.position_step;
    const int min_position = tile.position + first_row / group * step;
    const int max_position =
        tile.position + (min(first_row + 64, tile.num_rows) - 1) / group * step;
    const int position[2] = {tile.position + row / group * step,
                             tile.position + (row + 8) / group * step};

    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};
    float out[kHeadDim / 2];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0;

    if (tile.kv_begin < tile.kv_end && first_row >= tile.num_rows) {
      // This warpgroup has no rows, but the other one has: let the copies
      // continue.
      for (int n = tile.kv_begin; n < tile.kv_end; ++n) {
        Wait(SharedAddress(&key_stages.full[k_ring.slot]), k_ring.parity);
        release(&key_stages.empty[k_ring.slot]);
        k_ring.Advance();
        Wait(SharedAddress(&value_stages.full[v_ring.slot]), v_ring.parity);
        release(&value_stages.empty[v_ring.slot]);
        v_ring.Advance();
      }
      Wait(SharedAddress(q_full), q_ring.parity);
      release(q_empty);
      q_ring.Advance();
    } else if (tile.kv_begin < tile.kv_end) {
      const bool turns = tile.num_rows > 64;
      float s[kTokens / 2];
      uint32_t p[kTokens / 4];
      float rescale[2];

      auto issue_qk = [&] {
        const uint64_t k = k_descriptor + (k_ring.slot * kKeyBytes >> 4);
        Pin(s);
        WgmmaFence();
        if constexpr (kF8) {
#pragma unroll
          for (int i = 0; i < kHeadDim / 32; ++i) {
            Wgmma<__nv_fp8_e4m3>(s, q_descriptor + (i * 32 >> 4),
                                 k + (i * 32 >> 4), i != 0);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kHeadDim / 16; ++i) {
            Wgmma<T>(s,
                     q_descriptor + (i / 4 * (kRows * 128) + i % 4 * 32 >> 4),
                     k + (i / 4 * (kTokens * 128) + i % 4 * 32 >> 4), i != 0);
          }
        }
        WgmmaCommit();
      };
      auto issue_pv = [&] {
        const uint64_t v = v_descriptor + (v_ring.slot * kKvBytes >> 4);
        Pin(out);
        Pin(p);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kTokens / 16; ++i) {
          WgmmaRegisters<V>(out, p[4 * i], p[4 * i + 1], p[4 * i + 2],
                            p[4 * i + 3], v + (i * 2048 >> 4), true);
        }
        WgmmaCommit();
      };
      // Whether any logits of tile n must be masked.
      auto needs_mask = [&](int n, uint32_t bad_pages) {
        const int begin = n * kTokens;
        return begin + kTokens - 1 > min_position ||
               begin + static_cast<int64_t>(window) <= max_position ||
               bad_pages != 0;
      };
      // Masks tile n of the logits, and computes their new maximum and
      // exponentials.
      auto softmax = [&](auto masked, int n, uint32_t bad_pages) {
        if constexpr (kSoftCap) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            s[i] = SoftCap(s[i], cap_factor, cap);
          }
        }
        if constexpr (decltype(masked)::value) {
          const int begin = n * kTokens + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int column = i / 4 * 8 + i % 2;
            const unsigned distance = position[i % 4 / 2] - begin - column;
            if (distance >= window) s[i] = -INFINITY;
          }
          if (bad_pages != 0) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) {
              if (bad_pages >> (i / 4 * 8 / box_tokens) & 1) s[i] = -INFINITY;
            }
          }
        }
        // Two independent maxima per row, so that fewer comparisons wait for
        // each other.
        float new_max[2][2] = {{row_max[0], s[0]}, {row_max[1], s[2]}};
#pragma unroll
        for (int i = 0; i < kTokens / 2; i += 2) {
          float& partial = new_max[i / 2 % 2][i / 4 % 2];
          partial = fmaxf(partial, fmaxf(s[i], s[i + 1]));
        }
        float base[2], sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float row = fmaxf(new_max[r][0], new_max[r][1]);
          row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
          row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
          // Keep the old maximum unless the new one is larger by a factor of
          // 2^8. Weights of up to 2^8 do no harm, and sums are seldom rescaled.
          const float old = row_max[r];
          row_max[r] = (row - old) * scale > 8.0f ? row : old;
          // All terms of a row are zero until it has seen a token.
          base[r] = row_max[r] == -INFINITY ? 0 : row_max[r] * scale;
          rescale[r] = Exp2(old * scale - base[r]);
          if (row_max[r] == old) rescale[r] = 1;
        }
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
          s[i] = Exp2(s[i] * scale - base[i / 2 % 2]);
          sum[i / 2 % 2] += s[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          row_sum[r] = row_sum[r] * rescale[r] + sum[r];
        }
      };
      auto pack = [&] {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) {
          p[i] = Pack<V>(s[2 * i], s[2 * i + 1]);
        }
      };

      Wait(SharedAddress(q_full), q_ring.parity);
      int n = tile.kv_end - 1;
      Wait(SharedAddress(&key_stages.full[k_ring.slot]), k_ring.parity);
      uint32_t bad_pages = key_stages.bad_pages[k_ring.slot];
      issue_qk();
      WgmmaWait<0>();
      Pin(s);
      release(&key_stages.empty[k_ring.slot]);
      k_ring.Advance();
      softmax(std::true_type(), n, bad_pages);
      pack();
      // Zeroes the values [first, last) of a tile: memory before the window or
      // after the last token may hold NaN, and 0 * NaN is NaN.
      auto zero_values = [&](int first, int last) {
        if (first >= last) return;
        Wait(SharedAddress(&value_stages.full[v_ring.slot]), v_ring.parity);
        uint8_t* v = shared.kv[1][v_ring.slot];
        for (int i = first * 8 + thread; i < last * 8; i += 128) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            *reinterpret_cast<uint4*>(v + half * (kTokens * 128) + i * 16) =
                make_uint4(0, 0, 0, 0);
          }
        }
        FenceAsyncProxy();
        SyncNamed(kGroupBarrier + warpgroup, 128);
      };
      zero_values(tile.kv_len - n * kTokens, kTokens);
      auto step = [&](auto masked) {
        if (turns) SyncNamed(kTurnBarrier + warpgroup, 256);
        issue_qk();
        Wait(SharedAddress(&value_stages.full[v_ring.slot]), v_ring.parity);
        issue_pv();
        if (turns) ArriveNamed(kTurnBarrier + (warpgroup ^ 1), 256);
        WgmmaWait<1>();
        Pin(s);
        release(&key_stages.empty[k_ring.slot]);
        k_ring.Advance();
        softmax(masked, n, bad_pages);
        // Sums are never negative. The check keeps ptxas from moving the wait
        // above the exponentials, which should overlap with the products.
        if (row_sum[0] + row_sum[1] < 0) __trap();
        WgmmaWait<0>();
        Pin(out);
        release(&value_stages.empty[v_ring.slot]);
        v_ring.Advance();
        pack();
        if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
          for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= rescale[i % 4 / 2];
        }
      };
      for (--n; n >= tile.kv_begin; --n) {
        Wait(SharedAddress(&key_stages.full[k_ring.slot]), k_ring.parity);
        bad_pages = key_stages.bad_pages[k_ring.slot];
        if (needs_mask(n, bad_pages)) {
          step(std::true_type());
        } else {
          step(std::false_type());
        }
      }
      release(q_empty);
      q_ring.Advance();
      Wait(SharedAddress(&value_stages.full[v_ring.slot]), v_ring.parity);
      zero_values(0, max(tile.position, 0) - arguments.sliding_window + 1 -
                         tile.kv_begin * kTokens);
      issue_pv();
      WgmmaWait<0>();
      Pin(out);
      release(&value_stages.empty[v_ring.slot]);
      v_ring.Advance();
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 1);
      row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 2);
    }
    if (tile.num_parts > 1) {
      if (first_row < tile.num_rows) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int this_row = row + r * 8;
          if (this_row >= tile.num_rows) continue;
          float* part = PartsOf(arguments, split, tile.place + this_row / group,
                                tile.kv_head) +
                        tile.part * split.part_size;
#pragma unroll
          for (int i = 0; i < kHeadDim / 8; ++i) {
            const int column = i * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(part + this_row % group * kHeadDim +
                                       column) =
                make_float2(out[i * 4 + r * 2], out[i * 4 + r * 2 + 1]);
          }
          *reinterpret_cast<float2*>(part + group * kHeadDim +
                                     this_row % group * 2) =
              make_float2(row_max[r] * scale, row_sum[r]);
        }
        if (split.has_combine_kernel) continue;
        __threadfence();
        SyncNamed(kGroupBarrier + warpgroup, 128);
        if (thread == 0) {
          const int64_t pair =
              int64_t{1} * tile.slot * arguments.num_kv_heads + tile.kv_head;
          shared.is_last_part[warpgroup] =
              atomicAdd(split.arrivals + pair * 2 + warpgroup, 1) ==
              static_cast<unsigned>(tile.num_parts - 1);
        }
        SyncNamed(kGroupBarrier + warpgroup, 128);
        if (shared.is_last_part[warpgroup]) {
          __threadfence();
          CombineParts<T, kHeadDim>(arguments, split, tile.place, tile.kv_head,
                                    tile.num_parts, tile.q_row, first_row,
                                    min(first_row + 64, tile.num_rows), thread);
        }
      }
      continue;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int this_row = row + r * 8;
      const bool exists = this_row < tile.num_rows;
      const int64_t out_row =
          static_cast<int64_t>(tile.q_row + this_row / group) *
              arguments.num_q_heads +
          tile.kv_head * group + this_row % group;
      const float factor = Finish(arguments, out_row, exists && lane % 4 == 0,
                                  row_max[r] * scale, row_sum[r]);
      T* to =
          static_cast<T*>(arguments.out) + out_row * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; i += 4) {
        auto word = [&](int j) {
          const int at = (i + j) * 4 + r * 2;
          return Pack<T>(out[at] * factor, out[at + 1] * factor);
        };
        const uint4 packet = TransposeQuad(word(0), word(1), word(2), word(3));
        if (exists) *reinterpret_cast<uint4*>(to + i * 8) = packet;
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_CONSUMER_CUH_
