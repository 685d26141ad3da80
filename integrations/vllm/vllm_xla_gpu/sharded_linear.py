"""A linear layer whose weight is sharded over the devices."""

from __future__ import annotations

import torch
from torch import nn

from vllm_xla_gpu import fp8
from vllm_xla_gpu.linear import linear


class ShardedLinear(nn.Module):
    """A weight and bias, or some rows of a layer's, which the devices shard along `dim`.

    Attributes:
        dim: None if each device needs the whole.
        turns: the number of devices if rows of the weight are to be brought into the order of
            `moe.shards_in_turn`, else 1.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        dim: int | None = 0,
        weight_scale: torch.Tensor | None = None,
        input_scale: torch.Tensor | None = None,
    ) -> None:
        """Take the scales of fp8.linear if the weight is in fp8."""
        super().__init__()
        self.dim, self.turns = dim, 1
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = _parameter(bias)
        self.weight_scale, self.input_scale = _parameter(weight_scale), _parameter(input_scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight_scale is None:
            return linear(x, self.weight, self.bias)
        return fp8.linear(x, self.weight, self.weight_scale, self.input_scale, self.bias)


def _parameter(tensor: torch.Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor, requires_grad=False)
