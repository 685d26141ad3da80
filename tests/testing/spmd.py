"""Tensors that are sharded over the devices of one process."""

import torch
import torch_xla
import torch_xla.distributed.spmd as xs


def sharded(tensor: torch.Tensor, mesh: xs.Mesh, spec: tuple | None = None) -> torch.Tensor:
    """`tensor` on the devices, sharded as `spec` says if there is one."""
    result = tensor.to("xla")
    if spec is not None:
        xs.mark_sharding(result, mesh, spec)
        assert "devices=" in torch_xla._XLAC._get_xla_sharding_spec(result) or not any(spec)
    torch_xla.sync()
    return result
