"""Find tensors of a state dict that share memory, for the libraries that save safetensors.

They compare addresses of storages. Those of XLA tensors have none, and PyTorch raises
`RuntimeError: Attempted to access the data pointer on an invalid python storage`. But tensors that
share memory have the same storage, as on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch


def with_host_tensors(original: Callable[..., object]) -> Callable[..., object]:
    """Return a function of a state dict that returns names: it looks at tensors of the host.

    safetensors.torch has two of them, and huggingface_hub copies.
    """

    @functools.wraps(original)
    def function(state_dict: dict[str, torch.Tensor], **options: object) -> object:
        storages: dict[int, torch.UntypedStorage] = {}
        host = {name: _stand_in(tensor, storages) for name, tensor in state_dict.items()}
        return original(host, **options)

    return function


def _stand_in(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return the part of a host storage, never accessed, that stands for the tensor's memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return tensor
    storage = tensor.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = torch.UntypedStorage(storage.nbytes())
    host = torch.empty(0, dtype=tensor.dtype).set_(storages[storage._cdata])
    # storage_offset() of a view is 0. Elements of an expanded tensor are more than the storage's.
    start = tensor.data_ptr() // tensor.element_size()
    return host[start : start + tensor.numel()]


def id_tensor_storage(original: Callable[..., object]) -> Callable[..., object]:
    """Replace accelerate's key of a tensor's memory."""

    @functools.wraps(original)
    def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
        if tensor.device.type != "xla":
            return original(tensor)
        storage = tensor.untyped_storage()
        return tensor.device, storage._cdata, storage.nbytes()

    return id_tensor_storage
