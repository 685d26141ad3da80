"""Let a ShardingSpec name fewer axes than its mesh has, as for FSDPv2's mesh (n, 1).

Without a None among the axes, a spec tiled a tensor in more dimensions than the tensor has.
mark_sharding keeps copies along the other axes.

A HybridMesh arranges TPUs by their coordinates. Other devices have none, and are taken in order.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch_xla
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.distributed.spmd import xla_sharding
from torch_xla.distributed.spmd.xla_sharding import HybridMesh, ShardingSpec


def tile_and_replicate(original: Callable[[ShardingSpec], None]) -> Callable[[ShardingSpec], None]:
    """Replace ShardingSpec.__post_init__."""

    @functools.wraps(original)
    def post_init(self: ShardingSpec) -> None:
        original(self)
        spec = xla_sharding._translate_named_partition_spec(self.mesh, self.partition_spec)
        tiles = xla_sharding._get_tile_assignment(self.mesh, spec)
        is_tiled = self._sharding_type == xla_sharding.ShardingType.TILED
        if is_tiled and tiles.ndim > len(spec):
            self._sharding_type = xla_sharding.ShardingType.PARTIAL
            self._group_assignment, self._replication_groups = xla_sharding._get_group_assignment(
                self._sharding_type, tiles, len(spec), set()
            )

    return post_init


def device_mesh(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Replace HybridMesh._create_device_mesh."""

    @functools.wraps(original)
    def create(
        self: HybridMesh, mesh_shape: Sequence[int], devices: np.ndarray | None = None
    ) -> np.ndarray:
        if xla_model.xla_device_hw(torch_xla.device()) == "TPU":
            return original(self, mesh_shape, devices)
        numbers = np.arange(runtime.global_runtime_device_count()) if devices is None else devices
        if np.prod(mesh_shape) != len(numbers):
            raise ValueError(
                f"HybridMesh: a mesh of {tuple(mesh_shape)} has {np.prod(mesh_shape)} devices, but "
                f"there are {len(numbers)}"
            )
        return np.asarray(numbers).reshape(mesh_shape)

    return create
