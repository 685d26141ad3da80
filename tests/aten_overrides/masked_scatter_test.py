"""masked_scatter, by which multimodal models place images among tokens, has no dynamic shapes."""

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import CLOSE, check, check_calls, with_gradients

MASKS = {
    "some": torch.tensor([[True, False, True], [False, True, True]]),
    "rows": torch.tensor([[True], [False]]),
    "all": torch.ones(2, 3, dtype=torch.bool),
    "none": torch.zeros(2, 3, dtype=torch.bool),
    "one": torch.tensor(True),
    "larger": torch.arange(12).view(2, 2, 3) % 3 == 1,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
def test_values_and_gradients(name: str, way: str) -> None:
    step = with_gradients(lambda x, mask, source: (x * 2).masked_scatter(mask, source * 3))
    calls = [(torch.rand(2, 3) * i, MASKS[name], torch.rand(3, 5)) for i in range(1, 3)]
    check_calls(step, calls, way, **CLOSE)


def test_in_place() -> None:
    def write(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> None:
        x[:, 1:].masked_scatter_(mask[:, 1:], source)

    check(write, torch.zeros(2, 3, dtype=torch.int64), MASKS["some"], torch.arange(1, 8))


def test_refusals() -> None:
    x, mask = torch.ones(3, device="xla"), torch.ones(3, dtype=torch.bool, device="xla")
    with pytest.raises(RuntimeError, match="same dtypes but got float and double"):
        x.masked_scatter(mask, x.double())
    with pytest.raises(RuntimeError, match="source has no elements"):
        x.masked_scatter(mask, x[:0])
    torch_xla.sync()
