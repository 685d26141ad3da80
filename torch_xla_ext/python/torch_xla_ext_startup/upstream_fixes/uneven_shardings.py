"""Keep dimensions whole that a mesh does not divide equally, because XLA mishandles them.

If a mesh does not divide a dimension, scatters abort the process, in-place operations fail, and
sorts and slices return wrong numbers. So every device has the whole dimension, with a warning: the
results are correct, but use more memory.
"""

import functools
import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch_xla import runtime
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor
from torch_xla.distributed.spmd.xla_sharding import Mesh, ShardingSpec

# A partition_spec as in mark_sharding: for each dimension, the mesh axes that divide it.
Spec = tuple[object, ...]
Tensor = torch.Tensor | XLAShardedTensor

_warned: set[tuple[object, ...]] = set()


def mark_sharding(original: Callable[..., XLAShardedTensor]) -> Callable[..., XLAShardedTensor]:
    """Replace mark_sharding, annotate_custom_sharding."""
    # Dynamo would compile how NumPy arranges the mesh's devices, and log the errors of that.
    outside_of_graphs = torch._disable_dynamo(original)

    @functools.wraps(original)
    def mark(t: Tensor, mesh: Mesh, partition_spec: Spec) -> XLAShardedTensor:
        if len(t.shape) == len(partition_spec):  # else the original raises an error
            # Lists are tuples of axes, and () divides a dimension as None does.
            partition_spec = tuple(
                (tuple(axes) or None) if isinstance(axes, (list, tuple)) else axes
                for axes in partition_spec
            )
            partition_spec = even_spec(original.__name__, t.shape, mesh, partition_spec)
        return outside_of_graphs(t, mesh, partition_spec)

    return mark


def xla_spec(original: Callable[..., object]) -> Callable[..., object]:
    """Replace ShardingSpec.xla_spec, for the batches of a loader."""

    @functools.wraps(original)
    def spec(self: ShardingSpec, t: torch.Tensor) -> object:
        if self.minibatch or not self.can_apply(t):
            return original(self, t)
        even = even_spec("ShardingSpec", t.shape, self.mesh, self.partition_spec)
        if even == tuple(self.partition_spec):
            return original(self, t)
        return original(ShardingSpec(self.mesh, even), t)

    return spec


def parameter_spec(original: Callable[..., Spec]) -> Callable[..., Spec]:
    """Replace _prepare_spmd_partition_spec of FSDPv2: the largest dimension that can be divided."""

    @functools.wraps(original)
    def prepare(
        param: torch.Tensor, extra_data_axis: str | None = None, shard_maximal: bool = False
    ) -> Spec:
        spec = original(param, extra_data_axis, shard_maximal)
        count = runtime.global_runtime_device_count()
        fitting = [size for size in param.shape if size % count == 0]
        if not shard_maximal or not fitting:
            return spec
        (axis,) = {axis for axis in spec if axis is not None}
        dim = list(param.shape).index(max(fitting))
        return (None,) * dim + (axis,) + (None,) * (len(spec) - dim - 1)

    return prepare


def numbers_of_parts(shape: Sequence[int], mesh: Mesh | None, spec: Spec) -> list[int]:
    """Return for each dimension among how many devices it is divided."""
    if mesh is None:
        raise ValueError(
            f"a tensor of {list(shape)} is to be divided, but there is no mesh: pass mesh=, or "
            "call set_global_mesh first"
        )
    if len(spec) != len(shape):
        raise ValueError(
            f"a tensor of {list(shape)} has {len(shape)} dimensions, but the partition_spec {spec} "
            f"has {len(spec)}"
        )
    sizes = dict(enumerate(mesh.mesh_shape)) | mesh.shape()
    counts = []
    for dim, axes in enumerate(spec):
        named = [
            axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if axis is not None
        ]
        for axis in named:
            if axis not in sizes:
                raise ValueError(
                    f"dimension {dim} of a tensor of {list(shape)} is to be divided along the axis "
                    f"{axis!r}, which the mesh does not have; its axes are {list(sizes)}"
                )
        counts.append(math.prod(sizes[axis] for axis in named))
    return counts


def uneven_dimensions(
    shape: Sequence[int], mesh: Mesh | None, spec: Spec
) -> list[tuple[int, int, int]]:
    """Return the dimensions that the mesh does not divide, with sizes and numbers of parts."""
    counts = numbers_of_parts(shape, mesh, spec)
    return [
        (dim, int(size), count)
        for dim, (size, count) in enumerate(zip(shape, counts, strict=True))
        if size % count
    ]


def even_spec(caller: str, shape: Sequence[int], mesh: Mesh, spec: Spec) -> Spec:
    """Return the spec without dimensions that the mesh does not divide; warn about each once."""
    uneven = uneven_dimensions(shape, mesh, spec)
    for dim, size, count in uneven:
        key = caller, tuple(shape), dim, count
        if key in _warned:
            continue
        _warned.add(key)
        warnings.warn(
            f"{caller}: dimension {dim} of a tensor of {list(shape)} cannot be divided equally "
            f"among {count} devices, so every device has all of it; to divide it, pad it to "
            f"{-(-size // count) * count}",
            stacklevel=3,
        )
    whole = {dim for dim, _, _ in uneven}
    return tuple(None if dim in whole else axes for dim, axes in enumerate(spec))
