"""Each operator under PyTorch's transforms: autograd, torch.func, vmap, autocast, checkpoint, …

The reference is the same transform of the same function with torch's own operator in its place.
"""

import re
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.utils.checkpoint
from samples import (
    OPERATORS,
    OperatorSamples,
    for_each_device,
    for_each_differentiable_operator,
    to,
)
from testing.xla import PLATFORM
from torch.fx.experimental.proxy_tensor import make_fx
from torch_xla import amp

from torch_xla_ext import ops

Function = Callable[..., torch.Tensor]


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)


def weigh(x: torch.Tensor) -> torch.Tensor:
    """Weighs each element of `x` differently, so that a permuted gradient is wrong."""
    return (x * torch.arange(1, x.numel() + 1, device=x.device).reshape(x.shape)).sum()


@for_each_device
@pytest.mark.parametrize("checkpointed", [False, True])
@for_each_differentiable_operator
def test_backward(op: OperatorSamples, checkpointed: bool, device_type: str) -> None:
    # torch's own checkpoint needs a module torch.xla for the random state; there is none.
    package = torch_xla.utils.checkpoint if device_type == "xla" else torch.utils.checkpoint

    def checkpoint(*args: torch.Tensor) -> torch.Tensor:
        return package.checkpoint(op.function, *args, use_reentrant=True)

    gradients = []
    for function in (checkpoint if checkpointed else op.function, op.reference):
        torch.manual_seed(1)
        args = to(device_type, op.arguments(torch.float32))
        args = tuple(tensor.detach().requires_grad_() for tensor in args)
        weigh(function(*args).sin()).backward()
        gradients.append([arg.grad for arg in args])
    for actual, expected in zip(*gradients, strict=True):
        assert_same(actual, expected)


@for_each_device
def test_gradients_of_one_argument_only(device_type: str) -> None:
    a = torch.randn(3, device=device_type, requires_grad=True)
    b = torch.randn(3, device=device_type)
    result = ops.simple_add(b, a)
    assert result.requires_grad
    result.sum().backward()
    assert a.grad.tolist() == [1, 1, 1]
    assert b.grad is None
    with torch.no_grad():
        assert not ops.simple_add(b, a).requires_grad


@for_each_differentiable_operator
def test_gradcheck(op: OperatorSamples) -> None:
    args = tuple(tensor.requires_grad_() for tensor in op.arguments(torch.float64))
    assert torch.autograd.gradcheck(
        op.function, args, check_forward_ad=True, check_batched_grad=True
    )
    assert torch.autograd.gradgradcheck(op.function, args, check_fwd_over_rev=True)


def jvp(f: Function) -> Function:
    return lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]


def without_grad_mode(f: Function) -> Function:
    return lambda x: torch.no_grad()(f)(x)


grad, vmap, jacrev, jacfwd = torch.func.grad, torch.func.vmap, torch.func.jacrev, torch.func.jacfwd

TRANSFORMS = {
    "grad": grad,
    "jvp": jvp,
    "jvp without grad mode": lambda f: without_grad_mode(jvp(f)),
    "grad of grad": lambda f: grad(lambda x: weigh(grad(f)(x).sin())),
    "grad of grad of grad": lambda f: grad(
        lambda x: weigh(grad(lambda y: weigh(grad(f)(y).sin()))(x).cos())
    ),
    "hessian": torch.func.hessian,
    "reverse over reverse": lambda f: jacrev(jacrev(f)),
    "reverse over forward": lambda f: jacrev(jacfwd(f)),
    "forward over forward": lambda f: jacfwd(jacfwd(f)),
    "jvp of jvp": lambda f: jvp(jvp(f)),
    "vmap of grad": lambda f: vmap(grad(f)),
    "grad of vmap": lambda f: grad(lambda x: weigh(vmap(f)(x))),
    "vmap of jvp": lambda f: vmap(jvp(f)),
    "jvp of vmap": lambda f: jvp(lambda x: weigh(vmap(f)(x))),
}


