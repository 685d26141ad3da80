"""Run a Triton kernel, residual addition and RMSNorm in one, inside an XLA program.

    PJRT_DEVICE=CPU python examples/launchers/triton_rms_norm.py

On a GPU Triton compiles it and XLA launches it. On the CPU Triton's interpreter runs it as a
reference. See docs/launchers.md. RMSNorm: Zhang and Sennrich, arXiv:1910.07467.
"""

import torch
import torch_xla
import triton
import triton.language as tl

import torch_xla_ext


@triton.jit
def add_rms_norm_kernel(  # noqa: ANN201
    x_ptr,  # noqa: ANN001
    residual_ptr,  # noqa: ANN001
    weight_ptr,  # noqa: ANN001
    normed_ptr,  # noqa: ANN001
    sum_ptr,  # noqa: ANN001
    columns,  # noqa: ANN001
    epsilon,  # noqa: ANN001
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    at = row * columns + offsets
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = x + tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(sum_ptr + at, total, mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / columns + epsilon)
    weight = tl.load(weight_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed_ptr + at, total * scale * weight, mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> list[torch.Tensor]:
    """Return the RMSNorm of x + residual [rows, columns] by weight [columns], and the sum."""
    rows, columns = x.shape
    return torch_xla_ext.triton_call(
        add_rms_norm_kernel,
        *(x, residual, weight),
        outputs=[x, x],  # like x; they are normed_ptr and sum_ptr
        columns=columns,
        epsilon=epsilon,
        BLOCK=triton.next_power_of_2(columns),
        num_warps=8,
        grid=(rows,),
    )


def main() -> None:
    device = torch_xla.device()
    x, residual, weight = torch.randn(16, 300), torch.randn(16, 300), torch.randn(300)
    on_device = [tensor.to(device) for tensor in (x, residual, weight)]
    normed, total = add_rms_norm(*on_device, 1e-6)
    expected = torch.nn.functional.rms_norm(x + residual, (300,), weight, 1e-6)
    torch.testing.assert_close(normed.cpu(), expected)
    torch.testing.assert_close(total.cpu(), x + residual)
    print("add_rms_norm: as PyTorch's")


if __name__ == "__main__":
    main()
