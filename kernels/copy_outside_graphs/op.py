"""A copy that XLA:GPU puts into no CUDA graph."""

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

    XLA:GPU rewrites a CUDA graph in a run in which an array that the graph reads or writes is at
    another address than in the run before. An argument that is sent anew for each run is, and so is
    a result that is still in use when the program runs again. If the program reads the argument by
    this copy, and writes the result by it, the graph between them keeps its addresses. It has no
    derivatives.

    Args:
        x: a tensor of any shape and strides, of dtype float16, bfloat16, float32, float64, int32 or
            int64.

    Returns:
        A tensor of the same values, shape and dtype, contiguous.

    Raises:
        TypeError: `x` has another dtype than these.
        NotImplementedError: autograd would record the call.

    Example:
        >>> copy_outside_graphs(torch.arange(3.0, device="xla")).cpu()
        tensor([0., 1., 2.])
    """
    return torch.ops.xla_gpu.copy_outside_graphs(x)
