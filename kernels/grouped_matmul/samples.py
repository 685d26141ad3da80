"""Samples of the grouped matmuls for tests/ops."""

from collections.abc import Callable

import torch
from testing import mxfp4
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
    """Return the elements times their scales; a scale is for one element or a block of 128."""
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


def _mx_linear(
    x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    function = _linear if len(others) == 1 else _linear_sum
    return function(x, mxfp4.values(w, w_scale), *others)


def _mx_arguments(dtype: torch.dtype) -> Arguments:
    weights = mxfp4.quantize(torch.randn(len(_RANGES), _N, 96))
    return _rows(dtype, 96), *weights, _ranges()


def _samples(
    name: str,
    reference: Callable[..., torch.Tensor],
    arguments: Callable[[torch.dtype], Arguments],
    **others: object,
) -> OperatorSamples:
    function = getattr(ops, name)
    return OperatorSamples(
        documented=function,
        target="XlaGpu" + name.title().replace("_", ""),
        reference=reference,
        arguments=arguments,
        tolerance=1e-2 if name.endswith("_sum") else 4e-3,
        **{"dtypes": _DTYPES} | others,
    )


def _scaled_samples(name: str, *sums: torch.Tensor) -> OperatorSamples:
    like = torch.empty(0, dtype=torch.bfloat16)
    return _samples(
        name,
        _scaled_linear,
        lambda dtype: (*_scaled_arguments(dtype), *sums, like),
        dtypes=(torch.float8_e4m3fn,),
        of_tensors=lambda *tensors: getattr(ops, name)(*tensors[:-1]),
    )


SAMPLES = [
    _samples("grouped_matmul", _matmul, _matmul_arguments),
    _samples("grouped_linear", _linear, _linear_arguments),
    _samples("grouped_linear_sum", _linear_sum, _linear_sum_arguments),
    _samples("grouped_outer", _outer, _outer_arguments),
    _scaled_samples("scaled_grouped_linear"),
    _scaled_samples("scaled_grouped_linear_sum", *_sums()),
    _samples("mx_grouped_linear", _mx_linear, _mx_arguments),
    _samples("mx_grouped_linear_sum", _mx_linear, lambda dtype: (*_mx_arguments(dtype), *_sums())),
]
