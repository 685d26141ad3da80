"""layer_norm: as exact as PyTorch's, with its gradients' gradients, in every way of running it."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch_xla
from torch.nn import functional
from torch_xla.debug import metrics

import torch_xla_ext
from aten_overrides import optimized  # noqa: F401

Tensors = Sequence[torch.Tensor]

SHAPES = {
    "rows": ((4, 6, 32), (32,)),
    "two dimensions": ((4, 6, 32), (6, 32)),
    "all": ((8,), (8,)),
    "a long row": ((3, 20000), (20000,)),
    "one number": ((4, 1), (1,)),
    "nothing": ((0, 5), (5,)),
}


def samples(shape: tuple[int, ...], normalized: tuple[int, ...]) -> list[torch.Tensor]:
    """The input, the weight, the bias and the gradient of the result, in float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, grad = (
        torch.randn(sizes, generator=generator, dtype=torch.float64)
        for sizes in (shape, normalized, normalized, shape)
    )
    return [3 * x + 50, weight, bias, grad]


def normalized_and_gradients(
    norm: Callable[..., torch.Tensor], tensors: Tensors, affine: tuple[bool, bool]
) -> list[torch.Tensor]:
    x, weight, bias, grad = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    given = [leaf if is_given else None for leaf, is_given in zip(leaves[1:], affine, strict=True)]
    result = norm(leaves[0], weight.shape, *given)
    used = [leaves[0], *(leaf for leaf in given if leaf is not None)]
    return [result.detach(), *torch.autograd.grad(result, used, grad)]


@pytest.mark.parametrize("affine", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", SHAPES)
def test_numbers_and_gradients(name: str, affine: tuple[bool, bool]) -> None:
    tensors = samples(*SHAPES[name])
    expected = normalized_and_gradients(functional.layer_norm, tensors, affine)
    on_device = [tensor.float().to("xla") for tensor in tensors]
    metrics.clear_all()
    found = normalized_and_gradients(functional.layer_norm, on_device, affine)
    torch_xla.sync()
    assert not [name for name in metrics.counter_names() if name.startswith("aten::")]
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu().double(), wanted, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured", "vmap"])
def test_ways_of_running_it(way: str) -> None:
    tensors = samples((4, 6, 32), (32,))
    x, weight, bias, grad = (tensor.float().to("xla") for tensor in tensors)

    def gradients(x: torch.Tensor, grad: torch.Tensor) -> Tensors:
        return torch.func.vjp(lambda x: functional.layer_norm(x, (32,), weight, bias), x)[1](grad)

    def backward(x: torch.Tensor, grad: torch.Tensor) -> Tensors:
        _, of_input, *_ = normalized_and_gradients(
            functional.layer_norm, [x, weight, bias, grad], (True, True)
        )
        return (of_input,)

    run: Callable[[torch.Tensor, torch.Tensor], Tensors] = backward
    if way == "openxla":
        torch._dynamo.reset()
        compiled = torch.compile(functional.layer_norm, backend="openxla")

        def run(x: torch.Tensor, grad: torch.Tensor) -> Tensors:
            return normalized_and_gradients(compiled, [x, weight, bias, grad], (True, True))[1:2]

    elif way == "captured":
        run = torch_xla_ext.capture(backward)
    elif way == "vmap":
        run = torch.vmap(gradients)
    expected = normalized_and_gradients(functional.layer_norm, tensors, (True, True))[1]
    for _ in range(2):
        (found,) = run(x, grad)
        torch.testing.assert_close(found.cpu().double(), expected, rtol=3e-4, atol=3e-4)


def test_gradients_of_gradients() -> None:
    """Upstream torch_xla has no second gradients: it takes the statistics for constants."""

    def penalty(tensors: Tensors) -> Tensors:
        x, weight, bias, grad = tensors
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
        result = functional.layer_norm(leaves[0], (32,), *leaves[1:])
        first = torch.autograd.grad(result, leaves, grad, create_graph=True)
        return torch.autograd.grad(sum((each * each).sum() for each in first), leaves[:2])

    tensors = samples((4, 32), (32,))
    found = penalty([tensor.float().to("xla") for tensor in tensors])
    for ours, wanted in zip(found, penalty(tensors), strict=True):
        torch.testing.assert_close(ours.cpu().double(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    """Upstream torch_xla rounds before the weight, before the bias, and each product of a sum."""
    tensors = [tensor.to(dtype) for tensor in samples((64, 256), (256,))]
    exact = normalized_and_gradients(
        functional.layer_norm, [tensor.double() for tensor in tensors], (True, True)
    )
    of_torch = normalized_and_gradients(functional.layer_norm, tensors, (True, True))
    on_device = [tensor.to("xla") for tensor in tensors]
    found = normalized_and_gradients(functional.layer_norm, on_device, (True, True))
    for ours, theirs, wanted in zip(found, of_torch, exact, strict=True):
        assert ours.dtype == dtype
        errors = [(each.cpu().double() - wanted).abs().mean() for each in (ours, theirs)]
        assert errors[0] <= 1.05 * errors[1]


@pytest.mark.parametrize("size", [4096, 20000])
def test_a_mean_far_above_the_deviation(size: int) -> None:
    """Up to a ratio of 10,000, the error is within 4 times that of PyTorch in float32."""
    generator = torch.Generator().manual_seed(0)
    for ratio in (0, 100, 1000, 10_000):
        x = torch.randn(8, size, generator=generator) + ratio
        exact = functional.layer_norm(x.double(), (size,))
        found, of_torch = (
            (functional.layer_norm(x.to(device), (size,)).cpu().double() - exact).abs().max()
            for device in ("xla", "cpu")
        )
        assert found <= 4 * of_torch + 1e-6


def test_a_wrong_shape() -> None:
    with pytest.raises(RuntimeError, match=r"expected input with shape \[\*, 2, 3\]"):
        functional.layer_norm(torch.zeros(2, 4, device="xla"), (2, 3))
