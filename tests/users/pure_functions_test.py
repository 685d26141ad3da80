"""torch_xla.experimental.assume_pure gives the results of the function itself."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch.utils import _pytree as pytree

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


# Functions that JAX cannot trace with PyTorch's results, and the reason in the message.
CASES: dict[str, tuple[Callable, list, torch.dtype, str]] = {
    "int64": (lambda x: x + 1, [2**40, 1], torch.int64, "an argument is of torch.int64"),
    "float64": (lambda x: x / 3, FLOATS, torch.float64, "an argument is of torch.float64"),
    "argmax": (lambda x: x.argmax(), FLOATS, torch.float32, "a result is of torch.int64"),
    "bool": (lambda x: x * 3, [True, False], torch.bool, "a result is of torch.int64"),
    "writes": (write, FLOATS, torch.float32, "it writes to an argument"),
    "views": (write_to_a_view, FLOATS, torch.float32, "it writes to an argument"),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_that_jax_cannot_trace(name: str) -> None:
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


RESULTS: dict[str, Callable[[torch.Tensor], object]] = {
    "a tensor": lambda x: x * 5,
    "a tuple": lambda x: (x * 1, x + 1),
    "a dictionary": lambda x: {"a": x * 2, "b": x.exp()},
    "tuples in a list": lambda x: [(x * 3, x.sin()), x * 4],
    "with None": lambda x: (x * 7, None),
    "another factor": lambda x: (x * 2, x + 1),
}


def test_alternating_functions() -> None:
    """All are calls of one torchax function; upstream told them apart by their results."""
    pure = {name: assume_pure(function) for name, function in RESULTS.items()}
    for _ in range(2):
        for name, function in RESULTS.items():
            found, expected = [], []
            for call, device, seen in ((pure[name], "xla", found), (function, "cpu", expected)):
                x = torch.tensor([0.5, 2.0], device=device).requires_grad_()
                leaves, structure = pytree.tree_flatten(call(x))
                tensors = [leaf for leaf in leaves if leaf is not None]
                sum(leaf.square().sum() for leaf in tensors).backward()
                seen += [structure, *(leaf.tolist() for leaf in [*tensors, x.grad])]
            assert found[0] == expected[0], name
            torch.testing.assert_close(found[1:], expected[1:])


def test_numbers_of_several_types() -> None:
    scaled = assume_pure(lambda x, factor: x * factor if factor is not True else x - 1)
    x = torch.ones(2, device="xla")
    for factor in (1, True, 1.0, 2, 0.0, -0.0):
        expected = torch.ones(2) * factor if factor is not True else torch.zeros(2)
        assert torch.equal(scaled(x, factor).cpu(), expected), factor
