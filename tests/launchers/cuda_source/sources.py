"""Kernels that this folder's tests compile, and the attributes of traced calls."""

import re
import struct

from testing.xla import hlo
from torch import Tensor

SQUARE = """
__global__ void square(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * x[i];
}
"""
SCALE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace own {
template <typename T, int kFactor>
__global__ void scale(const T* __restrict__ x, T* __restrict__ out, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    out[i] = static_cast<T>(kFactor) * x[i];
  }
}
}  // namespace own
"""
ADD_TO = """
struct Range { int begin, end; };
extern "C" __global__ void add_to(float* state, const float* x, float factor, Range range,
                                  unsigned char flag) {
  int i = range.begin + threadIdx.x;
  if (i < range.end && flag) state[i] += factor * x[i];
}
"""


def attributes(*tensors: Tensor) -> dict[str, str]:
    """The attributes of the graph's only call, as in the HLO."""
    (line,) = [line for line in hlo(*tensors).splitlines() if " custom-call(" in line]
    assert 'custom_call_target="XlaGpuCompiledKernel"' in line
    text = line.replace('\\"', '"')
    found = dict(re.findall(r'(\w+) = ("[^"]*"|array<[^>]*>|[\w.]+)', text))
    found["aliases"] = (re.findall(r"output_to_operand_aliasing=\{(.*?)\}(?:,|$)", line) or [""])[0]
    return found


def parameters(*tensors: Tensor) -> list[str]:
    return attributes(*tensors)["parameters"].strip('"').split()


def i32(number: int) -> str:
    return "x" + struct.pack("<i", number).hex()


def i64(number: int) -> str:
    return "x" + struct.pack("<q", number).hex()


def f32(number: float) -> str:
    return "x" + struct.pack("<f", number).hex()
