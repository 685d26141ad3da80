"""Deferred tensors, which layers of a model return to layers that can fuse their computation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

from torch_xla_ext import ops
from vllm_xla_gpu.linear import is_skinny, linear

# A tensor, and the dimension along which the devices divide it, or None.
Operand = tuple[torch.Tensor, int | None]

if TYPE_CHECKING:
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    from vllm_xla_gpu.tensor_parallel import Devices


class Deferred:
    """A tensor that is computed only if something other than a layer of this package reads it."""

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        return getattr(self.whole, name)

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        args, kwargs = tree_map_only(Deferred, lambda x: x.whole, (args, kwargs or {}))
        return function(*args, **kwargs)


def _operator_of_whole(name: str) -> Callable[..., Any]:
    def method(self: Deferred, *args: object) -> object:
        return getattr(self.whole, name)(*args)

    return method


# Python looks these up in the class, not by __getattr__.
_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv matmul pow neg getitem setitem iter len"
for _name in _OPERATORS.split():
    setattr(Deferred, f"__{_name}__", _operator_of_whole(f"__{_name}__"))


class Columns(Deferred):
    """Tensors concatenated in the last dimension, for a model that splits them again.

    For a real concatenation, XLA would move columns between the devices.
    """

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts = tuple(parts)
        self._widths = [part.shape[-1] for part in parts]

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        return torch.cat(self._parts, dim=-1)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._parts[0].shape[:-1], sum(self._widths)))

    @property
    def _is_read(self) -> bool:
        """True if `whole` has been computed, so that a model may have changed elements."""
        return "whole" in vars(self)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[torch.Tensor, ...]:
        if dim in (-1, len(self.shape) - 1) and sizes == self._widths and not self._is_read:
            return self._parts
        return self.whole.split(sizes, dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        return self.split([self.shape[dim] // chunks] * chunks, dim)

    def __getitem__(self, index: object) -> torch.Tensor:
        if self._is_read:
            return self.whole[index]
        ends = list(itertools.accumulate(self._widths))
        for part, begin, end in zip(self._parts, [None, *ends], [*ends[:-1], None], strict=False):
            if index == (..., slice(begin, end)):
                return part
        return self.whole[index]

    def plus(self, parts: Sequence[torch.Tensor]) -> Columns:
        """Return columns with one of `parts` added to each of its own."""
        return Columns([own + part for own, part in zip(self._parts, parts, strict=True)])


class ShardedColumns(Columns):
    """The results of several weights, which one matmul computes for each shard.

    For example, these are the queries, keys and values of a shard's heads.

    Attributes:
        by_shard: [num_tokens, shards, columns of a shard].
    """

    def __init__(self, by_shard: torch.Tensor, widths: Sequence[int]) -> None:
        """Initialize from [num_tokens, shards, columns] and the widths of a shard's parts."""
        self.by_shard, self._widths_of_shard = by_shard, list(widths)
        self._widths = [width * by_shard.shape[1] for width in widths]

    @property
    def _parts(self) -> tuple[Column, ...]:
        """The parts; caching them would make a cycle, which garbage collection frees late."""
        return tuple(Column(self, number) for number in range(len(self._widths)))

    @functools.cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The parts, [num_tokens, width]."""
        parts = self.by_shard.split(self._widths_of_shard, dim=-1)
        return tuple(part.flatten(-2) for part in parts)

    @property
    def are_read(self) -> bool:
        """True if the parts have been computed, so that a model may have changed elements."""
        return "tensors" in vars(self)

    def shape_of(self, number: int) -> torch.Size:
        """Return the shape of a part."""
        return torch.Size((self.by_shard.shape[0], self._widths[number]))

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        return torch.cat(self.tensors, dim=-1)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.by_shard.shape[0], sum(self._widths)))


class GateAndUp(ShardedColumns):
    """Matmuls of few tokens with the weights of gate and up, which one kernel fuses with SwiGLU."""

    def __init__(
        self, x: torch.Tensor, weight: torch.Tensor, widths: Sequence[int], shards: int
    ) -> None:
        """Initialize from x [num_tokens, k], both weights of each shard [n, k], and its widths."""
        self._x, self._weight, self._shards = x, weight, shards
        self._widths_of_shard = list(widths)
        self._widths = [width * shards for width in widths]

    @functools.cached_property
    def by_shard(self) -> torch.Tensor:
        return linear(self._x, self._weight).unflatten(-1, (self._shards, -1))

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        return self.by_shard[:, 0] if self._shards == 1 else super().whole

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._x.shape[0], sum(self._widths)))

    def swiglu(self) -> torch.Tensor | None:
        """Return silu(gate) * up, [num_tokens, width].

        None if a model has read the products, because it may have changed them.
        """
        if "by_shard" in vars(self):
            return None
        gate_and_up = self._weight.unflatten(0, (self._shards, 2, -1))
        return ops.skinny_swiglu(self._x, gate_and_up).flatten(1)


def gate_and_up(
    x: torch.Tensor, weight: torch.Tensor, widths: Sequence[int], shards: int = 1
) -> GateAndUp | None:
    """Return the deferred gate and up; None if no kernel computes SwiGLU for these widths."""
    are_two = len(widths) == 2 and widths[0] == widths[1]
    return GateAndUp(x, weight, widths, shards) if are_two and is_skinny(x, weight) else None


class Column(Deferred):
    """A part of ShardedColumns, a view of the part, or the norm of its heads.

    Attributes:
        columns, number: the ShardedColumns, and the index of the part.
        shape, dtype: as for a tensor.
        norm: the norm of its heads, or None.
    """

    def __init__(
        self,
        columns: ShardedColumns,
        number: int,
        shape: torch.Size | None = None,
        norm: HeadNorm | None = None,
    ) -> None:
        self.columns, self.number, self.norm = columns, number, norm
        self.shape = columns.shape_of(number) if shape is None else shape
        self.dtype = columns.by_shard.dtype

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        tensor = self.columns.tensors[self.number] if self.norm is None else self.norm.tensor
        return tensor.view(self.shape)


def _view_of_column(name: str) -> Callable[..., Column | torch.Tensor]:
    def method(self: Column, *args: object, **options: object) -> Column | torch.Tensor:
        empty = torch.empty(self.shape, dtype=self.dtype, device="meta")
        view = getattr(empty, name)(*args, **options)
        if view.dtype != self.dtype:
            return getattr(self.whole, name)(*args, **options)
        return Column(self.columns, self.number, view.shape, self.norm)

    return method


# Models split and join heads with these methods.
for _name in ("view", "reshape", "unflatten", "flatten", "contiguous"):
    setattr(Column, _name, _view_of_column(_name))


@dataclasses.dataclass(eq=False)
class HeadNorm:
    """The RMS norm of each head of a Column.

    Attributes:
        column: the heads, along the last dimension.
        layer: the norm.
        forward: the norm's function.
        adds_one: whether the norm adds 1 to its weight.
    """

    column: Column
    layer: RMSNorm | GemmaRMSNorm
    forward: Callable[..., torch.Tensor]
    adds_one: bool

    @functools.cached_property
    def tensor(self) -> torch.Tensor:
        return self.forward(self.layer, self.column.whole)


def normed(
    forward: Callable[..., torch.Tensor],
    layer: RMSNorm | GemmaRMSNorm,
    x: object,
    *,
    adds_one: bool,
) -> Column | None:
    """Return the deferred result of a norm; None if the norm must run now.

    Args:
        forward, layer, adds_one: as in HeadNorm.
        x: heads of queries or keys, if the result is deferred.
    """
    if not isinstance(x, Column) or x.norm is not None:
        return None
    width = x.columns.shape_of(x.number)[-1]
    is_plain = (
        getattr(layer, "has_weight", True)
        and getattr(layer, "variance_size_override", None) is None
        and x.shape[-1] == len(layer.weight)
        and width % x.shape[-1] == 0
    )
    if not is_plain:
        return None
    return Column(x.columns, x.number, x.shape, HeadNorm(x, layer, forward, adds_one))


@dataclasses.dataclass(eq=False)
class Rotation:
    """Queries and keys with their positions encoded.

    Attributes:
        query, key: the first two parts of ShardedColumns.
        positions: int [num_tokens].
        layer: the layer that encodes positions.
        forward: the layer's function.
    """

    query: Column
    key: Column
    positions: torch.Tensor
    layer: RotaryEmbedding
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]]

    @property
    def columns(self) -> ShardedColumns:
        """The queries, keys and values."""
        return self.query.columns

    @functools.cached_property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rotated queries and keys."""
        return self.forward(self.layer, self.positions, self.query.whole, self.key.whole)


