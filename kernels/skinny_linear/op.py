"""Multiply a few rows by a matrix of weights, as in decode steps."""

import torch

from xla_kernels import define_operator

__all__ = ["skinny_linear", "skinny_swiglu"]

define_operator(
    "xla_gpu::skinny_linear(Tensor x, Tensor w) -> Tensor",
    target="XlaGpuSkinnyLinear",
    environment=(),
    sharding_rule="t (b 8), n (b 8) -> t n; sum b",
)
define_operator(
    "xla_gpu::skinny_swiglu(Tensor x, Tensor w) -> Tensor",
    target="XlaGpuSkinnySwiglu",
    environment=(),
    sharding_rule="t _, g _ n _ -> t g n",
)


def skinny_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply a few rows by weights: ``torch.ops.xla_gpu.skinny_linear``.

    It computes ``torch.nn.functional.linear(x, w)`` at the speed of the GPU's memory.

    Args:
        x: float16 or bfloat16 [rows, k]: 1 to 16 rows, and k is a multiple of 8.
        w: [n, k], of the dtype of `x`.

    Returns:
        [rows, n], of the same dtype; sums are in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype or shape.

    Example:
        >>> x, w = torch.ones(2, 8).bfloat16().to("xla"), torch.ones(3, 8).bfloat16().to("xla")
        >>> skinny_linear(x, w).cpu()
        tensor([[8., 8., 8.],
                [8., 8., 8.]], dtype=torch.bfloat16)
    """
    return torch.ops.xla_gpu.skinny_linear(x, w)


def skinny_swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Compute SwiGLU of a few rows: ``torch.ops.xla_gpu.skinny_swiglu``.

    The result for each group is ``silu(x @ gate.T) * (x @ up.T)``, where ``gate, up = w[group]``
    (https://arxiv.org/abs/2002.05202). Groups let devices share the weights of one layer.

    Args:
        x: float16 or bfloat16 [rows, k]: 1 to 16 rows, and k is a multiple of 8.
        w: [groups, 2, n, k], of the dtype of `x`.

    Returns:
        [rows, groups, n], of the same dtype; computed in float32 and rounded once.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype or shape.

    Example:
        >>> x, w = torch.ones(1, 8).half().to("xla"), torch.ones(1, 2, 3, 8).half().to("xla")
        >>> skinny_swiglu(x, w).cpu()
        tensor([[[63.9688, 63.9688, 63.9688]]], dtype=torch.float16)
    """
    return torch.ops.xla_gpu.skinny_swiglu(x, w)
