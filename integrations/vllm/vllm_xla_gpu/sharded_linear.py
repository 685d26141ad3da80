"""Linear layers whose weights are sharded over the devices."""

from collections.abc import Sequence

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearMethodBase

from vllm_xla_gpu import fp8
from vllm_xla_gpu.deferred import Columns, ShardedColumns, gate_and_up
from vllm_xla_gpu.linear import linear


class ShardedLinear(nn.Module):
    """A layer's weight and bias, or some of their rows, which the devices shard along `dim`.

    Attributes:
        dim: the dimension; None if each device needs the whole weight.
        turns: the number of devices if rows of the weight must be brought into the order of
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
        """Initialize the layer; pass the scales of fp8.linear if the weight is in fp8."""
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


class ColumnsMethod(LinearMethodBase):
    """A linear layer whose columns are those of several weights, one after another.

    If the weight were divided into equal parts, a device would have keys of different heads than
    its queries. So its rows are reordered: the first device's queries, keys and values, then the
    second's. One matmul is faster than several, which XLA would merge at a cost.
    """

    def __init__(self, widths: Sequence[int], count: int) -> None:
        """Initialize from the weights' numbers of columns; `count` devices must divide each."""
        self._count = count
        self._widths = [width // count for width in widths]

    def create_weights(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> Columns:
        """Apply the layer; `bias` is None, since the sharded layer has it."""
        (sharded,) = layer.sharded
        if sharded.bias is None and sharded.weight_scale is None:
            deferred = gate_and_up(x, sharded.weight, self._widths, self._count)
            if deferred is not None:
                return deferred
        by_shard = sharded(x).unflatten(-1, (self._count, sum(self._widths)))
        return ShardedColumns(by_shard, self._widths)


class SeparateColumnsMethod(LinearMethodBase):
    """A linear layer with a matmul for each weight, if the devices cannot divide one of them."""

    def create_weights(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> Columns:
        return Columns([linear(x) for linear in layer.sharded])
