"""Other calls of OpInfo's samples: strided operands, `out=`, in place to a view, wrong calls."""

import functools
import re
from collections.abc import Callable, Iterator

import torch
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as pytree

Call = tuple[Callable[..., object], core.SampleInput]

# XLA tensors say that they are row-major, so that as_strided of a strided view is refused.
_OF_STRIDES = ("as_strided", "as_strided_copy", "as_strided_scatter")
# PyTorch's CPU ignores the strides of `out=`, or resizes to the same size.
_WITHOUT_STRIDED_OUT = (
    *("empty", "narrow_copy", "nn.functional.avg_pool3d", "nn.functional.gelu"),
    "nn.functional.linear",
)
# The results of these are compared by what does not depend on signs and phases.
_WITH_SIGNS = ("linalg.eigh", "linalg.qr", "linalg.svd", "qr", "svd")
# PyTorch's CPU resizes the tensor that is written to, or divides by 0.
_WITHOUT_VIEWS = ("addbmm", "as_strided", "mvlgamma")


def strided(operator: core.OpInfo, dtype: torch.dtype) -> Iterator[Call]:
    """Calls whose operands are every second element of a tensor, and conjugated."""

    def call(*args: object, **kwargs: object) -> object:
        return operator.op(*pytree.tree_map(_strided, args), **pytree.tree_map(_strided, kwargs))

    if operator.name not in _OF_STRIDES:
        for sample in operator.sample_inputs("cpu", dtype):
            yield call, sample


def out(operator: core.OpInfo, dtype: torch.dtype) -> Iterator[Call]:
    """Calls with `out=` views. The results are the tensors around them."""
    left_out = not operator.supports_out or operator.name in _WITHOUT_STRIDED_OUT + _WITH_SIGNS
    for sample in () if left_out else operator.sample_inputs("cpu", dtype):
        try:
            results = operator.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        yield functools.partial(_call_with_out, operator.op, results), sample


def in_place(operator: core.OpInfo, dtype: torch.dtype) -> Iterator[Call]:
    """Calls that write to a view. The result is the tensor around it."""
    method = operator.inplace_variant
    left_out = method is None or operator.name in _WITHOUT_VIEWS
    for sample in () if left_out else operator.sample_inputs("cpu", dtype):
        if isinstance(sample.input, torch.Tensor):
            yield functools.partial(_write_to_a_view, method), sample


def wrong(operator: core.OpInfo, dtype: torch.dtype) -> Iterator[Call]:
    """Calls that PyTorch refuses. The result says how they were refused."""
    for error in operator.error_inputs("cpu") if operator.error_inputs_func else ():
        # Values of indices are on the device, which would have to be waited for.
        if not re.search("index .* out of bounds", error.error_regex):
            yield functools.partial(_refused, operator.op), error.sample_input


def _strided(x: object) -> object:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return x
    view = _inside(x.conj().resolve_conj())[..., 1] if x.dim() else x
    return view.conj()


def _inside(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose [..., 1] is x."""
    around = torch.full((*x.shape, 2), 1, dtype=x.dtype, device=x.device)
    around[..., 1] = x
    return around


def _call_with_out(function: Callable, results: object, *args: object, **kwargs: object) -> object:
    device = next(
        (x.device for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)),
        kwargs.get("device", "cpu"),
    )
    around = pytree.tree_map(
        lambda x: torch.full((*x.shape, 2), 1, dtype=x.dtype, device=device), results
    )
    views = pytree.tree_map(lambda x: x[..., 1], around)
    function(*args, **kwargs, out=views)
    return around


def _write_to_a_view(method: Callable, x: torch.Tensor, *args: object, **kwargs: object) -> object:
    around = _inside(x)
    method(around[..., 1], *args, **kwargs)
    return around


def _refused(function: Callable, *args: object, **kwargs: object) -> str:
    try:
        function(*args, **kwargs)
    except Exception as error:
        text = str(error)
        unclear = re.search(
            r"Check failed|INTERNAL ASSERT|StatusOr|C\+\+|frame #|third_party", text
        )
        return f"{type(error).__name__}: {text}" if unclear or not text else "refused"
    return "returned"
