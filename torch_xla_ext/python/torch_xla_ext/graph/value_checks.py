"""Raise PyTorch's errors about values in programs of torch.compile.

PyTorch's kernels check values that XLA's programs do not. A check is two nodes of a graph: one on
the device computes whether the values are right, and one on the host reads that, at each call.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Check:
    """One check of an operator's operands.

    Attributes:
        holds: returns whether they are right; its parameters are the operator's.
        message: that of the error which is raised otherwise.
        error: its type.
    """

    holds: Callable[..., torch.Tensor]
    message: str
    error: type[Exception] = RuntimeError


def add_checks(graph: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Add the checks of the graph's operators; return their nodes that run on the host."""
    added = set()
    for node in graph.graph.nodes:
        name = str(node.target)
        if node.op == "call_function" and name in _CHECKS:
            with graph.graph.inserting_before(node):
                results = graph.graph.call_function(_results, (name, *node.args), node.kwargs)
                added.add(graph.graph.call_function(_raise_first, (name, results)))
    if added:
        graph.recompile()
    return added


def _results(name: str, *args: object, **options: object) -> torch.Tensor:
    return torch.stack([check.holds(*args, **options) for check in _CHECKS[name]])


def _raise_first(name: str, results: torch.Tensor) -> None:
    for check, holds in zip(_CHECKS[name], results.tolist(), strict=True):
        if not holds:
            raise check.error(check.message)


def _are_probabilities(p: torch.Tensor) -> torch.Tensor:
    return ((p >= 0) & (p <= 1)).all()


def _has_enough_elements(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return mask.sum() * (shape.numel() // max(mask.numel(), 1)) <= source.numel()


def _is_in_pool(
    _: torch.Tensor, places: torch.Tensor, size: list[int], *__: object
) -> torch.Tensor:
    return ((places >= 0) & (places < math.prod(size))).all()


def _has_finite_range(
    x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0
) -> torch.Tensor:
    return x.isfinite().all() | (min != max)


_PROBABILITIES = "bernoulli: expected probabilities p from 0 to 1, but some are not"
_DEVIATIONS = "normal expects all elements of std >= 0.0"
_PLACES = "Found an invalid max index: expected indices of elements of the output"

_CHECKS: dict[str, tuple[_Check, ...]] = {
    str(operator): checks
    for operator, *checks in (
        (_aten.bernoulli.default, _Check(lambda x, **_: _are_probabilities(x), _PROBABILITIES)),
        (_aten.bernoulli.Tensor, _Check(lambda x, p, **_: _are_probabilities(p), _PROBABILITIES)),
        (_aten.bernoulli_.Tensor, _Check(lambda x, p, **_: _are_probabilities(p), _PROBABILITIES)),
        (_aten.histc.default, _Check(_has_finite_range, "torch.histc: the range is not finite")),
        (
            _aten._linalg_svd.default,
            _Check(
                lambda x, *_, **__: x.isfinite().all(),
                "linalg.svd: The algorithm failed to converge because the input matrix contained "
                "non-finite values.",
                torch.linalg.LinAlgError,
            ),
        ),
        (
            _aten.masked_scatter.default,
            _Check(_has_enough_elements, "Number of elements of source < number of ones in mask"),
        ),
        (_aten.max_unpool2d.default, _Check(_is_in_pool, _PLACES)),
        (_aten.max_unpool3d.default, _Check(_is_in_pool, _PLACES)),
        (
            _aten.multinomial.default,
            _Check(
                lambda x, *_, **__: ((x >= 0) & (x < math.inf)).all(),
                "probability tensor contains either `inf`, `nan` or element < 0",
            ),
            _Check(
                lambda x, *_, **__: (x.sum(-1) != 0).all(),
                "invalid multinomial distribution (sum of probabilities <= 0)",
            ),
        ),
        (_aten.normal.Tensor_Tensor, _Check(lambda _, std, **__: (std >= 0).all(), _DEVIATIONS)),
        (_aten.normal.float_Tensor, _Check(lambda _, std, **__: (std >= 0).all(), _DEVIATIONS)),
    )
}
