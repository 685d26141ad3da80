"""Pooling windows that are larger than the padded input, which ceil_mode allows."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients
from torch.nn import functional as F  # noqa: N812

Pool = Callable[..., torch.Tensor]
POOLS: dict[str, tuple[Pool, int]] = {
    f"{kind}_pool{rank}d": (getattr(F, f"{kind}_pool{rank}d"), rank)
    for kind in ("avg", "max")
    for rank in (1, 2, 3)
    if (kind, rank) != ("avg", 3)  # PyTorch refuses them
}


@pytest.mark.parametrize("stride", [None, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("name", POOLS)
def test_windows_beyond_the_input(name: str, padding: int, stride: int | None) -> None:
    """Upstream's results have other sizes: 0 or 2 where PyTorch's is 1."""
    pool, rank = POOLS[name]
    x = torch.randn(1, 2, *(3, 4, 6)[-rank:]).narrow(2, 0, 3 - padding)
    kernel = 4 if stride is not None else 5
    check(
        with_gradients(lambda x: pool(x, kernel, stride, padding, ceil_mode=True)),
        x.contiguous(),
        **CLOSE,
    )


@pytest.mark.parametrize("way", ["lazy", "openxla"])
def test_indices_of_windows_beyond_the_input(way: str) -> None:
    check(
        lambda x: F.max_pool2d(x, 4, ceil_mode=True, return_indices=True),
        torch.randn(2, 1, 3, 6),
        way=way,
    )


def test_averages_that_count_the_padding() -> None:
    for options in ({"count_include_pad": False}, {"divisor_override": 3}):
        check(
            lambda x, options=options: F.avg_pool2d(x, 5, 3, 1, ceil_mode=True, **options),
            torch.randn(1, 2, 2, 7),
            **CLOSE,
        )
