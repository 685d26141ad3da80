"""The launches that are calls of torch-tpu's programs, in place of torch_xla_ext's module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch_xla_gpu import custom_call, device, front
from torch_xla_gpu.custom_call import remembered, transforms
from torch_xla_gpu.launchers.launch import TARGET, Launch
from torch_xla_gpu.signature.schema import ArrayType

# PyTorch's name of the device whose tensors a call takes.
TYPE = device.TYPE


def is_cpu() -> bool:
    """Whether the device is the CPU, where a reference takes the kernel's place."""
    return device.current().platform == "Host"


@functools.cache
def register() -> None:
    """Registers the handler that launches compiled kernels."""
    front.register_handler(TARGET, device.current().platform, front.address_of(TARGET))


def call_key(
    values: Sequence[object],
    operands: list[torch.Tensor] | None = None,
    other: Callable[[object], Hashable | None] = lambda value: None,
) -> remembered.Key | None:
    """What a call is remembered by; the arguments are those of `remembered.of_values`."""
    found = [] if operands is None else operands
    key = remembered.of_values(values, found, other)
    return None if operands is not None and _is_differentiated(found) else key


def may_be_remembered() -> bool:
    """Whether `call_prepared` is all that `call` makes of operands with a `call_key`."""
    return not transforms.may_apply()


def _is_differentiated(operands: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)


class _Prepared:
    """A call without its operands."""

    def __init__(self, made: custom_call.Prepared, written: frozenset[int]) -> None:
        self._made = made
        self._written = written

    def __call__(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # Of copies: a donated buffer is gone, and the caller's tensors do not change.
        return self._made(
            [
                custom_call.copy(tensor) if i in self._written else tensor
                for i, tensor in enumerate(operands)
            ]
        )


def call(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[ArrayType],
    parameters: Sequence[str],
    aliases: Mapping[int, int],
    has_side_effect: bool = False,
) -> list[torch.Tensor]:
    """Makes the call.

    Args:
        aliases: {result: operand}: results that the kernel writes to a copy of the operand.
        has_side_effect: XLA keeps the call even if nothing in the program uses its results.

    Raises:
        ValueError: an operand is elsewhere.
        NotImplementedError: under a transform of PyTorch, or in a backward pass.
    """
    for i, tensor in enumerate(operands):
        if tensor.device.type != TYPE:
            raise ValueError(
                f"cuda_kernel {launch.kernel!r}: tensor {i} must be on the device {TYPE}, but is "
                f"on {tensor.device}: move it there with .to({TYPE!r})"
            )
    transforms.refuse(launch.kernel, operands)
    made = prepared(launch, operands, results, parameters, aliases, has_side_effect)
    if _is_differentiated(operands):
        return list(transforms.WithoutDerivative.apply(launch.kernel, made, *operands))
    return made(operands)


def prepared(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[ArrayType],
    parameters: Sequence[str],
    aliases: Mapping[int, int],
    has_side_effect: bool = False,
) -> _Prepared:
    """The call without its operands, for operands like these."""
    register()
    made = custom_call.prepare(
        TARGET,
        [ArrayType.of(tensor) for tensor in operands],
        results,
        attributes=launch.attributes(parameters),
        aliases=aliases,
        has_side_effect=has_side_effect,
    )
    return _Prepared(made, frozenset(aliases.values()))


def call_prepared(prepared: _Prepared, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Makes the call that `prepared` returned."""
    return prepared(operands)
