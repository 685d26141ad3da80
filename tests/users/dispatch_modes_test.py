"""Code below PyTorch's Python key: dispatch modes, wrapper subclasses, make_fx, saved tensors.

Everything is computed on both devices, and the CPU's results are expected.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

Make = Callable[[str], object]


class Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def several() -> Iterator[None]:
    with Mode(), FlopCounterMode(display=False), Mode():
        yield


MODES = {"a mode": Mode, "flops": lambda: FlopCounterMode(display=False), "several": several}


def writes(device: str) -> object:
    mask = torch.zeros(3, 3, device=device)
    mask[0] = 1
    mask[:, 2] = 5
    mask.view(-1)[4:6].add_(7)
    moved = torch.zeros(3, 3).to(device)
    moved.view(-1)[0] = 5
    like = torch.zeros_like(mask)
    like.t()[0] = mask[0]
    empty = mask.new_empty(3)
    empty.copy_(mask[1]).narrow(0, 1, 2).mul_(2)
    return mask, moved, like, empty, torch.ones(2, 3, device=device) @ mask


def training(device: str) -> object:
    torch.manual_seed(0)
    module = copy.deepcopy(torch.nn.Linear(2, 2)).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        module(torch.ones(1, 2, device=device)).square().sum().backward()
        optimizer.step()
    return list(module.parameters())


def check(make: Make) -> None:
    results, expected = (pytree.tree_leaves(make(device)) for device in ("xla", "cpu"))
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one.detach().cpu(), other.detach())
        else:
            assert one == other


@pytest.mark.parametrize("program", [writes, training])
@pytest.mark.parametrize("mode", MODES)
def test_programs_in_modes(mode: str, program: Make) -> None:
    def run(device: str) -> object:
        with MODES[mode]():
            results = program(device)
        first = pytree.tree_leaves(results)[0].detach()
        first.view(-1)[1].add_(1)  # also after the mode
        return results

    check(run)


def test_a_mode_gets_the_tensors_of_the_program() -> None:
    class Recording(Mode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            seen.extend((str(func), id(arg)) for arg in args if isinstance(arg, torch.Tensor))
            return super().__torch_dispatch__(func, types, args, kwargs)

    seen: list[tuple[str, int]] = []
    x = torch.ones(2, 2, device="xla")
    with Recording():
        x.view(-1)
        x.add_(1)
    assert seen == [("aten.view.default", id(x)), ("aten.add_.Tensor", id(x))]


def sines(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).view(-1)[1:] * 2


def in_place(x: torch.Tensor) -> torch.Tensor:
    result = torch.zeros(3, device=x.device) + torch.ones_like(x)
    result[1] = 7
    result.view(-1)[2:].add_(x[0])
    sums = torch.zeros(3, device=x.device)
    return sums.add_(x) + result


def gradients(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x.sin() * x).sum(), [x])
    return gradient


def data(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's wrapper of XLA tensors copies itself; make_fx took the copy for a constant."""
    x.data[1:].add_(1)
    return x.data * 2 + x


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("function", [sines, in_place, gradients, data])
def test_make_fx(function: Callable[..., torch.Tensor], tracing_mode: str) -> None:
    def run(device: str) -> object:
        first = torch.tensor([1.0, 2.0, 3.0], device=device)
        graph = make_fx(function, tracing_mode=tracing_mode)(first)
        others = [torch.tensor([4.0, 5.0, 6.0], device=device) + i for i in range(2)]
        return [graph(x) for x in others], others

    check(run)


