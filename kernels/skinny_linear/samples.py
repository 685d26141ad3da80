"""Samples of skinny_linear and skinny_swiglu for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples
from torch.nn import functional

from torch_xla_ext import ops

_ROWS, _K, _N = 8, 16, 24
_DTYPES = (torch.float16, torch.bfloat16)


def _linear_arguments(dtype: torch.dtype) -> Arguments:
    return torch.randn(_ROWS, _K).to(dtype), torch.randn(_N, _K).to(dtype)


def _linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.linear(x.double(), w.double()).to(x.dtype)


def _swiglu_arguments(dtype: torch.dtype) -> Arguments:
    return torch.randn(_ROWS, _K).to(dtype), torch.randn(2, 2, _N, _K).to(dtype)


def _swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = torch.einsum("tk,gpnk->ptgn", x.double(), w.double())
    return (functional.silu(gate) * up).to(x.dtype)


SAMPLES = [
    OperatorSamples(
        documented=ops.skinny_linear,
        target="XlaGpuSkinnyLinear",
        reference=_linear,
        dtypes=_DTYPES,
        arguments=_linear_arguments,
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.skinny_swiglu,
        target="XlaGpuSkinnySwiglu",
        reference=_swiglu,
        dtypes=_DTYPES,
        arguments=_swiglu_arguments,
        tolerance=4e-3,
    ),
]
