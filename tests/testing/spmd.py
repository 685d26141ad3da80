"""Tensors that are sharded over the devices of one process."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from testing import programs


def sharded(tensor: torch.Tensor, mesh: xs.Mesh, spec: tuple | None = None) -> torch.Tensor:
    """`tensor` on the devices, sharded by `spec` unless it is None."""
    result = tensor.to("xla")
    if spec is not None:
        xs.mark_sharding(result, mesh, spec)
        assert "devices=" in torch_xla._XLAC._get_xla_sharding_spec(result) or not any(spec)
    torch_xla.sync()
    return result


def all_sharded(tensors: Iterable, mesh: xs.Mesh, specs: Iterable) -> list[torch.Tensor]:
    """The tensors on the devices, each sharded by its spec unless that is None."""
    return [sharded(tensor, mesh, spec) for tensor, spec in zip(tensors, specs, strict=True)]


def run(function: Callable[..., torch.Tensor], target: str) -> tuple[torch.Tensor, str]:
    """The result, and the text of the program that calls the kernel."""
    torch_xla.sync()
    with programs.compiled() as compiled:
        result = function().cpu()
    return result, compiled.with_target(target)


def mesh_of(**axes: int) -> xs.Mesh:
    count = xr.global_runtime_device_count()
    return xs.Mesh(np.arange(count), tuple(axes.values()), tuple(axes))