class Rotated(Deferred):
    """The queries or keys of a Rotation."""

    def __init__(self, rotation: Rotation, number: int) -> None:
        self.rotation, self.number = rotation, number
        self.dtype = rotation.columns.by_shard.dtype

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        return self.rotation.tensors[self.number]


def rotated(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    layer: RotaryEmbedding,
    positions: torch.Tensor,
    query: object,
    key: object,
) -> tuple[Rotated, Rotated] | None:
    """Return the deferred results of a layer that encodes positions; None if it must run now.

    Args:
        forward: the layer's function.
        layer: the layer.
        positions: int [num_tokens].
        query, key: the first two parts of ShardedColumns, if the results are deferred.
    """
    is_query = isinstance(query, Column) and query.number == 0
    is_key = isinstance(key, Column) and key.number == 1
    if not is_query or not is_key or query.columns is not key.columns or positions.dim() != 1:
        return None
    if any(len(x.shape) != 2 or x.shape[0] != len(positions) for x in (query, key)):
        return None
    rotation = Rotation(query, key, positions, layer, forward)
    return Rotated(rotation, 0), Rotated(rotation, 1)


def rotation_of(query: object, key: object, value: object) -> Rotation | None:
    """Return the Rotation with these queries and keys, whose columns also contain `value`, or None.

    It is also None if something has read one of them, because a model may have changed elements.
    """
    if not isinstance(query, Rotated) or not isinstance(value, Column):
        return None
    rotation = query.rotation
    is_key = isinstance(key, Rotated) and key.rotation is rotation and key.number == 1
    is_value = value.columns is rotation.columns and value.number == 2 and value.norm is None
    is_whole = query.number == 0 and is_key and is_value and not rotation.columns.are_read
    return rotation if is_whole else None


