"""Launches of compiled kernels: as calls of torch_xla's programs, or on a CUDA stream.

Triton's kernels and those of `cuda_kernel` are launched so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch_xla

from torch_xla_ext.custom_call.call import custom_call, is_cacheable, prepare
from xla_kernels.launch import TARGET, Call, Launch

_XLAC = torch_xla._XLAC


def launch_is_cacheable() -> bool:
    """Whether a prepared launch is all that `launch` makes of operands with an _xla_call_key."""
    return is_cacheable(TARGET)


def launch(call: Call) -> list[torch.Tensor]:
    """Implements FrontEnd.launch."""
    return custom_call(TARGET, list(call.operands), list(call.results), **_keywords(call))


def prepare_launch(call: Call) -> object:
    """Implements FrontEnd.prepare_launch."""
    return prepare(TARGET, list(call.operands), list(call.results), **_keywords(call))


def _keywords(call: Call) -> dict[str, object]:
    return {
        "attributes": call.attributes(),
        "api": "ffi",
        "aliases": dict(call.aliases),
        "has_side_effect": call.has_side_effect,
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
