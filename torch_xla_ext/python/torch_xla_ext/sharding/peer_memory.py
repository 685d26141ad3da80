"""Allocate memory on each device that kernels on all devices of the process may access."""

import ctypes

import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from torch_xla_ext.sharding.tensors import send
from xla_kernels.plugin import driver

_ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


class PeerMemory:
    """Zero-initialized memory on each device of a mesh, which all its devices may access.

    XLA does not know of this memory: a kernel reads its addresses from an operand. It is never
    freed, because a program that has been launched may still use it.

    Attributes:
        table: int64 [num_devices, 1 + num_devices], one row on each device, in the mesh's order:
            the device's rank, then the addresses of all devices' memory by rank.
    """

    def __init__(self, mesh: xs.Mesh, num_bytes: int) -> None:
        """Allocate the memory.

        Args:
            mesh: has one dimension, and only devices of this process.
            num_bytes: on each device.

        Raises:
            ValueError: the mesh has more than one dimension.
            RuntimeError: there is more than one process, the GPUs cannot access each other's
                memory, or an allocation failed.
        """
        if len(mesh.mesh_shape) != 1:
            raise ValueError(
                f"PeerMemory: expected a mesh with one dimension, but got {mesh.mesh_shape}"
            )
        if xr.process_count() != 1:
            raise RuntimeError(
                f"PeerMemory: expected one process, but the program has {xr.process_count()}"
            )
        devices = mesh.device_ids.tolist()
        allocate = _on_gpus if xr.device_type() == "CUDA" else _on_host
        addresses = torch.tensor(allocate(devices, num_bytes), dtype=torch.int64)
        ranks = torch.arange(len(devices))[:, None]
        rows = torch.cat([ranks, addresses.expand(len(devices), -1)], dim=1)
        (self.table,) = send([rows], [xs.ShardingSpec(mesh, (mesh.axis_names[0], None))])


def _on_host(devices: list[int], num_bytes: int) -> list[int]:
    return [_allocate_on_host(num_bytes) for _ in devices]


def _allocate_on_host(num_bytes: int) -> int:
    libc = ctypes.CDLL(None)
    libc.aligned_alloc.restype = ctypes.c_void_p
    whole_pages = -(-num_bytes // 4096) * 4096  # as aligned_alloc demands
    address = libc.aligned_alloc(ctypes.c_size_t(4096), ctypes.c_size_t(whole_pages))
    if address is None:
        raise RuntimeError(f"PeerMemory: allocating {num_bytes} bytes on the host failed")
    ctypes.memset(address, 0, num_bytes)
    return address


def _on_gpus(devices: list[int], num_bytes: int) -> list[int]:
    """Allocate in the contexts that XLA uses."""
    contexts = {device: driver.retain_context(device) for device in devices}
    addresses = []
    for device, context in contexts.items():
        with driver.current(context):
            for peer in devices:
                if peer == device:
                    continue
                if not driver.can_access(device, peer):
                    raise RuntimeError(
                        f"PeerMemory: GPU {device} cannot access the memory of GPU {peer}"
                    )
                driver.driver()(
                    "cuCtxEnablePeerAccess", contexts[peer], 0, allowed=(_ALREADY_ENABLED,)
                )
            addresses.append(driver.allocate(num_bytes))
            driver.driver()("cuCtxSynchronize")
    return addresses
