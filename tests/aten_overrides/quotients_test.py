"""Quotients of quotients, which XLA computes with a product that may overflow."""

import pytest
import torch
from testing.as_on_the_cpu import check, with_gradients
from torch.nn import functional

LARGE = {torch.float16: 1e3, torch.float32: 1e25, torch.float64: 1e200}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("dtype", LARGE, ids=str)
def test_quotients_of_quotients(dtype: torch.dtype, way: str) -> None:
    def quotients(x: torch.Tensor) -> list[torch.Tensor]:
        row = x.reshape(2, -1)
        return [
            *(x / x / x, x / (x / x), (x / x) / (x / x), x / x[0] / x[1]),
            *((row / row).t() / row.t(), (x / x)[None] / row[:, :1], x / x / x / x),
        ]

    large = LARGE[dtype]
    numbers = [large, -large / 2, 1 / large, 3.0, 0.0, INF, -INF, NAN]
    check(quotients, torch.tensor(numbers, dtype=dtype), way=way, rtol=2**-10, atol=0.0)


def test_gradient_of_softsign() -> None:
    x = torch.tensor([1.0, 300.0, 1000.0, 60000.0]).half()
    check(with_gradients(functional.softsign), x, rtol=0.0, atol=1e-6)
