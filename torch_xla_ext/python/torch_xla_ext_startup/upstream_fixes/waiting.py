"""Wait until programs have ended where torch_xla says so, not only until they have been started."""

import functools
from collections.abc import Callable

import torch_xla
from torch import Tensor

_XLAC = torch_xla._XLAC


def step_marker(original: Callable[..., None]) -> Callable[..., None]:
    """Make `torch_xla.sync(wait=True)` and `xm.mark_step(wait=True)` wait for the devices."""

    @functools.wraps(original)
    def step_marker(
        device: str = "", devices: list[str] | None = None, wait: bool = True, **options: bool
    ) -> None:
        original(device, devices or [], wait=wait, **options)
        if wait:
            _XLAC._xla_wait_device_ops([])

    return step_marker


def unlazy(original: Callable[[list[Tensor]], None]) -> Callable[[list[Tensor]], None]:
    """Make `xm.unlazy` wait for the devices."""

    @functools.wraps(original)
    def unlazy(tensors: list[Tensor]) -> None:
        original(tensors)
        _XLAC._xla_wait_device_ops([])

    return unlazy
