"""Memory of each device of the process that kernels on all its devices may read and write."""

from __future__ import annotations

import ctypes

import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from torch_xla_ext.sharding.tensors import send

_ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


class PeerMemory:
    """Memory on each device of a mesh, zeros at first, which all its devices may access.

    XLA does not know of this memory: a kernel gets its addresses from an operand. It is never
    freed, because a program that has been launched may still use it.

    Attributes:
        table: int64 [num_devices, 1 + num_devices], a row on each device, in the mesh's order: its
            rank, and the memories' addresses by rank.
    """

    def __init__(self, mesh: xs.Mesh, num_bytes: int) -> None:
        """Allocate the memory.

        Args:
            mesh: of one dimension, with the devices of this process alone.
            num_bytes: on each device.

        Raises:
            ValueError: the mesh has more than one dimension.
            RuntimeError: the devices are not of one process, the GPUs cannot access each other's
                memory, or an allocation failed.
        """
        if len(mesh.mesh_shape) != 1:
            raise ValueError(f"expected a mesh of one dimension but got {mesh.mesh_shape}")
        if xr.process_count() != 1:
            raise RuntimeError(
                f"expected devices of one process but got those of {xr.process_count()}"
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
        raise RuntimeError(f"allocating {num_bytes} bytes on the host failed")
    ctypes.memset(address, 0, num_bytes)
    return address


def _on_gpus(devices: list[int], num_bytes: int) -> list[int]:
    """Allocate by NVIDIA's driver, in the contexts that XLA uses."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object, allowed: tuple[int, ...] = ()) -> None:
        error = getattr(driver, name)(*arguments)
        if error and error not in allowed:
            raise RuntimeError(f"{name} failed with CUDA error {error}")

    call("cuInit", 0)
    handles, contexts = [], []
    for device in devices:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuDeviceGet", ctypes.byref(handle), device)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        handles.append(handle)
        contexts.append(context)
    addresses = []
    for device, handle, context in zip(devices, handles, contexts, strict=True):
        call("cuCtxPushCurrent_v2", context)
        try:
            for peer, peer_handle, peer_context in zip(devices, handles, contexts, strict=True):
                if peer == device:
                    continue
                can_access = ctypes.c_int()
                call("cuDeviceCanAccessPeer", ctypes.byref(can_access), handle, peer_handle)
                if not can_access.value:
                    raise RuntimeError(f"GPU {device} cannot access the memory of GPU {peer}")
                call("cuCtxEnablePeerAccess", peer_context, 0, allowed=(_ALREADY_ENABLED,))
            address = ctypes.c_uint64()
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
            call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(num_bytes))
            call("cuCtxSynchronize")
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        addresses.append(address.value)
    return addresses
