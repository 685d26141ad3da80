"""Compares functions on the XLA device with the same functions on the CPU."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch_xla
from torch.utils import _pytree as pytree

from testing.ways import run_by

EXACTLY = {"rtol": 0.0, "atol": 0.0}
CLOSE = {"rtol": None, "atol": None}  # within assert_close's tolerances for the dtype


def check(
    function: Callable[..., object],
    *operands: object,
    way: str = "lazy",
    **tolerances: float | None,
) -> None:
    """Compares the results for these CPU tensors, and the operands if the function writes to them.

    `way` is that of testing.ways. Values must be equal, unless there are `tolerances`, which are
    options of torch.testing.assert_close.
    """
    check_calls(function, [operands], way, **tolerances)


def check_calls(
    function: Callable[..., object], calls: Iterable[Sequence], way: str, **tolerances: float | None
) -> None:
    """As `check`, for several calls of one captured or compiled function."""
    run, tolerances = run_by(way, function), EXACTLY | tolerances
    for operands in calls:
        own = pytree.tree_map_only(torch.Tensor, lambda x: x.to("xla"), tuple(operands))
        found, expected = run(*own), function(*operands)
        torch_xla.sync()  # one program
        found, own = pytree.tree_map_only(torch.Tensor, lambda x: x.detach().cpu(), (found, own))
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerances)
        torch.testing.assert_close(own, tuple(operands), equal_nan=True, **tolerances)


def with_gradients(
    function: Callable[..., torch.Tensor],
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns the result, and the operands' gradients of the result's weighted sum."""

    def of(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in operands]
        result = function(*leaves)
        weights = torch.linspace(0.5, 1.5, result.numel()).view(result.shape).to(result)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        return result.detach(), *torch.autograd.grad(result, wanted, weights)

    return of
