"""Operators with a `dtype` argument convert their input before the computation, not the result."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients

Function = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
LINALG = torch.linalg
FUNCTIONS: dict[str, Function] = {
    "mean": lambda x, t: x.mean(dtype=t),
    "mean of rows": lambda x, t: x.mean(1, dtype=t),
    "mean of dimensions": lambda x, t: x.mean((0, 1), True, dtype=t),
    "mean of a number": lambda x, t: x[0, 0].mean(dtype=t),
    "nanmean": lambda x, t: x.nanmean(1, dtype=t),
    "sum": lambda x, t: x.sum(dtype=t),
    "sum of rows": lambda x, t: x.sum(1, dtype=t),
    "nansum": lambda x, t: x.nansum(1, dtype=t),
    "prod": lambda x, t: x[:, :9].prod(dtype=t),
    "prod of rows": lambda x, t: x[:, :9].prod(1, dtype=t),
    "cumsum": lambda x, t: x.cumsum(1, dtype=t),
    "cumprod": lambda x, t: x[:, :9].cumprod(1, dtype=t),
    "softmax": lambda x, t: x.softmax(1, dtype=t),
    "log_softmax": lambda x, t: x.log_softmax(1, dtype=t),
    "softmin": lambda x, t: torch.nn.functional.softmin(x, 1, dtype=t),
    "masked mean": lambda x, t: torch.masked.mean(x, 1, dtype=t, mask=x > 0),
}
NORMS: dict[str, Function] = {
    f"vector_norm {order}": lambda x, t, order=order: LINALG.vector_norm(x, order, 1, dtype=t)
    for order in (0, 1, 2, 3, float("inf"), -float("inf"))
}
NORMS |= {
    "norm": lambda x, t: x.norm(dtype=t),
    "torch.norm": lambda x, t: torch.norm(x, dtype=t),
    "norm of rows": lambda x, t: x.norm(dim=1, dtype=t),
    "norm 1": lambda x, t: torch.norm(x, 1, 1, dtype=t),
    "norm of all": lambda x, t: torch.ops.aten.norm.ScalarOpt_dtype(x, 2, dtype=t),
    "matrix_norm": lambda x, t: LINALG.matrix_norm(x, dtype=t),
    "foreach": lambda x, t: torch._foreach_norm([x], 2, dtype=t)[0],
}
REFUSED = {"nanmean", "softmin"}  # of integers, by PyTorch
REAL = [torch.bool, torch.uint8, torch.int32, torch.int64]
SHORT = [torch.float16, torch.bfloat16, torch.float32]


def _input(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(4, 1001, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 4, (4, 1001)).to(dtype)


def _compare(function: Function, x: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype)
    options = CLOSE if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    check(lambda x: function(x, dtype), x, **options)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions(name: str) -> None:
    for before in (*REAL, *SHORT):
        for after in (torch.float32, torch.float64, torch.bfloat16):
            is_narrower = before.is_floating_point and torch.promote_types(before, after) != after
            is_refused = name in REFUSED and not before.is_floating_point
            if not is_refused and not is_narrower:  # XLA may keep more digits than asked for
                _compare(FUNCTIONS[name], _input(before), after)


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    for before in SHORT:
        for after in (torch.float32, torch.float64):
            _compare(NORMS[name], _input(before), after)


@pytest.mark.parametrize("name", sorted(NORMS.keys() - {"norm of all"}))  # whose dtype is real
def test_complex_norms(name: str) -> None:
    x = torch.complex(_input(torch.float32), _input(torch.float32).flip(1))
    for dtype in (torch.complex64, torch.complex128):
        check(lambda x, dtype=dtype: NORMS[name](x, dtype), x, **CLOSE)


@pytest.mark.parametrize("name", ["mean", "mean of rows", "softmax", "log_softmax"])
def test_a_dtype_without_fractions_is_refused(name: str) -> None:
    for dtype in (torch.int64, torch.bool):
        with pytest.raises(RuntimeError, match=r"dtype=torch\.float32"):
            FUNCTIONS[name](_input(torch.float32).to("xla"), dtype)
    if name.startswith("mean"):
        with pytest.raises(RuntimeError, match="the input's dtype is Long"):
            _input(torch.int64).to("xla").mean()


@pytest.mark.parametrize("after", [torch.float32, torch.bfloat16, torch.float16])
def test_nanmean_of_integers_is_refused(after: torch.dtype) -> None:
    for before in REAL:
        with pytest.raises(RuntimeError, match="expected input to have floating point"):
            FUNCTIONS["nanmean"](_input(before).to("xla"), after)


def test_a_narrower_norm_is_refused() -> None:
    for device in ("cpu", "xla"):
        x = _input(torch.float32).to(device)
        with pytest.raises(RuntimeError, match="without narrowing"):
            LINALG.vector_norm(x, dtype=torch.bfloat16)
        with pytest.raises(RuntimeError, match="floating point or complex"):
            LINALG.vector_norm(x, float("inf"), dtype=torch.int64)
        with pytest.raises(RuntimeError, match="Expected a floating point"):
            LINALG.vector_norm(x.to(torch.int64), dtype=torch.float32)


@pytest.mark.parametrize("name", ["mean", "mean of rows", "softmax", "norm", "cumsum"])
def test_compiled(name: str) -> None:
    function = (FUNCTIONS | NORMS)[name]
    check(lambda x: function(x, torch.float32), _input(torch.bfloat16), way="openxla", **CLOSE)


def test_gradient() -> None:
    mean = lambda x: x.mean(1, dtype=torch.float32).square()  # noqa: E731
    check(with_gradients(mean), _input(torch.bfloat16), **CLOSE)
