"""Random numbers have PyTorch's distributions, in each dtype, lazy and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch.nn import functional

COUNT = 100_000
Draw = Callable[[torch.dtype, str], torch.Tensor]


def empty(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.empty(COUNT, dtype=dtype, device=device)


def ones(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.ones(COUNT, dtype=dtype, device=device)


def weights(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.tensor([0.0, 1, 2, 0, 4, 0], dtype=dtype, device=device)


def attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    keys = keys.view(1, 2, 1)
    return functional.scaled_dot_product_attention(queries.view(1, -1, 1), keys, keys, None, 0.25)


DRAWS: dict[str, Draw] = {
    "rand": lambda *at: torch.rand_like(empty(*at)),
    "uniform": lambda *at: empty(*at).uniform_(-3, 7),
    "randn": lambda *at: torch.randn_like(empty(*at)),
    "normal": lambda *at: torch.normal(ones(*at), 3 * ones(*at)),
    "bernoulli_rare": lambda *at: empty(*at).bernoulli_(0.01),
    "bernoulli_often": lambda *at: torch.bernoulli(empty(*at), 0.9),
    "bernoulli_tensor": lambda *at: torch.bernoulli(0.3 * ones(*at)),
    "bernoulli_tensor_in_place": lambda *at: empty(*at).bernoulli_(0.98 * ones(*at)),
    "exponential": lambda *at: empty(*at).exponential_(2),
    "dropout": lambda *at: functional.dropout(ones(*at), 0.1),
    "dropout_most": lambda *at: functional.dropout(ones(*at), 0.9),
    "dropout_all": lambda *at: functional.dropout(ones(*at), 1.0),
    "native_dropout": lambda *at: torch.native_dropout(ones(*at), 0.2, True)[0],
    "native_dropout_of_inference": lambda *at: torch.native_dropout(ones(*at), 0.2, False)[1],
    "alpha_dropout": lambda *at: functional.alpha_dropout(ones(*at), 0.2, training=True),
    "attention": lambda *at: attention(ones(*at), ones(*at)[:2]),
    "multinomial": lambda *at: torch.multinomial(weights(*at), COUNT, replacement=True),
    "multinomial_one": lambda *at: torch.multinomial(weights(*at).expand(COUNT, -1), 1),
    "multinomial_other": lambda *at: torch.multinomial(weights(*at).expand(COUNT, -1), 3),
    "gumbel": lambda *at: functional.gumbel_softmax(
        torch.zeros(COUNT, 4, dtype=at[0], device=at[1])
    ),
    "randint": lambda *at: empty(*at).random_(-5, 6),
}


def distance(numbers: torch.Tensor, others: torch.Tensor) -> float:
    """Of two samples, as Kolmogorov and Smirnov define it."""
    values = torch.cat([numbers, others]).unique()
    shares = [
        torch.searchsorted(sample.sort().values, values, right=True) / len(sample)
        for sample in (numbers, others)
    ]
    return (shares[0] - shares[1]).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["lazy", "openxla"])
@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name: str, is_compiled: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    torch_xla.manual_seed(0)
    draw = DRAWS[name]
    expected = draw(dtype, "cpu")
    if is_compiled:
        torch._dynamo.reset()
        draw = torch.compile(draw, backend="openxla")
    result = draw(dtype, "xla").cpu()
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    result, expected = result.double().flatten(), expected.double().flatten()
    # Of equal distributions, one pair of samples in 10,000 is farther apart.
    assert distance(result, expected) < 2.23 * (2 / len(expected)) ** 0.5
    assert result.isfinite().all()
    deviation = expected.std().item()
    assert abs(result.mean() - expected.mean()) <= 6 * deviation * (2 / len(expected)) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_bounds(dtype: torch.dtype) -> None:
    x = torch.empty(1_000_000, dtype=dtype, device="xla")
    for low, high in ((0.0, 1.0), (-1.0, 0.0), (100.0, 102.0), (-3.0, -2.0)):
        numbers = x.uniform_(low, high).cpu()
        assert (numbers.min() >= low).item() and (numbers.max() < high).item()
    assert (x.exponential_().cpu() > 0).all()


def test_rare_tokens() -> None:
    """A fifth of all tokens are so rare that each is drawn once in a million times."""
    rare = torch.full((8, 200_001), 1e-6)
    rare[:, 0] = 0.8
    times = torch.empty(8, 200_001, device="xla")
    torch_xla.manual_seed(0)
    count = 0
    for _ in range(40):
        count += (rare.to("xla") / times.exponential_()).argmax(-1).ne(0).sum().item()
    assert 0.12 < count / 320 < 0.28


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
