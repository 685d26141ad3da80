"""Launches of compiled kernels: as calls of torch_xla's programs, or on a CUDA stream.

Triton's kernels and those of `cuda_kernel` are launched so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_xla

from torch_xla_ext.custom_call.call import custom_call, is_cacheable, prepare
from xla_kernels.launch import TARGET, Launch
from xla_kernels.signature.schema import ArrayType

_XLAC = torch_xla._XLAC


def launch_is_cacheable() -> bool:
    """Whether a prepared launch is all that `launch` makes of operands with an _xla_call_key."""
    return is_cacheable(TARGET)


def launch(
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


def prepare_launch(
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
