"""Make the calls of xla_kernels in torch-tpu's programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import torch

from torch_xla_gpu import custom_call, device, front
from torch_xla_gpu.custom_call import call_key
from xla_kernels import ArrayType, transforms
from xla_kernels.launch import TARGET, Call


@functools.cache
def register() -> None:
    """Register the handler that launches compiled kernels."""
    front.register_handler(TARGET, device.current().platform, front.address_of(TARGET))


def key_of(
    values: Sequence[object],
    operands: list[torch.Tensor] | None = None,
    other: Callable[[object], Hashable | None] = lambda value: None,
) -> call_key.Key | None:
    """Implement FrontEnd.call_key."""
    found = [] if operands is None else operands
    key = call_key.of_values(values, found, other)
    return None if operands is not None and _is_differentiated(found) else key


def _is_differentiated(operands: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)


class _Prepared:
    """A call without its operands."""

    def __init__(self, made: custom_call.Prepared, written: frozenset[int], returned: int) -> None:
        self._made = made
        self._written = written
        self._returned = returned  # the results without workspaces

    def __call__(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # Copies, because a donated buffer is gone, but the caller's tensors must not change.
        results = self._made(
            [
                custom_call.copy(tensor) if i in self._written else tensor
                for i, tensor in enumerate(operands)
            ]
        )
        return results[: self._returned]


def launch(call: Call) -> list[torch.Tensor]:
    """Implement FrontEnd.launch; raise ValueError if an operand is on another device."""
    return without_derivative(call.launch.kernel, call.operands, lambda: prepare_launch(call))


def without_derivative(
    name: str,
    operands: Sequence[torch.Tensor],
    prepare: Callable[[], Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]],
) -> list[torch.Tensor]:
    """Make a call of a function that PyTorch's transforms do not know."""
    for i, tensor in enumerate(operands):
        if tensor.device.type != device.TYPE:
            raise ValueError(
                f"kernel {name!r}: tensor {i} must be on the device {device.TYPE}, but is on "
                f"{tensor.device}: move it there with .to({device.TYPE!r})"
            )
    transforms.refuse(name, operands)
    made = prepare()
    if _is_differentiated(operands):
        return list(transforms.WithoutDerivative.apply(name, made, *operands))
    return made(operands)


def prepare_launch(call: Call) -> _Prepared:
    """Implement FrontEnd.prepare_launch."""
    if call.launch.target == TARGET:
        register()
    made = custom_call.prepare(
        call.launch.target,
        [ArrayType.of(tensor) for tensor in call.operands],
        call.results,
        attributes=call.attributes(),
        aliases=call.aliases,
        layouts=call.result_layouts,
        operand_layouts=call.operand_layouts,
        has_side_effect=call.has_side_effect,
    )
    returned = len(call.results) - call.num_hidden_results
    return _Prepared(made, frozenset(call.aliases.values()), returned)
