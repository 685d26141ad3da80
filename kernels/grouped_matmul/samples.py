"""Samples of the grouped products for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

# The second group is empty, and the last three rows are in no group.
_RANGES = ((0, 4), (4, 4), (4, 9))
_ROWS, _K, _N = 12, 16, 24
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _ranges() -> torch.Tensor:
    return torch.tensor(_RANGES, dtype=torch.int32)


def _rows(dtype: torch.dtype, columns: int) -> torch.Tensor:
    return torch.randn(_ROWS, columns).to(dtype)


def _weights(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(len(_RANGES), *shape).to(dtype)


def _matmul(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], w.shape[2], dtype=torch.float64)
    for group, (begin, end) in enumerate(ranges.tolist()):
        out[begin:end] = x[begin:end].double() @ w[group].double()
    return out.to(x.dtype)


def _linear(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    return _matmul(x, w.transpose(1, 2), ranges)


def _linear_sum(
    x: torch.Tensor,
    w: torch.Tensor,
    ranges: torch.Tensor,
    position: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    products = _linear(x, w, ranges)[position.long()].double()
    return (products * weights.double()[..., None]).sum(1).to(x.dtype)


def _outer(x: torch.Tensor, y: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    parts = [x[begin:end].double().t() @ y[begin:end].double() for begin, end in ranges.tolist()]
    return torch.stack(parts).to(x.dtype)


def _matmul_arguments(dtype: torch.dtype) -> Arguments:
    return _rows(dtype, _K), _weights(dtype, _K, _N), _ranges()


def _linear_arguments(dtype: torch.dtype) -> Arguments:
    return _rows(dtype, _K), _weights(dtype, _N, _K), _ranges()


def _sums() -> Arguments:
    return torch.randint(_ROWS, (4, 3), dtype=torch.int32), torch.rand(4, 3)


def _linear_sum_arguments(dtype: torch.dtype) -> Arguments:
    return *_linear_arguments(dtype), *_sums()


def _outer_arguments(dtype: torch.dtype) -> Arguments:
    return _rows(dtype, _K), _rows(dtype, _N), _ranges()


def _scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the elements times their scales, which are of blocks of 128 or of each."""
    for dim in (-2, -1):
        repeats = 1 if scale.shape[dim] == x.shape[dim] else 128
        scale = scale.repeat_interleave(repeats, dim).narrow(dim, 0, x.shape[dim])
    return x.double() * scale


def _scaled_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    *others: torch.Tensor,
) -> torch.Tensor:
    function = _linear if len(others) == 2 else _linear_sum
    *others, like = others
    return function(_scaled(x, x_scale), _scaled(w, w_scale), *others).to(like.dtype)


def _scaled_arguments(dtype: torch.dtype) -> Arguments:
    return (
        torch.randn(_ROWS, 256).to(dtype),
        torch.randn(len(_RANGES), _N, 256).to(dtype),
        torch.rand(_ROWS, 2) + 0.5,
        torch.rand(len(_RANGES), 1, 2) + 0.5,
        _ranges(),
    )


def _like() -> torch.Tensor:
    return torch.empty(0, dtype=torch.bfloat16)


_MX_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MX_VALUES = torch.cat([_MX_VALUES, -_MX_VALUES])


def mx_values(w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """Return the values of weights in MXFP4, in float64."""
    codes = torch.stack([w & 15, w >> 4], -1).flatten(-2).long()
    scale = torch.exp2(w_scale.double() - 127)
    return _MX_VALUES.double()[codes] * scale.repeat_interleave(32, -1)


def _mx_linear(
    x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    function = _linear if len(others) == 1 else _linear_sum
    return function(x, mx_values(w, w_scale), *others)


def _mx_arguments(dtype: torch.dtype) -> Arguments:
    codes = torch.randint(256, (len(_RANGES), _N, 48), dtype=torch.uint8)
    scales = torch.randint(120, 130, (len(_RANGES), _N, 3), dtype=torch.uint8)
    return _rows(dtype, 96), codes, scales, _ranges()


SAMPLES = [
    OperatorSamples(
        documented=ops.grouped_matmul,
        target="XlaGpuGroupedMatmul",
        reference=_matmul,
        dtypes=_DTYPES,
        arguments=_matmul_arguments,
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.grouped_linear,
        target="XlaGpuGroupedLinear",
        reference=_linear,
        dtypes=_DTYPES,
        arguments=_linear_arguments,
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.grouped_linear_sum,
        target="XlaGpuGroupedLinearSum",
        reference=_linear_sum,
        dtypes=_DTYPES,
        arguments=_linear_sum_arguments,
        tolerance=1e-2,
    ),
    OperatorSamples(
        documented=ops.grouped_outer,
        target="XlaGpuGroupedOuter",
        reference=_outer,
        dtypes=_DTYPES,
        arguments=_outer_arguments,
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.scaled_grouped_linear,
        target="XlaGpuScaledGroupedLinear",
        reference=_scaled_linear,
        dtypes=(torch.float8_e4m3fn,),
        arguments=lambda dtype: (*_scaled_arguments(dtype), _like()),
        of_tensors=lambda *tensors: ops.scaled_grouped_linear(*tensors[:-1]),
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.scaled_grouped_linear_sum,
        target="XlaGpuScaledGroupedLinearSum",
        reference=_scaled_linear,
        dtypes=(torch.float8_e4m3fn,),
        arguments=lambda dtype: (*_scaled_arguments(dtype), *_sums(), _like()),
        of_tensors=lambda *tensors: ops.scaled_grouped_linear_sum(*tensors[:-1]),
        tolerance=1e-2,
    ),
    OperatorSamples(
        documented=ops.mx_grouped_linear,
        target="XlaGpuMxGroupedLinear",
        reference=_mx_linear,
        dtypes=_DTYPES,
        arguments=_mx_arguments,
        tolerance=4e-3,
    ),
    OperatorSamples(
        documented=ops.mx_grouped_linear_sum,
        target="XlaGpuMxGroupedLinearSum",
        reference=_mx_linear,
        dtypes=_DTYPES,
        arguments=lambda dtype: (*_mx_arguments(dtype), *_sums()),
        tolerance=1e-2,
    ),
]
