"""torch.utils.checkpoint on an XLA device: the same gradients with fewer saved activations."""

import functools
import gc
import re
import weakref
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from testing import programs  # before the first computation
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from torch_xla_ext import CaptureError, capture

REENTRANT = pytest.mark.parametrize("use_reentrant", [True, False])


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8, bias=False), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
        return self.dropout(self.linear(x * scale)).abs()


class Model(nn.Module):
    """The loss is `start` times its gradient if forward and backward have the same dropout."""

    def __init__(self, dropout: float = 0.0, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start = nn.Parameter(torch.tensor(0.5))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.start
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return x.sum()


assert_close = functools.partial(
    torch.testing.assert_close, check_device=False, rtol=1e-5, atol=1e-6
)


def loss_and_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).view(4, 8)


@REENTRANT
def test_gradients_are_the_cpus(x: torch.Tensor, use_reentrant: bool) -> None:
    found = loss_and_gradients(Model(use_reentrant=use_reentrant).to("xla"), x.to("xla"))
    assert_close(found, loss_and_gradients(Model(), x))


@REENTRANT
@pytest.mark.parametrize("autocast", [False, True])
def test_random_numbers(x: torch.Tensor, use_reentrant: bool, autocast: bool) -> None:
    """Dropout, and random numbers after the region, are those without a checkpoint."""
    x = x.to("xla")
    found = []
    for options in ({}, {"use_reentrant": use_reentrant}):
        model = Model(dropout=0.5, **options).to("xla")
        xm.set_rng_state(17)
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=autocast):
            model.zero_grad()
            loss = model(x)
        loss.backward()
        after = torch.rand(4, device="xla")
        found.append([loss.detach(), after, *(p.grad for p in model.parameters())])
        torch_xla.sync()
    torch.testing.assert_close(found[1], found[0])


@REENTRANT
@pytest.mark.parametrize("way", ["lazy", "synced", "captured", "openxla"])
def test_steps_with_dropout(x: torch.Tensor, use_reentrant: bool, way: str) -> None:
    x, model = x.to("xla"), Model(dropout=0.25, use_reentrant=use_reentrant).to("xla")
    if way == "openxla":
        model.compile(backend="openxla")

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(x)
        if way == "synced":
            torch_xla.sync()
        loss.backward()
        return [loss.detach(), model.start.grad.clone()]

    run: Callable = capture(step) if way == "captured" else step
    losses = []
    for _ in range(5):
        loss, gradient = run(x)
        torch_xla.sync()
        losses.append(loss.item())
        assert losses[-1] == pytest.approx(0.5 * gradient.item(), rel=1e-5)
    assert len(set(losses)) == 5


@REENTRANT
def test_several_results_and_nesting(x: torch.Tensor, use_reentrant: bool) -> None:
    blocks = nn.ModuleList(Block(0.0) for _ in range(2))

    def inner(x: torch.Tensor, i: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        return blocks[0](x).tanh(), i, blocks[1](x).exp()

    def outer(x: torch.Tensor) -> torch.Tensor:
        a, i, b = checkpoint(inner, x, 3, use_reentrant=use_reentrant)
        a += i * b
        return a * x

    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        checkpoint(outer, x, use_reentrant=use_reentrant).sum().backward()
        found = [x.grad, *(p.grad for p in blocks.parameters())]
        blocks.zero_grad()
        return found

    expected = gradients(x.clone())
    blocks.to("xla")
    assert_close(gradients(x.to("xla")), expected)


def test_keyword_arguments_and_second_backward(x: torch.Tensor) -> None:
    block, scale = Block(0.5).to("xla"), torch.tensor(2.0, device="xla", requires_grad=True)
    loss = checkpoint(block, x.to("xla"), scale=scale, use_reentrant=False).sum()
    for times in (1, 2):
        loss.backward(retain_graph=True)
        assert scale.grad.item() == pytest.approx(times * loss.item() / 2, rel=1e-5)


def test_checkpoint_sequential(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(0.0) for _ in range(4)))
    found = []
    for device in ("cpu", "xla"):
        model.zero_grad()
        model.to(device)
        checkpoint_sequential(model, 2, x.to(device), use_reentrant=False).sum().backward()
        found.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert_close(found[1], found[0])


def test_captured_steps_that_set_the_seed() -> None:
    """Capture is refused, because a replay would mistake this seed for the one of each step."""

    def step() -> torch.Tensor:
        xm.set_rng_state(5)
        return torch.rand(3, device="xla")

    with pytest.raises(CaptureError, match=r"sets the seed .* use torch\.utils\.checkpoint"):
        capture(step)()