class PendingSum(Deferred):
    """A layer's results on each device, before they are summed over the devices.

    What follows is computed before the sum where it can be: each device computes an adapter's
    product for its own columns, and adds the results of two layers, so that only one sum is needed.
    A norm after the sum is computed in the same kernel (`ops.all_reduce_rms_norm`).

    Attributes:
        shape, dtype: those of the sum.
    """

    def __init__(
        self,
        devices: Devices,
        function: Callable[..., torch.Tensor],
        operands: Sequence[Operand],
        shape: torch.Size,
    ) -> None:
        """Initialize with arguments of `Devices.summed`, whose result has the shape."""
        self._devices, self._function, self._operands = devices, function, tuple(operands)
        self.shape, self.dtype = shape, operands[0][0].dtype

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        return self._devices.summed(self._function, self._operands)

    def _plus(
        self, function: Callable[..., torch.Tensor], operands: Sequence[Operand]
    ) -> PendingSum:
        """Add the function's results on each device."""
        own, count = self._function, len(self._operands)

        def both(*tensors: torch.Tensor) -> torch.Tensor:
            return own(*tensors[:count]) + function(*tensors[count:])

        return PendingSum(self._devices, both, [*self._operands, *operands], self.shape)

    def plus_product(
        self, product: Callable[..., torch.Tensor], a: torch.Tensor, *others: torch.Tensor
    ) -> PendingSum:
        """Add product(x, a, *others), by columns of x and a, where x is the first operand."""
        x, *_ = self._operands
        return self._plus(product, [x, (a, 1), *((tensor, None) for tensor in others)])

    def __add__(self, other: object) -> PendingSum | torch.Tensor:
        if isinstance(other, PendingSum) and other.shape == self.shape:
            return self._plus(other._function, other._operands)
        return self.whole + other

    def __mul__(self, factor: object) -> PendingSum | torch.Tensor:
        if not isinstance(factor, int | float):
            return self.whole * factor

        def scaled(*tensors: torch.Tensor) -> torch.Tensor:
            return self._function(*tensors) * factor

        return PendingSum(self._devices, scaled, self._operands, self.shape)

    def __getitem__(self, index: object) -> PendingSum | torch.Tensor:
        is_all = index == (..., slice(None, self.shape[-1]))
        return self if is_all else self.whole[index]

    def view(self, *sizes: object) -> PendingSum | torch.Tensor:
        view = torch.empty(self.shape, device="meta").view(*sizes)
        return self if view.shape == self.shape else self.whole.view(*sizes)

    def normed(
        self, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the norm of the sum plus the residual, and the new residual, from one kernel.

        None if no kernel computes the sum together with this norm.
        """
        return self._devices.normed_sum(self._function, self._operands, residual, norm)
