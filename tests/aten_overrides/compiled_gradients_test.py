"""torch.compile(backend="openxla"): gradients and results of operators that PyTorch composes."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients
from testing.ways import run_by
from torch.nn import functional

Function = Callable[[torch.Tensor], torch.Tensor]

COMPOSED: dict[str, Function] = {
    "cross": lambda x: torch.cross(x, x.flip(1) * x, dim=1),
    "diag": lambda x: torch.diag(x[0]) @ x,
    "inverse": lambda x: torch.inverse(x + 3 * torch.eye(3, device=x.device)),
    "kl_div": lambda x: functional.kl_div(x.log_softmax(1), x.flip(0).softmax(1)),
    "logdet": lambda x: torch.logdet(x + 3 * torch.eye(3, device=x.device)),
    "qr": lambda x: torch.qr(x).R,
    "quantile": lambda x: torch.quantile(x, 0.4, dim=1),
    "selu": torch.selu,
    "selu_in_place": lambda x: torch.selu_(x * 2),
    "squeeze_in_place": lambda x: (x * 2).unsqueeze_(1).transpose_(0, 2).squeeze_(1).t_(),
    "std": lambda x: x.std(unbiased=False),
    "std_of_a_dimension": lambda x: x.std(1, keepdim=True),
    "slogdet": lambda x: torch.linalg.slogdet(x + 3 * torch.eye(3, device=x.device)).logabsdet,
    "stft": lambda x: torch.stft(x.flatten(), 3, 1, window=x[2], return_complex=True).abs(),
    "svd": lambda x: torch.svd(x).S,
}


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("name", COMPOSED)
def test_gradients(name: str, way: str) -> None:
    """torch.compile compiles the function, and its backward pass."""
    function = COMPOSED[name]
    x = torch.tensor([[0.3, -1.2, 0.5], [2.0, 0.7, -0.4], [0.1, 0.9, 1.5]])
    run = with_gradients(run_by(way, function))
    check(lambda x: (run if x.is_xla else with_gradients(function))(x), x, rtol=1e-4, atol=1e-5)


def test_no_operator_lacks_its_gradient() -> None:
    """torch_xla overrides no operators that PyTorch composes, because those have no gradients."""
    lacking = set()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        is_out = any(argument.is_out for argument in schema.arguments)
        if not is_out and kernels(name) == {"XLA", "CompositeImplicitAutograd"}:
            lacking.add(name)
    assert lacking == {"aten::_to_cpu", "aten::_propagate_xla_data"}


def kernels(operator: str) -> set[str]:
    if not torch._C._dispatch_has_kernel(operator):
        return set()
    return {
        key
        for key in ("XLA", "CompositeImplicitAutograd", "Autograd", "AutogradXLA")
        if torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.max_pool1d(x, 2, return_indices=True)[1],
        lambda x: functional.adaptive_max_pool2d(x[None], 1, return_indices=True)[1],
        lambda x: x.cummax(1).indices,
        lambda x: x.argmax(1),
        lambda x: x.topk(2).indices,
        lambda x: (x > 1).long().cumsum(0),
    ],
)
def test_indices_have_64_bits(function: Function) -> None:
    x = torch.tensor([[[0.3, -1.2, 0.5, 3.0], [2.0, 0.7, -0.4, -1.0]]])
    check(function, x, way="openxla")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
@pytest.mark.parametrize("way", ["lazy", "openxla"])
def test_loss_of_one_sample(reduction: str, weight: list[float] | None, way: str) -> None:
    """Without a dimension for the batch, upstream torch_xla crashes."""
    run = run_by(way, functional.cross_entropy)

    def loss(x: torch.Tensor) -> torch.Tensor:
        weights = None if weight is None else torch.tensor(weight, device=x.device)
        function = run if x.is_xla else functional.cross_entropy
        return function(x, torch.tensor(1, device=x.device), weights, reduction=reduction)

    check(with_gradients(loss), torch.tensor([0.3, -1.2, 0.5]), **CLOSE)
