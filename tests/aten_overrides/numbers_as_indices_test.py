"""Indices and sources without dimensions, in place of vectors, and without elements."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import check

Case = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
CASES: dict[str, Case] = {
    "gather": lambda v, i, x: v.gather(0, i),
    "gather by a vector": lambda v, i, x: x.gather(0, i[None] * 0),
    "scatter": lambda v, i, x: v.scatter(0, i, x),
    "scatter a number": lambda v, i, x: v.scatter(0, i, 9.0),
    "scatter by a vector": lambda v, i, x: v.scatter(0, i[None], x),
    "scatter a vector": lambda v, i, x: v.scatter(0, i, v[4:5]),
    "scatter and add": lambda v, i, x: v.scatter(0, i, 3.0, reduce="add"),
    "scatter in place": lambda v, i, x: v.clone().scatter_(0, i, 1.0),
    "scatter_add": lambda v, i, x: v.scatter_add(0, i, x),
    "scatter_reduce": lambda v, i, x: v.scatter_reduce(0, i, x, "prod"),
    "index_copy": lambda v, i, x: v.index_copy(0, i, x),
    "index_fill": lambda v, i, x: v.index_fill(0, i, x),
    "index_add of nothing": lambda v, i, x: v.view(2, 3).index_add(
        0, i.expand(0), torch.zeros(0, 3, device=v.device)
    ),
    "index_add to nothing": lambda v, i, x: v[:0].index_add(0, i.expand(0), v[:0]),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    check(CASES[name], torch.arange(6.0), torch.tensor(2), torch.tensor(7.0))


def test_dimensions_that_do_not_match_are_refused() -> None:
    x = torch.zeros(2, 3, device="xla")
    with pytest.raises(RuntimeError, match="same number of dimensions as input"):
        x.gather(0, torch.tensor([0], device="xla"))
    with pytest.raises(RuntimeError, match="dimension"):
        x.index_add(0, torch.tensor([0], device="xla"), torch.zeros(1, 4, device="xla"))
