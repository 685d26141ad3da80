"""End a step with each optimizer's step, if a training loop never calls torch_xla.sync().

Nothing runs until a value is read, so a loop that prints the loss in every hundredth step would
compile a program of a hundred steps. If an optimizer makes its second step while the first step's
results are pending, its steps from then on compute all pending values, unless the program calls
torch_xla.sync() itself. That function, and xm.unlazy, also wait here until the devices have
finished, as their documentation says.
"""

import functools
import weakref
from collections.abc import Callable

import torch
import torch_xla
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

_XLAC = torch_xla._XLAC
_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_calls_sync = False


def step_marker(original: Callable[..., None]) -> Callable[..., None]:
    """Record that the program calls torch_xla.sync() itself, and wait for the devices if it asks.

    Upstream only waits until the program has been started.
    """

    @functools.wraps(original)
    def step_marker(
        device: str = "", devices: list[str] | None = None, wait: bool = True, **options: bool
    ) -> None:
        global _calls_sync
        _calls_sync = True
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


def register() -> None:
    """Make each optimizer's step end a step if nothing else does."""
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)


def _before(optimizer: Optimizer, args: tuple, options: dict[str, object]) -> None:
    if torch.compiler.is_compiling() or _calls_sync or optimizer not in _stepped:
        return
    updated = _updated(optimizer)
    if updated is not None:
        _XLAC._xla_find_pending_step(updated)


def _after(optimizer: Optimizer, args: tuple, options: dict[str, object]) -> None:
    if torch.compiler.is_compiling() or _calls_sync:
        return
    updated = _updated(optimizer)
    if updated is not None:
        _stepped.add(optimizer)
        _XLAC._xla_compute_pending_values(updated)


def _updated(optimizer: Optimizer) -> Tensor | None:
    """Return one of the XLA tensors that a step of the optimizer updates."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return parameter if parameter.device.type == "xla" else None
    return None
