"""Compute gradients through regions of manual sharding.

As in JAX's shard_map, a device's part of a gradient is the gradient of its part of the tensor.
Along an axis of the mesh that does not divide the tensor, each device has a copy. A region's output
is one of the copies, so each copy's gradient is an equal share. The gradient of a region's input is
the sum of its copies' gradients.

Upstream, a mark in a region, or a whole shape that the parts do not make up, aborts the process.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch_xla
from torch.autograd.function import FunctionCtx
from torch_xla.core import xla_model
from torch_xla.distributed.spmd import xla_sharding
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor
from torch_xla.distributed.spmd.xla_sharding import Mesh

from torch_xla_ext_startup.upstream_fixes.uneven_shardings import (
    Spec,
    Tensor,
    numbers_of_parts,
    uneven_dimensions,
)


def enable(original: Callable[..., XLAShardedTensor]) -> Callable[..., XLAShardedTensor]:
    """Replace enable_manual_sharding."""

    @functools.wraps(original)
    def enabled(t: Tensor, partition_spec: Spec, *, mesh: Mesh | None = None) -> XLAShardedTensor:
        tensor = xla_sharding.unwrap_sharded_tensor(t)
        used = xla_sharding.get_global_mesh() if mesh is None else mesh
        # The program relies on the size of a device's part.
        for dim, size, count in uneven_dimensions(tensor.shape, used, partition_spec):
            raise ValueError(
                f"enable_manual_sharding: dimension {dim} of {size} cannot be divided among "
                f"{count} devices; pad it to {-(-size // count) * count}, or divide another "
                "dimension"
            )
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return original(t, partition_spec, mesh=mesh)
        return xla_sharding.wrap_as_sharded_tensor(
            _Enable.apply(tensor, partition_spec, used, original)
        )

    return enabled


def disable(original: Callable[..., XLAShardedTensor]) -> Callable[..., XLAShardedTensor]:
    """Replace disable_manual_sharding."""

    @functools.wraps(original)
    def disabled(
        t: Tensor, partition_spec: Spec, full_shape: torch.Size, *, mesh: Mesh | None = None
    ) -> XLAShardedTensor:
        tensor = xla_sharding.unwrap_sharded_tensor(t)
        used = xla_sharding.get_global_mesh() if mesh is None else mesh
        counts = numbers_of_parts(tensor.shape, used, partition_spec)
        whole = [size * count for size, count in zip(tensor.shape, counts, strict=True)]
        if list(full_shape) != whole:
            raise ValueError(
                f"disable_manual_sharding: parts of {list(tensor.shape)} that are divided by "
                f"{partition_spec} make up a tensor of {whole}, not of the full_shape "
                f"{list(full_shape)}"
            )
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return original(t, partition_spec, full_shape, mesh=mesh)
        return xla_sharding.wrap_as_sharded_tensor(
            _Disable.apply(tensor, partition_spec, full_shape, used, original)
        )

    return disabled


class _Enable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        tensor: torch.Tensor,
        spec: Spec,
        mesh: Mesh,
        original: Callable[..., XLAShardedTensor],
    ) -> torch.Tensor:
        ctx.spec, ctx.mesh, ctx.shape = spec, mesh, tensor.shape
        return original(tensor, spec, mesh=mesh).global_tensor

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        groups = _copies(ctx.spec, ctx.mesh)
        if groups:
            grad = torch_xla._XLAC._xla_spmd_all_reduce(xla_model.REDUCE_SUM, grad, 1.0, groups)
        whole = xla_sharding.disable_manual_sharding(grad, ctx.spec, ctx.shape, mesh=ctx.mesh)
        return whole.global_tensor, None, None, None


class _Disable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        tensor: torch.Tensor,
        spec: Spec,
        full_shape: torch.Size,
        mesh: Mesh,
        original: Callable[..., XLAShardedTensor],
    ) -> torch.Tensor:
        ctx.spec, ctx.mesh = spec, mesh
        return original(tensor, spec, full_shape, mesh=mesh).global_tensor

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        groups = _copies(ctx.spec, ctx.mesh)
        part = xla_sharding.enable_manual_sharding(grad * 1, ctx.spec, mesh=ctx.mesh).global_tensor
        if groups:
            part = part / len(groups[0])
        return part, None, None, None, None


def _copies(spec: Spec, mesh: Mesh) -> list[list[int]]:
    """Return the groups of devices that have copies of the same part, if there are copies."""
    names = list(mesh.shape())
    divided = {
        axis if isinstance(axis, str) else names[axis]
        for axes in spec
        for axis in (axes if isinstance(axes, tuple) else (axes,))
        if axis is not None
    }
    copied = [i for i, name in enumerate(names) if name not in divided]
    count = math.prod(mesh.mesh_shape[i] for i in copied)
    if count == 1:
        return []
    devices = np.moveaxis(
        np.asarray(mesh.device_ids).reshape(mesh.mesh_shape), copied, range(-len(copied), 0)
    )
    return devices.reshape(-1, count).tolist()
