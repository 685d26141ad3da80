"""Make Tensor.contiguous() of a view copy whenever PyTorch copies.

PyTorch's method returns a tensor that reports being contiguous, as every XLA tensor does, without
calling the operator. csrc/aten_overrides/strides.h has an operator that recognizes views.
"""

import functools
from collections.abc import Callable

import torch


def contiguous(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def contiguous(
        self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        if self.is_xla:
            return torch.ops.aten.contiguous.default(self, memory_format=memory_format)
        return original(self, memory_format=memory_format)

    return contiguous