def test_make_fx_of_a_new_value_for_data() -> None:
    def assign(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.data = x + 5
        return y

    with pytest.raises(RuntimeError, match=r"cannot trace an assignment to `x\.data`"):
        make_fx(assign)(torch.ones(2, device="xla"))


def test_mutation_of_saved_tensors() -> None:
    def run(device: str) -> object:
        leaf = torch.tensor([1.0, 2.0], device=device).requires_grad_()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            base = leaf.clone()
            squares = (base * base).sin()
            base.mul_(3)
            cubes = base.pow(3)
            base.view(-1)[0].add_(5)
            squares.mul_(2)
            (squares + cubes).sum().backward()
        return leaf.grad, base

    check(run)


@pytest.mark.parametrize("hooks", [lambda: torch.autograd.graph.save_on_cpu(), several])
def test_hooks_of_saved_tensors(hooks: Callable[[], contextlib.AbstractContextManager]) -> None:
    def run(device: str) -> object:
        leaf = torch.tensor([1.0, 2.0], device=device).requires_grad_()
        with hooks():
            result = (leaf.sin() * leaf).sum()
        result.backward()
        return leaf.grad

    check(run)


def test_selective_checkpoints() -> None:
    def policy(_context: object, operator: object, *_args: object, **_kwargs: object) -> object:
        saved = operator == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def run(device: str) -> object:
        weight = torch.full((2, 2), 0.5, device=device).requires_grad_()

        def function(x: torch.Tensor) -> torch.Tensor:
            scale = torch.zeros(2, device=device)
            scale[0] = 3
            return ((x @ weight).sin() * scale) @ weight

        result = checkpoint(
            function,
            torch.ones(2, 2, device=device),
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        )
        result.sum().backward()
        return weight.grad

    check(run)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls: type, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        args, kwargs = pytree.tree_map_only(Wrapper, lambda w: w.inner, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            return args[0]
        return pytree.tree_map_only(torch.Tensor, Wrapper, result)


def test_wrapper_subclasses() -> None:
    def run(device: str) -> object:
        plain = torch.arange(4.0, device=device)
        wrapper = Wrapper(plain)
        wrapper.view(2, 2)[0].add_(5)
        like = torch.zeros_like(wrapper)
        like.view(2, 2)[1].add_(wrapper[:2])
        results = [wrapper + plain, plain * wrapper, torch.cat([wrapper, plain]), like]
        assert all(type(result) is Wrapper for result in results)
        leaf = Wrapper(plain.clone()).requires_grad_()
        (leaf * leaf).sin().sum().backward()
        return plain, [result.inner for result in results], leaf.grad.inner

    check(run)


def test_a_subclass_of_two_tensors() -> None:
    def run(device: str) -> object:
        both = TwoTensor(torch.arange(4.0, device=device), torch.ones(4, device=device))
        both.view(2, 2)[0].add_(1)
        return both.a, both.b, (both * 2).a

    check(run)


def test_a_subclass_of_two_tensors_compiled() -> None:
    def run(device: str) -> object:
        def function(x: torch.Tensor) -> torch.Tensor:
            x.view(2, 2)[0].add_(1)
            return x * 2

        both = TwoTensor(torch.arange(4.0, device=device), torch.ones(4, device=device))
        backend = "openxla" if device == "xla" else "aot_eager"
        result = torch.compile(function, backend=backend)(both)
        return both.a, both.b, result.a, result.b

    check(run)


def test_functionalize_keeps_writes() -> None:
    def run(device: str) -> object:
        def function(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            y = x.clone()
            y.view(2, 2)[0] = 7
            return y

        x = torch.arange(4.0, device=device)
        rows = torch.arange(8.0, device=device).view(2, 4)
        return (
            torch.func.functionalize(function)(x),
            x,
            torch.func.vmap(torch.func.functionalize(function))(rows),
            torch.func.functionalize(lambda x: x.t(), remove="mutations_and_views")(rows),
        )

    check(run)


def test_functions_that_make_fx_cannot_functionalize() -> None:
    traced = make_fx(torch.func.functionalize(lambda x: x.clone().add_(1)))
    with pytest.raises(RuntimeError, match=r'trace it with tensors on "cpu"'):
        traced(torch.ones(2, device="xla"))
    graph = traced(torch.ones(2))
    assert graph(torch.ones(2, device="xla")).tolist() == [2, 2]


def test_flop_counts_are_the_cpus() -> None:
    """The counts include operators that upstream computes before autograd."""
    counts = []
    for device in ("cpu", "xla"):
        layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(device)
        x = torch.randn(2, 4, 8, device=device)
        with FlopCounterMode(display=False) as counter:
            layer(x, x, x)[0].sum().backward()
            torch.einsum("bij,bjk->bik", x, x.transpose(1, 2))
            torch.nn.functional.max_pool2d(x[None], 2)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
