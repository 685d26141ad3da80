"""The launches that are calls of torch_xla's programs, or are made on a CUDA stream.

Besides this module, none here knows torch_xla: other front ends have one of their own in its place
(//integrations/torch_tpu).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_xla

from torch_xla_ext.custom_call import custom_call, prepare
from torch_xla_ext.custom_call import may_be_remembered as target_may_be_remembered
from torch_xla_ext.launchers.launch import TARGET, Launch
from torch_xla_ext.registry import registration
from torch_xla_ext.signature.schema import ArrayType

_XLAC = torch_xla._XLAC

# call_key(values, operands, other): what a call is remembered by.
call_key = _XLAC._xla_call_key


def is_cpu() -> bool:
    """Whether the device is the CPU, where a reference takes the kernel's place."""
    return registration.device_platform() == "Host"


def may_be_remembered() -> bool:
    """Whether `call_prepared` is all that `call` makes of operands with a `call_key`."""
    return target_may_be_remembered(TARGET)


def call(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[ArrayType],
    parameters: Sequence[str],
    aliases: Mapping[int, int],
    has_side_effect: bool = False,
) -> list[torch.Tensor]:
    """Makes the call; `aliases` and `has_side_effect` as of `custom_call`."""
    keywords = _keywords(launch, parameters, aliases, has_side_effect)
    return custom_call(TARGET, list(operands), list(results), **keywords)


def prepared(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[ArrayType],
    parameters: Sequence[str],
    aliases: Mapping[int, int],
    has_side_effect: bool = False,
) -> object:
    """The call without its operands, for operands like these."""
    keywords = _keywords(launch, parameters, aliases, has_side_effect)
    return prepare(TARGET, list(operands), list(results), **keywords)


def call_prepared(prepared: object, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Makes the call that `prepared` returned."""
    return _XLAC._xla_call_prepared(prepared, operands)


def _keywords(
    launch: Launch, parameters: Sequence[str], aliases: Mapping[int, int], has_side_effect: bool
) -> dict[str, object]:
    return {
        "attributes": launch.attributes(parameters),
        "api": "ffi",
        "aliases": dict(aliases),
        "has_side_effect": has_side_effect,
    }


def run(
    launch: Launch,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    parameters: Sequence[str],
    stream: int,
) -> None:
    """Launches on a CUDA stream, with PyTorch's own contiguous CUDA tensors."""
    _XLAC._xla_launch_compiled_kernel(
        attributes=launch.attributes(parameters),
        operands=[tensor.data_ptr() for tensor in operands],
        results=[tensor.data_ptr() for tensor in results],
        stream=stream,
    )