@for_each_device
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_torch_func(
    transform: Callable[[Function], Function], device_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Upstream's fallback to torch's CUDA fails for aten::_efficientzerotensor: it has no operand.
    monkeypatch.setenv("XLA_FALLBACK_CPU", "1")

    def function(operator: Function) -> Function:
        return lambda x: weigh(operator(x.sin(), x * x).pow(3))

    x = torch.randn(3, 4, dtype=torch.float64).to(device_type)
    expected = transform(function(torch.add))(x)
    assert expected.abs().max() > 0.1
    assert_same(transform(function(ops.simple_add))(x), expected)


@for_each_device
@pytest.mark.parametrize(
    ("op", "in_dims"),
    [
        pytest.param(op, in_dims, id=f"{name}-{in_dims}")
        for name, op in OPERATORS.items()
        for in_dims in op.batched_in_dims
    ],
)
def test_vmap(op: OperatorSamples, in_dims: tuple[int | None, ...], device_type: str) -> None:
    args = to(device_type, op.batched(in_dims))
    for options in ({}, {"out_dims": 1}, {"chunk_size": 2}):
        actual = vmap(op.function, in_dims, **options)(*args)
        assert torch.equal(actual.cpu(), vmap(op.reference, in_dims, **options)(*args).cpu())


@for_each_device
def test_nested_vmap(device_type: str) -> None:
    a, b = torch.randn(2, 3, 4).to(device_type), torch.randn(3, 2).to(device_type)
    actual, expected = (vmap(vmap(f, (0, None)), (1, 0)) for f in (ops.simple_add, torch.add))
    columns = a.permute(2, 1, 0)  # [4, 3, 2]
    assert torch.equal(actual(columns, b).cpu(), expected(columns, b).cpu())


def test_vmap_over_nothing() -> None:
    assert vmap(ops.simple_add)(torch.zeros(0, 4), torch.zeros(0, 4)).shape == (0, 4)


def test_vmap_of_a_wrong_call_speaks_of_one_example() -> None:
    text = "xla_gpu::simple_add: operand 1 (b): expected dimensions [4] but got [5]"
    with pytest.raises(ValueError, match=re.escape(text)):
        vmap(ops.simple_add)(torch.zeros(3, 4), torch.zeros(3, 5))


def autocast(device_type: str) -> torch.autocast:
    if (device_type, PLATFORM) == ("xla", "CUDA"):  # where torch.autocast("xla") does nothing
        return amp.autocast(torch_xla.device(), dtype=torch.bfloat16)
    return torch.autocast(device_type, dtype=torch.bfloat16)


@for_each_device
def test_autocast_promotes_to_the_widest_dtype(device_type: str) -> None:
    a, b = torch.randn(3, device=device_type), torch.randn(3, device=device_type)
    narrow = torch.randn(3).bfloat16()
    with autocast(device_type):
        assert torch.equal(ops.simple_add(narrow.to(device_type), b).cpu(), narrow + b.cpu())
        assert ops.simple_add(a.bfloat16(), b.half()).dtype == torch.float32
        assert ops.simple_add(a.bfloat16(), b.bfloat16()).dtype == torch.bfloat16
        assert ops.simple_add(a, b).dtype == torch.float32
        linear = torch.nn.Linear(3, 3).to(device_type)
        assert ops.simple_add(linear(a[None]), b[None]).dtype == torch.float32


@for_each_device
def test_autocast_leaves_float64_and_integers_alone(device_type: str) -> None:
    a, b = torch.randn(3, device=device_type), torch.randn(3, device=device_type)
    with autocast(device_type):
        for dtype in (torch.float64, torch.int32):
            with pytest.raises(TypeError, match=r"operand 1 \(b\): expected dtype"):
                ops.simple_add(a, b.to(dtype))


@for_each_device
def test_autocast_is_differentiated(device_type: str) -> None:
    a = torch.randn(3, device=device_type, requires_grad=True)
    b = torch.randn(3, device=device_type, dtype=torch.bfloat16, requires_grad=True)
    with autocast(device_type):
        ops.simple_add(a, b).sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.bfloat16)


def test_checkpoint_without_reentrance() -> None:
    x = torch.randn(3, requires_grad=True)
    result = torch.utils.checkpoint.checkpoint(ops.simple_add, x, x, use_reentrant=False)
    result.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


@for_each_device
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@for_each_differentiable_operator
def test_make_fx(op: OperatorSamples, mode: str, device_type: str) -> None:
    args = to(device_type, op.arguments(torch.float32))
    traced = make_fx(lambda *xs: op.function(*xs).sin(), tracing_mode=mode)(*args)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets == [op.overload, torch.ops.aten.sin.default]
    assert_same(traced(*args), op.reference(*args).sin())


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.simple_add(x, self.linear(x))


def test_module_to_xla() -> None:
    module, x = Residual(), torch.randn(3, 4)
    expected = module(x)
    assert_same(module.to("xla")(x.to("xla")), expected)
    assert module.linear.weight.device.type == "xla"


@for_each_device
def test_functional_call(device_type: str) -> None:
    module, x = Residual().to(device_type), torch.randn(3, 4).to(device_type)
    weights = {"linear.weight": torch.zeros(4, 4), "linear.bias": torch.ones(4)}
    weights = {name: tensor.to(device_type) for name, tensor in weights.items()}
    assert_same(torch.func.functional_call(module, weights, (x,)), x + 1)


def test_functionalize() -> None:
    a, b = torch.randn(3), torch.randn(3)
    assert torch.equal(torch.func.functionalize(ops.simple_add)(a, b), a + b)
