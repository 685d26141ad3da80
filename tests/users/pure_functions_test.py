"""torch_xla.experimental.assume_pure of any function: as the function itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_xla

pytest.importorskip("jax")
from torch_xla._internal.jax_workarounds import maybe_get_torchax
from torch_xla.experimental.assume_pure import PureModule, assume_pure

pytestmark = pytest.mark.skipif(
    maybe_get_torchax() is None, reason="upstream's torchax does not import with this JAX"
)

FLOATS = [1.0, 2.0, 4.0]
W = [3.0, 5.0, 7.0]


def write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def write_to_a_view(x: torch.Tensor) -> torch.Tensor:
    x[0] = 5
    return x * 2


# What JAX cannot trace as PyTorch computes it, and the reason that is given.
CASES: dict[str, tuple[Callable, list, torch.dtype, str]] = {
    "int64": (lambda x: x + 1, [2**40, 1], torch.int64, "an argument is of torch.int64"),
    "float64": (lambda x: x / 3, FLOATS, torch.float64, "an argument is of torch.float64"),
    "argmax": (lambda x: x.argmax(), FLOATS, torch.float32, "a result is of torch.int64"),
    "bool": (lambda x: x * 3, [True, False], torch.bool, "a result is of torch.int64"),
    "writes": (write, FLOATS, torch.float32, "it writes to an argument"),
    "views": (write_to_a_view, FLOATS, torch.float32, "it writes to an argument"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_jax_cannot_trace(name: str) -> None:
    function, numbers, dtype, reason = CASES[name]
    pure = assume_pure(function)
    for call in range(2):
        expected = torch.tensor(numbers, dtype=dtype)
        x = expected.to("xla")
        if call == 0:
            with pytest.warns(UserWarning, match=f"traced at each call, because {reason}"):
                result = pure(x)
        else:
            result = pure(x)
        torch.testing.assert_close(result.cpu(), function(expected))
        torch.testing.assert_close(x.cpu(), expected)


def test_a_closure() -> None:
    w = torch.tensor(W, device="xla")
    with pytest.warns(UserWarning, match="JAX cannot trace it"):
        result = assume_pure(lambda x: x + w)(torch.tensor(FLOATS, device="xla"))
    assert result.tolist() == [4, 7, 11]


def test_errors_are_the_functions_own() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        assume_pure(wrong)(torch.ones(1, device="xla"))


@pytest.mark.filterwarnings("error::UserWarning:torch_xla_ext_startup")
def test_pure_functions_are_traced_once() -> None:
    calls = []

    @assume_pure
    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return (x**3).sum()

    for _ in range(3):
        x = torch.tensor(FLOATS, device="xla", requires_grad=True)
        function(x).backward()
        assert x.grad.tolist() == [3, 12, 48]
    torch_xla.sync()
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_modules_running_statistics() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    expected, module = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).to("xla")
    for _ in range(2):
        torch.testing.assert_close(PureModule(module)(x.to("xla")).cpu(), expected(x))
    torch.testing.assert_close(module.running_mean.cpu(), expected.running_mean)
    assert module.num_batches_tracked.item() == 2
