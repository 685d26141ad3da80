"""Compare the configuration that cuda_kernel chooses with the best of an exhaustive search.

    PJRT_DEVICE=CUDA python benchmarks/tuning.py

Three kernels, each with its configurations, in float32: a transposition, a softmax of rows, and a
matmul. The search times each configuration in XLA programs of chained calls. It then prints the
configuration that `configs=` chooses with its own timing, and how much slower it is in the programs
than the best one. The last line is OK if it is at most 3% for all three.
"""

from __future__ import annotations

import os
import tempfile
import time

os.environ["TORCH_XLA_EXT_KERNEL_CACHE"] = tempfile.mkdtemp()  # no earlier choices

import torch
import torch_xla

import torch_xla_ext

CHAINED = 20
PROGRAMS = 20
ROUNDS = 5
LIMIT = 1.03

TRANSPOSE = """
template <int kTile, int kRows>
__global__ void transposed(const float* x, float* out, int n) {
  __shared__ float tile[kTile][kTile + 1];
  int column = blockIdx.x * kTile + threadIdx.x;
  int row = blockIdx.y * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows) {
    tile[threadIdx.y + i][threadIdx.x] = x[(row + i) * n + column];
  }
  __syncthreads();
  column = blockIdx.y * kTile + threadIdx.x;
  row = blockIdx.x * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows) {
    out[(row + i) * n + column] = tile[threadIdx.x][threadIdx.y + i];
  }
}
"""
SOFTMAX = """
template <int kBlock>
__device__ float reduced(float value, float* shared, bool largest) {
  for (int i = 16; i > 0; i /= 2) {
    float other = __shfl_xor_sync(~0u, value, i);
    value = largest ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int i = 1; i < kBlock / 32; ++i) {
    value = largest ? fmaxf(value, shared[i]) : value + shared[i];
  }
  __syncthreads();
  return value;
}
template <int kBlock>
__global__ void __launch_bounds__(kBlock) softmax(const float* x, float* out, int n) {
  __shared__ float shared[32];
  x += int64_t{blockIdx.x} * n;
  out += int64_t{blockIdx.x} * n;
  float most = -1e30f, sum = 0;
  for (int i = threadIdx.x; i < n; i += kBlock) most = fmaxf(most, x[i]);
  most = reduced<kBlock>(most, shared, true);
  for (int i = threadIdx.x; i < n; i += kBlock) sum += __expf(x[i] - most);
  sum = reduced<kBlock>(sum, shared, false);
  for (int i = threadIdx.x; i < n; i += kBlock) out[i] = __expf(x[i] - most) / sum;
}
"""
PRODUCT = """
template <int kTile, int kDepth, int kEach>
__global__ void product(const float* a, const float* b, float* out, int n) {
  constexpr int kSide = kTile / kEach;
  __shared__ float left[kDepth][kTile], right[kDepth][kTile];
  int row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  int thread = threadIdx.y * kSide + threadIdx.x;
  float sums[kEach][kEach] = {};
  for (int k = 0; k < n; k += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kSide * kSide) {
      left[i % kDepth][i / kDepth] = a[(row + i / kDepth) * n + k + i % kDepth];
      right[i / kTile][i % kTile] = b[(k + i / kTile) * n + column + i % kTile];
    }
    __syncthreads();
    for (int d = 0; d < kDepth; ++d) {
      for (int i = 0; i < kEach; ++i) {
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] += left[d][threadIdx.y * kEach + i] * right[d][threadIdx.x * kEach + j];
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    for (int j = 0; j < kEach; ++j) {
      out[(row + threadIdx.y * kEach + i) * n + column + threadIdx.x * kEach + j] = sums[i][j];
    }
  }
}
"""


