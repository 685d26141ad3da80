"""A product of bfloat16 inputs with weights in MXFP4, as an operator of PyTorch.

    PJRT_DEVICE=CPU python examples/mxfp4_product.py

MXFP4 is defined in the OCP Microscaling Formats (MX) Specification 1.0: blocks of 32 4-bit values
(E2M1), each block with a power of two as its scale (E8M0). The kernel reads the weights once, 4.25
bits each, and suits few rows of inputs, as in decoding. On the CPU the reference computes the
result.
"""

import torch
import torch_xla

import torch_xla_ext

BLOCK = 32  # values with one scale
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat([VALUES, -VALUES])  # the values of the 16 codes

SOURCE = """
#include <cuda_bf16.h>

__device__ float ScaleOf(unsigned char e) {
  if (e == 0) return __int_as_float(0x00400000);    // 2^-127
  if (e == 255) return __int_as_float(0x7fffffff);  // NaN
  return __int_as_float(e << 23);                   // 2^(e - 127)
}

// Twice the value of a code: the values are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives.
__device__ float TwiceValueOf(unsigned code) {
  unsigned magnitude = code & 7, exponent = magnitude >> 1, mantissa = magnitude & 1;
  float value = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
  return code & 8 ? -value : value;
}

// A warp computes an element of the result; each lane takes every 32nd block.
template <int kWarps>
__global__ void __launch_bounds__(32 * kWarps)
    product(const __nv_bfloat16* x, const unsigned char* weight, const unsigned char* scale,
            __nv_bfloat16* out, int n, int blocks) {
  int column = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (column >= n) return;
  int64_t row = blockIdx.y;
  float sum = 0;
  for (int b = lane; b < blocks; b += 32) {
    int64_t of_weight = int64_t{column} * blocks + b;
    uint4 codes = reinterpret_cast<const uint4*>(weight)[of_weight];
    const uint4* inputs = reinterpret_cast<const uint4*>(x) + (row * blocks + b) * 4;
    float partial = 0;
    for (int i = 0; i < 4; ++i) {  // eight values: 32 bits of codes
      unsigned word = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
      uint4 eight = inputs[i];
      const __nv_bfloat16* values = reinterpret_cast<const __nv_bfloat16*>(&eight);
      for (int j = 0; j < 8; ++j) {
        partial += __bfloat162float(values[j]) * TwiceValueOf(word >> (4 * j) & 15);
      }
    }
    sum += partial * 0.5f * ScaleOf(scale[of_weight]);
  }
  for (int i = 16; i > 0; i /= 2) sum += __shfl_down_sync(~0u, sum, i);
  if (lane == 0) out[row * n + column] = __float2bfloat16(sum);
}
"""


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights in MXFP4.

    Args:
        weight: [n, k] of floats, k a multiple of 32.

    Returns:
        Codes, uint8 [n, k / 2] with two a byte, the first one in the low bits; and the scales'
        exponents, uint8 [n, k / 32].
    """
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(2, keepdim=True).clamp(min=2.0**-120)
    exponent = torch.floor(torch.log2(largest)) - 2  # the largest value is 6, of exponent 2
    scaled = blocks / torch.exp2(exponent)
    codes = (scaled[..., None] - VALUES).abs().argmin(-1).flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent[..., 0] + 127).to(torch.uint8)


def dequantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Decode the codes and exponents to float32 [n, k]."""
    codes = torch.stack([weight & 15, weight >> 4], 2).flatten(1)
    values = VALUES.to(weight.device)[codes.long()].unflatten(1, (-1, BLOCK))
    return (values * torch.exp2(scale.float() - 127)[..., None]).flatten(1)


def reference(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() @ dequantize(weight, scale).t()).to(x.dtype)


product = torch_xla_ext.cuda_kernel(
    SOURCE,
    "product<{WARPS}>",
    # k is 32 * blocks. torch_xla has no tensors of the small types; bytes stand for them.
    signature="Mxfp4Product(x: BF16[m, 32 * blocks], weight: F4E2M1FNX2[n, 16 * blocks], "
    "scale: F8E8M0FNU[n, blocks]) -> (out: BF16[m, n]) where m: 1..65535",
    arguments="x weight scale out n blocks",
    grid=lambda call: (-(-call["n"] // call["WARPS"]), call["m"]),
    block=lambda call: 32 * call["WARPS"],
    configs=[{"WARPS": 2}, {"WARPS": 4}, {"WARPS": 8}],
    reference=reference,
)
torch_xla_ext.define_operator(
    "mxfp4::product(Tensor x, Tensor weight, Tensor scale) -> Tensor",
    target=product,
    environment=[],
    sharding_rule="m _, n _, n _ -> m n",
)


def main() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 512).bfloat16(), torch.randn(300, 512)
    codes, scale = quantize(weight)
    expected = x.float() @ dequantize(codes, scale).t()
    out = torch.ops.mxfp4.product(x.to("xla"), codes.to("xla"), scale.to("xla"))
    torch.testing.assert_close(out.cpu().float(), expected, atol=0.2, rtol=1e-2)
    error = (dequantize(codes, scale) - weight).norm() / weight.norm()
    print(f"mxfp4: as the reference; the weights' relative error is {error:.3f}")
    print(torch_xla.runtime.device_type())


if __name__ == "__main__":
    main()
