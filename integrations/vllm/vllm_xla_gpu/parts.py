"""Weights of a layer that several devices divide among them."""

from __future__ import annotations

import torch
from torch import nn


class Part(nn.Module):
    """A weight and bias, or rows of them, to be divided among the devices along `dim`.

    Attributes:
        dim: None if each device needs the whole.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, dim: int | None = 0
    ) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
