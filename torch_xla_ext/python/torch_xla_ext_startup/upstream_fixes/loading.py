"""Support torch.load(…, map_location="xla"), as with "cuda", and torch.jit.load and save.

PyTorch restores storages, then makes tensors from them; but XLA tensors have no storage. So a
storage for the XLA device stays on the host and is marked, and tensors made from it are moved.
A module of TorchScript is loaded on the CPU and moved, and a copy on the CPU is saved.
"""

import copy
import functools
import sys
from collections.abc import Callable

import torch

_MARK = "_torch_xla_ext_device"


def _restore(storage: object, location: str) -> object:
    if location.partition(":")[0] != "xla":
        return None
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_legacy_load":
        frame = frame.f_back
    if frame is not None:  # which reads the values after it has made the tensors
        raise RuntimeError(
            "a file in the format of torch.save before PyTorch 1.6 cannot be loaded with "
            'map_location="xla": load it with map_location="cpu", and move the tensors'
        )
    setattr(storage, _MARK, torch.device(location))
    return storage


def rebuild_tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def rebuild_tensor(storage: object, *place: object) -> torch.Tensor:
        tensor = original(storage, *place)
        device = getattr(storage._untyped_storage, _MARK, None)
        return tensor if device is None else tensor.to(device)

    return rebuild_tensor


def rebuild_device_tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make a leaf of a pickled tensor that requires a gradient; its copy is not one."""

    @functools.wraps(original)
    def rebuild_device_tensor(data: torch.Tensor, *place: object) -> torch.Tensor:
        return original(data.detach(), *place)

    return rebuild_device_tensor


def load_script(original: Callable[..., torch.jit.ScriptModule]) -> Callable[..., object]:
    """Replace torch.jit.load."""

    @functools.wraps(original)
    def load(f: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        if str(map_location).partition(":")[0] != "xla":
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to(map_location)

    return load


def save_script(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a method of torch.jit.ScriptModule that saves it."""

    @functools.wraps(original)
    def save(self: torch.jit.ScriptModule, *args: object, **kwargs: object) -> object:
        tensors = (*self.parameters(), *self.buffers())
        if any(tensor.device.type == "xla" for tensor in tensors):
            self = copy.deepcopy(self).to("cpu")
        return original(self, *args, **kwargs)

    return save


def register() -> None:
    """Make torch.load keep storages for XLA devices on the host."""
    # Registered before PyTorch's functions, which refuse unknown devices.
    torch.serialization.register_package(5, lambda _storage: None, _restore)
