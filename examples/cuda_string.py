"""A CUDA kernel in a Python string, as an operator of PyTorch.

    PJRT_DEVICE=CPU python examples/cuda_string.py

On a GPU, NVRTC compiles the kernel and XLA launches it. On the CPU, the reference computes the
results. See docs/own_kernel.md. GELU: Hendrycks and Gimpel, arXiv:1606.08415.
"""

import torch
import torch_xla

import torch_xla_ext

SOURCE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void gelu(const T* x, T* out, int64_t size) {
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float value = x[i];
  out[i] = 0.5f * value * (1.0f + erff(value * 0.70710678f));
}
"""

gelu = torch_xla_ext.cuda_kernel(
    SOURCE,
    "gelu<{T}>",
    signature="Gelu(x: T[*shape]) -> (out: T[*shape]) where T: F32 | F16 | BF16",
    arguments="x out x.size",  # the arguments of the kernel's parameters
    grid=lambda call: -(-call["x"].size // 256),
    block=256,
    reference=lambda x: torch.nn.functional.gelu(x.float()).to(x.dtype),
)
torch_xla_ext.define_operator("cuda_string::gelu(Tensor x) -> Tensor", target=gelu)


def main() -> None:
    device = torch_xla.device()
    compiled = torch.compile(torch.ops.cuda_string.gelu, backend="openxla")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(16, 300).to(dtype)
        expected = torch.nn.functional.gelu(x)
        for function in (torch.ops.cuda_string.gelu, compiled):
            torch.testing.assert_close(function(x.to(device)).cpu(), expected)
    print("gelu: as PyTorch's, also under torch.compile")


if __name__ == "__main__":
    main()
