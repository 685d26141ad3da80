"""Support ``fused=True`` of torch.optim's optimizers on XLA tensors.

PyTorch refuses it for devices without kernels that update all parameters at once. XLA fuses a
program's operations, so these updates are written as PyTorch operations. As on CUDA, step counts
are on the device, so that a captured step can contain the optimizer, and a GradScaler's infinities
are found on the device. 16-bit parameters are updated in float32, and rounded once.

PyTorch also refuses capturable=True together with foreach=True, which XLA supports.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("aten", "IMPL")
_Rate = float | Tensor


class _Update:
    """The common part of updates: unscale gradients, and skip the update if one is infinite."""

    def __init__(self, maximize: bool, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        self._maximize, self._grad_scale, self._found_inf = maximize, grad_scale, found_inf

    def gradient(self, gradient: Tensor) -> Tensor:
        value = _accurate(gradient)
        if self._grad_scale is not None:
            value = value / self._grad_scale
            gradient.copy_(value)
        return -value if self._maximize else value

    def write(self, tensor: Tensor, value: Tensor) -> None:
        if self._found_inf is not None:
            value = torch.where(self._found_inf == 0, value, _accurate(tensor))
        tensor.copy_(value)


def _accurate(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _bias_correction(beta: float, step: Tensor) -> _Rate:
    """Return 1 - beta ** step, without cancellation in the first steps."""
    return -torch.expm1(step * math.log(beta)) if beta else 1.0


def _adam(decoupled: bool) -> Callable[..., None]:
    def update(
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        averages: Sequence[Tensor],
        squares: Sequence[Tensor],
        max_squares: Sequence[Tensor],
        steps: Sequence[Tensor],
        *,
        lr: _Rate,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        common = _Update(maximize, grad_scale, found_inf)
        for i, parameter in enumerate(parameters):
            value, gradient = _accurate(parameter), common.gradient(gradients[i])
            if decoupled:
                value = value - value * (lr * weight_decay)
            elif weight_decay:
                gradient = gradient + value * weight_decay
            average = _accurate(averages[i]).lerp(gradient, 1 - beta1)
            square = _accurate(squares[i]) * beta2 + gradient * gradient * (1 - beta2)
            largest = square
            if amsgrad:
                largest = torch.maximum(_accurate(max_squares[i]), square)
                common.write(max_squares[i], largest)
            correction = _bias_correction(beta2, steps[i])
            root = correction.sqrt() if isinstance(correction, Tensor) else 1.0
            rate = lr / _bias_correction(beta1, steps[i])
            common.write(averages[i], average)
            common.write(squares[i], square)
            common.write(parameter, value - rate * average / (largest.sqrt() / root + eps))

    return update


def _sgd(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: _Rate,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    common = _Update(maximize, grad_scale, found_inf)
    for i, parameter in enumerate(parameters):
        value, gradient = _accurate(parameter), common.gradient(gradients[i])
        if weight_decay:
            gradient = gradient + value * weight_decay
        if momentum:
            buffer = gradient
            if not is_first_step:
                buffer = _accurate(buffers[i]) * momentum + gradient * (1 - dampening)
            common.write(buffers[i], buffer)
            gradient = gradient + buffer * momentum if nesterov else buffer
        common.write(parameter, value - gradient * lr)


def _adagrad(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    sums: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: _Rate,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    common = _Update(maximize, grad_scale, found_inf)
    for i, parameter in enumerate(parameters):
        value, gradient = _accurate(parameter), common.gradient(gradients[i])
        if weight_decay:
            gradient = gradient + value * weight_decay
        total = _accurate(sums[i]) + gradient * gradient
        rate = lr / ((steps[i] - 1) * lr_decay + 1)
        common.write(sums[i], total)
        common.write(parameter, value - gradient * rate / (total.sqrt() + eps))


def register() -> None:
    """Register the updates for XLA tensors."""
    updates = {"adam": _adam(False), "adamw": _adam(True), "sgd": _sgd, "adagrad": _adagrad}
    for name, update in updates.items():
        for overload in ("", ".tensor_lr"):
            # The key is above functionalization, which cannot write to a list without tensors.
            _LIBRARY.impl(f"_fused_{name}_{overload}", update, "AutogradXLA")


def fused_devices(original: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*original(), "xla"]


def capturable_devices(original: Callable[[], list[str]]) -> Callable[[bool], list[str]]:
    """Add XLA to the devices, also where PyTorch excludes it for foreach=True."""
    return lambda supports_xla=True: original()
