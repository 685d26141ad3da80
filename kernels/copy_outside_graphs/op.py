"""Copy a tensor with an operator that XLA:GPU keeps out of CUDA graphs."""

import torch

from xla_kernels import define_operator

__all__ = ["copy_outside_graphs"]

define_operator(
    "xla_gpu::copy_outside_graphs(Tensor x) -> Tensor",
    target="XlaGpuCopyOutsideGraphs",
    sharding_rule="... -> ...",
)


def copy_outside_graphs(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor outside XLA's CUDA graphs: ``torch.ops.xla_gpu.copy_outside_graphs``.

    XLA:GPU rewrites a CUDA graph whenever the address of an array that the graph reads or writes
    has changed since the previous run. This happens for an argument that is sent for each run, and
    for a result that is still in use when the program runs again. If the program copies such
    arguments and results with this operator, the addresses in the graph between the copies stay the
    same. The operator has no derivatives.

    Args:
        x: a tensor of any shape and strides, of dtype float16, bfloat16, float32, float64, int32 or
            int64.

    Returns:
        A contiguous tensor with the same values, shape and dtype.

    Raises:
        TypeError: `x` has an unsupported dtype.
        NotImplementedError: autograd would record the call.

    Example:
        >>> copy_outside_graphs(torch.arange(3.0, device="xla")).cpu()
        tensor([0., 1., 2.])
    """
    return torch.ops.xla_gpu.copy_outside_graphs(x)