def transposed(configs: list[dict[str, int]]) -> torch_xla_ext.CudaKernel:
    return torch_xla_ext.cuda_kernel(
        TRANSPOSE,
        "transposed<{TILE}, {ROWS}>",
        signature="(x: F32[n, n]) -> (out: F32[n, n])",
        grid=lambda call: (call["n"] // call["TILE"],) * 2,
        block=lambda call: (call["TILE"], call["ROWS"]),
        configs=configs,
        reference=lambda x: x.t(),
    )


def softmax(configs: list[dict[str, int]]) -> torch_xla_ext.CudaKernel:
    return torch_xla_ext.cuda_kernel(
        SOFTMAX,
        "softmax<{BLOCK}>",
        signature="(x: F32[rows, n]) -> (out: F32[rows, n])",
        grid=lambda call: call["rows"],
        block=lambda call: call["BLOCK"],
        configs=configs,
        reference=lambda x: torch.softmax(x, 1),
    )


def product(configs: list[dict[str, int]]) -> torch_xla_ext.CudaKernel:
    return torch_xla_ext.cuda_kernel(
        PRODUCT,
        "product<{TILE}, {DEPTH}, {EACH}>",
        signature="(a: F32[n, n], b: F32[n, n]) -> (out: F32[n, n])",
        grid=lambda call: (call["n"] // call["TILE"],) * 2,
        block=lambda call: (call["TILE"] // call["EACH"],) * 2,
        configs=configs,
        reference=lambda a, b: a @ b,
    )


KERNELS = {
    "transposed": (
        transposed,
        [{"TILE": t, "ROWS": r} for t in (16, 32, 64) for r in (4, 8, 16) if t * r <= 1024],
        (4096, 4096),
        1,
    ),
    "softmax": (
        softmax,
        [{"BLOCK": block} for block in (32, 64, 128, 256, 512, 1024)],
        (2048, 3072),
        1,
    ),
    "product": (
        product,
        [
            {"TILE": t, "DEPTH": d, "EACH": e}
            for t in (32, 64, 128)
            for d in (8, 16)
            for e in (2, 4, 8)
            if (t // e) ** 2 <= 1024 and t // e >= 8
        ],
        (1024, 1024),
        2,
    ),
}


def seconds(kernel: torch_xla_ext.CudaKernel, shape: tuple[int, int], operands: int) -> float:
    """Time one call, in programs of chained calls."""
    x = torch.randn(shape).to("xla")
    others = [(torch.randn(shape) / shape[1] ** 0.5).to("xla") for _ in range(operands - 1)]
    torch_xla.sync()

    def run(count: int) -> float:
        torch_xla._XLAC._xla_wait_device_ops([])
        begin = time.perf_counter()
        for _ in range(count):
            y = x
            for _ in range(CHAINED):
                (y,) = kernel(y, *others)
            torch_xla._XLAC._xla_sync_multi([y], [], False, True)
        torch_xla._XLAC._xla_wait_device_ops([])
        return (time.perf_counter() - begin) / count / CHAINED

    run(2)  # compiles
    return min(run(PROGRAMS) for _ in range(ROUNDS))


def main() -> None:
    worst = 0.0
    for name, (made, configs, shape, operands) in KERNELS.items():
        kernel = made(configs)
        inputs = [torch.randn(shape).to("xla") for _ in range(operands)]
        begin = time.perf_counter()
        (out,) = kernel(*inputs)
        took = time.perf_counter() - begin
        expected = kernel.calls._reference(*(each.cpu().double() for each in inputs))
        torch.testing.assert_close(out.cpu().double(), expected, atol=1e-2, rtol=1e-2)
        (chosen,) = kernel.calls.variants._choices.values()
        times = {i: seconds(made([config]), shape, operands) for i, config in enumerate(configs)}
        ratio = times[chosen] / min(times.values())
        worst = max(worst, ratio)
        print(f"{name} of {list(shape)}: {len(configs)} configurations in {took:.2f} s")
        for i, config in sorted(enumerate(configs), key=lambda each: times[each[0]]):
            mark = "  <- chosen" if i == chosen else ""
            print(f"  {times[i] * 1e6:9.2f} us  {config}{mark}")
        print(f"  {ratio:.4f} x the best of an exhaustive search", flush=True)
    print("OK" if worst <= LIMIT else f"more than {LIMIT} x")


if __name__ == "__main__":
    main()
