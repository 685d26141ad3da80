"""Find tensors of a state dict that share memory, for libraries that save safetensors.

These libraries compare addresses of storages. Storages of XLA tensors have none, and PyTorch raises
`RuntimeError: Attempted to access the data pointer on an invalid python storage`. But tensors that
share memory have the same storage, as on the CPU.
"""

import functools
from collections.abc import Callable

import torch


def with_host_tensors(original: Callable[..., object]) -> Callable[..., object]:
    """Make a function that finds shared tensors in a state dict look at host tensors instead.

    safetensors.torch has two such functions, and huggingface_hub has copies.
    """

    @functools.wraps(original)
    def function(state_dict: dict[str, torch.Tensor], **options: object) -> object:
        storages: dict[int, torch.UntypedStorage] = {}
        host = {name: _stand_in(tensor, storages) for name, tensor in state_dict.items()}
        return original(host, **options)

    return function


def _stand_in(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a part of a host storage that represents the tensor's memory; it is never accessed."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return tensor
    storage = tensor.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = torch.UntypedStorage(storage.nbytes())
    host = torch.empty(0, dtype=tensor.dtype).set_(storages[storage._cdata])
    # On XLA devices, storage_offset() is 0 even for a view that starts later. An expanded tensor
    # has more elements than its storage.
    start = tensor.data_ptr() // tensor.element_size()
    return host[start : start + tensor.numel()]


def id_tensor_storage(original: Callable[..., object]) -> Callable[..., object]:
    """Replace accelerate's function that returns a key for a tensor's memory."""

    @functools.wraps(original)
    def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
        if tensor.device.type != "xla":
            return original(tensor)
        storage = tensor.untyped_storage()
        return tensor.device, storage._cdata, storage.nbytes()

    return id_tensor_storage