@pytest.mark.parametrize(
    ("use_reentrant", "size", "count"), [(None, 64, 3), (True, 65, 6), (False, 66, 6)]
)
def test_regions_are_recomputed(use_reentrant: bool | None, size: int, count: int) -> None:
    """XLA does not merge the second tanh of each region with the first.

    The sizes differ, so that each case compiles a program.
    """
    weights = [torch.rand(size, size, device="xla", requires_grad=True) for _ in range(3)]
    x = torch.rand(size, size, device="xla", requires_grad=True)
    torch_xla.sync()
    for weight in weights:

        def block(x: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
            return nn.functional.dropout(torch.tanh(x @ weight), 0.5)

        plain = use_reentrant is None
        x = block(x) if plain else checkpoint(block, x, use_reentrant=use_reentrant)
    x.sum().backward()
    with programs.compiled() as compiled:
        torch_xla.sync(wait=True)
    (program,) = compiled
    assert len(re.findall(r"= \S+ tanh\(", program)) == count


class Chain(nn.Module):
    """Layers whose weights have different shapes, in a region each."""

    WIDTHS = (8, 9, 10, 11, 12)

    def __init__(self, **options: object) -> None:
        super().__init__()
        sizes = zip(self.WIDTHS[1:], self.WIDTHS[:-1], strict=True)
        self.weights = nn.ParameterList(torch.rand(size) for size in sizes)
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = checkpoint(lambda x, weight=weight: (x @ weight.t()).tanh(), x, **self.options)
        return x.sum()


def needed(program: str, name: str) -> dict[str, str]:
    """All operations on which an operation depends: their lines by name."""
    lines = {m[1]: m[0] for m in re.finditer(r"^ *(?:ROOT )?(%\S+) = .*", program, re.MULTILINE)}
    found, names = {}, [name]
    while names:
        name = names.pop()
        if name in lines and name not in found:
            found[name] = lines[name]
            names += re.findall(r"%[\w.\-]+", lines[name].partition(" = ")[2])
    return found


@REENTRANT
@pytest.mark.parametrize("pass_", [1, 2])
def test_gradients_are_computed_region_by_region(use_reentrant: bool, pass_: int) -> None:
    """A region is recomputed only after the gradients of the next but one region.

    Otherwise XLA may compute all gradients at the end, and keep all regions' activations until
    then.
    """
    model = Chain(use_reentrant=use_reentrant).to("xla")
    x = torch.rand(4, model.WIDTHS[0], device="xla", requires_grad=True)
    for _ in range(pass_):
        torch_xla.sync()
        loss = model(x)
        loss.backward()
    gradients = [weight.grad for weight in model.weights]
    program = torch_xla._XLAC._get_xla_tensors_hlo([loss, *gradients])
    for i, width in enumerate(model.WIDTHS[1:]):
        both = re.findall(rf"(%\S+) = f32\[4,{width}\]\S* tanh\(", program)
        assert len(both) == 2
        again = max((needed(program, name) for name in both), key=len)
        needs = "\n".join(again.values())
        for other, weight in enumerate(model.weights):
            shape = re.escape(str([*weight.shape[::-1]]).replace(" ", ""))
            is_needed = re.search(rf"= f32{shape}\S* dot\(", needs) is not None
            assert is_needed == (other >= i + 2), (i, other)


def test_compiled_regions_are_computed_one_by_one() -> None:
    """The backward program of torch.compile orders regions as a captured step does."""
    widths = Chain.WIDTHS
    sizes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [torch.rand(size).to("xla").requires_grad_() for size in sizes]

    def loss(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            block = lambda x, weight=weight: (x @ weight.t()).tanh().sin()  # noqa: E731
            x = checkpoint(block, x, use_reentrant=False)
        return x.sum()

    x = torch.rand(4, widths[0]).to("xla").requires_grad_()
    with programs.compiled("before_optimizations") as compiled:
        torch.compile(loss, backend="openxla")(x).backward()
        torch_xla.sync(wait=True)
    (program,) = (text for text in compiled if " opt-barrier(" in text)
    for i, width in enumerate(widths[1:]):
        (again,) = re.findall(rf"(%\S+) = f32\[4,{width}\]\S* tanh\(", program)
        needs = "\n".join(needed(program, again).values())
        for other, (n, k) in enumerate(sizes):
            is_needed = re.search(rf"= f32\[({n},{k}|{k},{n})\]\S* dot\(", needs) is not None
            assert is_needed == (other >= i + 2), (i, other)


@REENTRANT
def test_a_weight_of_several_regions(x: torch.Tensor, use_reentrant: bool) -> None:
    """The weight's gradient is complete only at the end, and is added to an earlier one."""
    weight, other = (torch.linspace(-1, 1, 64).view(8, 8) * scale for scale in (1, 0.5))
    found = []
    for device in ("cpu", "xla"):
        weights = [each.clone().to(device).requires_grad_() for each in (weight, other)]
        for _ in range(2):
            y = x.clone().to(device).requires_grad_()
            for each in (weights[0], weights[0], weights[1], weights[0], weights[1]):
                y = checkpoint(torch.tanh, y @ each, use_reentrant=use_reentrant)
                y = checkpoint(lambda y, each=each: y @ each, y, use_reentrant=use_reentrant)
            y.sum().backward()
        found.append([each.grad.cpu() for each in weights])
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_the_end_of_a_backward_pass_frees_the_model() -> None:
    model = Chain(use_reentrant=False).to("xla")
    model(torch.rand(4, model.WIDTHS[0], device="xla")).backward()
    weights = [weakref.ref(weight) for weight in model.weights]
    gradients = [weakref.ref(weight.grad) for weight in model.weights]
    del model
    gc.collect()
    assert not any(reference() is not None for reference in weights + gradients)
