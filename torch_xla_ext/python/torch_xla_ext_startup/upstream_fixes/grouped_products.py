"""Run torch._grouped_mm of XLA tensors with the wheel's kernels; PyTorch has only a CUDA kernel."""

import torch

_LIBRARY = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Register the operator for XLA tensors."""
    _LIBRARY.impl(torch.ops.aten._grouped_mm.default, _grouped_mm, "AutogradXLA")


def _grouped_mm(*args: object, **options: object) -> torch.Tensor:
    from torch_xla_ext import grouped_mm

    return grouped_mm.grouped_mm(*args, **options)
