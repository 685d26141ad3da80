"""masked_scatter, by which multimodal models place images among tokens, has no dynamic shapes."""

import pytest
import torch
import torch_xla
from testing.ways import run_by

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
    mask = MASKS[name]

    def step(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        x, source = x.detach().requires_grad_(), source.detach().requires_grad_()
        y = (x * 2).masked_scatter(mask, source * 3)
        weights = torch.arange(1.0, y.numel() + 1, device=y.device).view(y.shape)
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, source])]

    run = run_by(way, step)
    for factor in range(1, 3):
        tensors = [torch.rand(2, 3) * factor, mask, torch.rand(3, 5)]
        results = run(*(tensor.to("xla") for tensor in tensors))
        for result, expected in zip(results, step(*tensors), strict=True):
            torch.testing.assert_close(result.cpu(), expected)


def test_in_place() -> None:
    x, source = torch.zeros(2, 3, dtype=torch.int64), torch.arange(1, 8)
    own = x.to("xla")
    for tensor in (own, x):
        device = tensor.device
        tensor[:, 1:].masked_scatter_(MASKS["some"][:, 1:].to(device), source.to(device))
    assert own.tolist() == x.tolist()


def test_refusals() -> None:
    x, mask = torch.ones(3, device="xla"), torch.ones(3, dtype=torch.bool, device="xla")
    with pytest.raises(RuntimeError, match="same dtypes but got float and double"):
        x.masked_scatter(mask, x.double())
    with pytest.raises(RuntimeError, match="source has no elements"):
        x.masked_scatter(mask, x[:0])
    torch_xla.sync()
