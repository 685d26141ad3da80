"""Samples of quantize_rows for tests/ops."""

import torch
from testing.samples import OperatorSamples

from torch_xla_ext import ops

_LEAST = 2.0**-10


def _reference(x: torch.Tensor) -> torch.Tensor:
    """Return the values that the float8 bytes represent."""
    scale = (x.float().abs().amax(1) / 448).clamp(min=_LEAST)
    numbers = (x.float() * scale.reciprocal()[:, None]).clamp(-448, 448)
    return numbers.to(torch.float8_e4m3fn).float() * scale[:, None]


def _of_tensors(x: torch.Tensor) -> torch.Tensor:
    numbers, scale = ops.quantize_rows(x, _LEAST)
    return numbers.float() * scale[:, None]


SAMPLES = [
    OperatorSamples(
        documented=ops.quantize_rows,
        target="XlaGpuQuantizeRows",
        reference=_reference,
        dtypes=(torch.float16, torch.bfloat16, torch.float32),
        arguments=lambda dtype: ((torch.randn(5, 24) * 3).to(dtype),),
        others=(_LEAST,),
        of_tensors=_of_tensors,
    )
]
