"""Random numbers have PyTorch's distributions, in each dtype, lazy and under torch.compile."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
from testing.ways import run_by
from torch.nn import functional

COUNT = 100_000
Draw = Callable[[torch.Tensor], torch.Tensor]


def weights(ones: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0.0, 1, 2, 0, 4, 0], dtype=ones.dtype, device=ones.device)


def attention(ones: torch.Tensor) -> torch.Tensor:
    queries, keys = ones.view(1, -1, 1), ones[:2].view(1, 2, 1)
    return functional.scaled_dot_product_attention(queries, keys, keys, None, 0.25)


# Functions of COUNT ones, which are arguments: XLA would take long to fold constants.
DRAWS: dict[str, Draw] = {
    "rand": torch.rand_like,
    "uniform": lambda ones: torch.empty_like(ones).uniform_(-3, 7),
    "randn": torch.randn_like,
    "normal": lambda ones: torch.normal(ones, 3 * ones),
    "bernoulli_rare": lambda ones: torch.empty_like(ones).bernoulli_(0.01),
    "bernoulli_often": lambda ones: torch.bernoulli(torch.empty_like(ones), 0.9),
    "bernoulli_tensor": lambda ones: torch.bernoulli(0.3 * ones),
    "bernoulli_tensor_in_place": lambda ones: torch.empty_like(ones).bernoulli_(0.98 * ones),
    "exponential": lambda ones: torch.empty_like(ones).exponential_(2),
    "dropout": lambda ones: functional.dropout(ones, 0.1),
    "dropout_most": lambda ones: functional.dropout(ones, 0.9),
    "dropout_all": lambda ones: functional.dropout(ones, 1.0),
    "native_dropout": lambda ones: torch.native_dropout(ones, 0.2, True)[0],
    "native_dropout_of_inference": lambda ones: torch.native_dropout(ones, 0.2, False)[1],
    "alpha_dropout": lambda ones: functional.alpha_dropout(ones, 0.2, training=True),
    "attention": attention,
    "multinomial": lambda ones: torch.multinomial(weights(ones), COUNT, replacement=True),
    "multinomial_one": lambda ones: torch.multinomial(weights(ones).expand(COUNT, -1), 1),
    "multinomial_other": lambda ones: torch.multinomial(weights(ones).expand(COUNT, -1), 3),
    "gumbel": lambda ones: functional.gumbel_softmax(ones.view(-1, 1).expand(-1, 4)),
    "randint": lambda ones: torch.empty_like(ones).random_(-5, 6),
}


def distance(numbers: torch.Tensor, others: torch.Tensor) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    samples = [np.sort(sample.numpy()) for sample in (numbers, others)]
    values = np.concatenate(samples)
    shares = [np.searchsorted(each, values, side="right") / len(each) for each in samples]
    return np.abs(shares[0] - shares[1]).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name: str, way: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch_xla.manual_seed(0)
    draw = DRAWS[name]
    ones = torch.ones(COUNT, dtype=dtype)
    expected = draw(ones)
    result = run_by(way, draw)(ones.to("xla")).cpu()
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    result, expected = result.flatten(), expected.flatten()
    # If the distributions are equal, one pair of samples in 10,000 is farther apart.
    assert distance(result.float(), expected.float()) < 2.23 * (2 / len(expected)) ** 0.5
    assert result.isfinite().all()
    result, expected = result.double(), expected.double()
    deviation = expected.std().item()
    assert abs(result.mean() - expected.mean()) <= 6 * deviation * (2 / len(expected)) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.6, 1.0])
def test_gradients_of_dropout(p: float) -> None:
    x = torch.full((1000,), 2.0, device="xla", requires_grad=True)
    for function in (functional.dropout, torch.compile(functional.dropout, backend="openxla")):
        x.grad = None
        y = function(x, p)
        y.sum().backward()
        torch.testing.assert_close(x.grad.cpu() * 2, y.detach().cpu())


def test_seed() -> None:
    def draw() -> list[torch.Tensor]:
        torch_xla.manual_seed(3)
        return [torch.randperm(50, device="xla").cpu(), torch.rand(5, device="xla").cpu()]

    first, second = draw(), draw()
    for numbers, others in zip(first, second, strict=True):
        torch.testing.assert_close(numbers, others, rtol=0, atol=0)
    assert sorted(first[0].tolist()) == list(range(50))
    assert first[0].tolist() != torch.randperm(50, device="xla").tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float32])
def test_bernoulli_of_a_number(dtype: torch.dtype) -> None:
    """Integers are 0 and 1; upstream converts the probability to the dtype, so that all are 0."""
    x = torch.zeros(10_000, dtype=dtype, device="xla")
    for sample in (x.clone().bernoulli_(0.3), torch.bernoulli(x, 0.3)):
        assert sample.dtype == dtype
        assert abs(sample.float().mean().item() - 0.3) < 0.03
        assert sample.unique().tolist() == [0, 1]
