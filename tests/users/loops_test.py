"""torch_xla's loops that are one program, beside loops in Python."""

import itertools
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop as while_loop_of_torch
from torch.utils import _pytree as pytree
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

import torch_xla_ext

Carried = tuple[torch.Tensor, ...]


def python_while(
    condition: Callable[..., object], body: Callable[..., Iterable], carried: Carried
) -> Carried:
    while condition(*carried):
        carried = tuple(body(*carried))
    return carried


def python_scan(
    function: Callable[[object, object], tuple[object, object]], carry: object, xs: object
) -> tuple[object, object]:
    results = []
    for number in range(len(pytree.tree_leaves(xs)[0])):
        rows = pytree.tree_map(lambda value, number=number: value[number], xs)
        carry, result = function(carry, rows)
        results.append(result)
    if pytree.tree_leaves(results[0]) == [None]:
        return carry, None
    return carry, pytree.tree_map(lambda *values: torch.stack(values), *results)


def check_equal(result: object, expected: object) -> None:
    results, spec = pytree.tree_flatten(result)
    references, reference_spec = pytree.tree_flatten(expected)
    assert spec == reference_spec
    for one, reference in zip(results, references, strict=True):
        if reference is not None:
            torch.testing.assert_close(one.cpu(), reference)
            assert one.requires_grad == reference.requires_grad


def counted(*values: object, device: str) -> Carried:
    return tuple(torch.tensor(value, device=device) for value in (3, *values))


def while_running(count: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return count > 0


def add_to_first(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    x[0] += value
    return x


# Bodies of a loop with three iterations, and its carried values besides the count.
BODIES = {
    "a swap": (lambda i, x, y: (i - 1, y.clone(), x.clone()), [1], [2]),
    "Fibonacci": (lambda i, x, y: (i - 1, y + 0, x + y), [1], [1]),
    "reads in another order": (lambda i, x, y: (i - 1, x - y, y.sin()), [1.0], [3.0]),
    "constants": (lambda i, x: (i - 1, x * 2.5 + 0.25), [1.0, 2.0]),
    "a value that nothing reads": (lambda i, x, y: (i - 1, x + 1, y.clone()), [1.0], [5.0]),
    "a factory": (lambda i, x: (i - 1, x + i * torch.arange(2, device=x.device.type)), [1.0, 2.0]),
    "float16": (lambda i, x: (i - 1, (x.half() * 1.5).float()), [1.0]),
    "a write through a view": (lambda i, x: (i - 1, add_to_first(x + 0, i)), [1.0, 2.0]),
}


@pytest.mark.parametrize("loop", [while_loop, while_loop_of_torch])
@pytest.mark.parametrize("name", BODIES)
def test_while_loop(name: str, loop: Callable[..., Carried]) -> None:
    body, *values = BODIES[name]
    expected = python_while(while_running, body, counted(*values, device="cpu"))
    check_equal(tuple(loop(while_running, body, counted(*values, device="xla"))), expected)


def test_torch_while_loop_needs_no_import_of_torch_xla_s() -> None:
    program = """if True:
        import torch, torch_xla
        from torch._higher_order_ops.while_loop import while_loop_op
        print(torch._C.DispatchKey.XLA in while_loop_op.py_kernels)
    """
    command = [sys.executable, "-P", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


def test_while_loop_with_tensors_of_outside() -> None:
    def run(loop: Callable[..., Carried], device: str) -> Carried:
        limit, factor = torch.tensor(1, device=device), torch.tensor([2.0, 3.0], device=device)
        base = torch.arange(6.0, device=device) + 1
        return loop(
            lambda i, *_: i > limit,
            lambda i, x, y: (i - 1, x * factor + base[:2], x),
            counted([1.0, 2.0], [0.0, 0.0], device=device),
        )

    check_equal(run(while_loop, "xla"), run(python_while, "cpu"))


def test_while_loops_in_each_other_in_captured_steps() -> None:
    def run(loop: Callable[..., Carried], x: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, x: torch.Tensor) -> Carried:
            return i - 1, loop(lambda j, _: j < 2, lambda j, y: (j + 1, y * i), (i * 0, x))[1]

        return loop(while_running, body, (torch.tensor(3, device=x.device), x + 1))[1]

    captured = torch_xla_ext.capture(lambda x: run(while_loop, x))
    for value in range(3):
        x = torch.full((2,), float(value))
        check_equal(captured(x.to("xla")), run(python_while, x))


def test_random_numbers_of_a_while_loop() -> None:
    _, one, other = while_loop(
        while_running,
        lambda i, x, y: (i - 1, torch.rand(64, device="xla"), x),
        (torch.tensor(3, device="xla"), *(torch.zeros(64, device="xla") for _ in range(2))),
    )
    assert not torch.isin(one.cpu(), other.cpu()).any()


def test_fori_loop_of_two_values() -> None:
    bounds = torch.tensor(0, device="xla"), torch.tensor(5, device="xla")
    ones = [torch.tensor(1, device="xla") for _ in range(2)]
    result = fori_loop(*bounds, lambda x, y: (y, x + y), *ones)
    assert [int(value) for value in result] == [0, 8, 13]


COUNTER = itertools.count()


def writes(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


# Bodies for which one traced iteration cannot stand for all, and a part of the error.
REFUSED = {
    "a read": (lambda x, _: x + x.sum().item(), "reads the value"),
    "a branch": (lambda x, _: x + 1 if x.sum() > 0 else x, "reads the value"),
    "an index": (lambda x, w: x + w[x.argmax()], r"by an index; .* x.i.view.1.. reads x.i."),
    "a slice": (lambda x, w: x + w[x.argmax() :].sum(), "by an index"),
    "a write to an argument": (lambda x, _: writes(x), "writes to its argument"),
    "a write to another tensor": (lambda x, w: x + writes(w), "writes to a tensor of outside"),
    "a write through a view": (lambda x, w: x + w[:1].mul_(2), "writes to a tensor of outside"),
    "statistics": (
        lambda x, w: x + torch.nn.functional.batch_norm(w.expand(3, 2), w, w, training=True)[0],
        "writes to a tensor of outside",
    ),
    "another dtype": (lambda x, _: x.double(), "float64 .2. as carried value"),
    "more elements": (lambda x, _: torch.cat([x, x]), "float32 .4. as carried value"),
    "a counter": (lambda x, _: x * next(COUNTER), "when it is called again"),
    "random numbers of the host": (lambda x, _: x * random.random(), "when it is called again"),
    "an operator on the host": (lambda x, _: torch.special.bessel_j0(x), "that torch_xla lacks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_functions(name: str) -> None:
    function, message = REFUSED[name]
    outer, x = torch.ones(2, device="xla"), torch.tensor([1.0, 2.0], device="xla")
    with pytest.raises((RuntimeError, ValueError), match=message):
        while_loop(
            while_running,
            lambda i, x: (i - 1, function(x, outer)),
            (torch.tensor(3, device="xla"), x),
        )
    with pytest.raises((RuntimeError, ValueError), match=message):
        scan(lambda carry, row: (function(carry, outer), row), x, torch.ones(2, 2, device="xla"))
    assert torch.equal(x.cpu(), torch.tensor([1.0, 2.0]))


def test_refused_arguments() -> None:
    x = torch.ones(2)
    with pytest.raises(ValueError, match=r'on cpu: move it with .to\("xla"\)'):
        while_loop(while_running, lambda i, x: (i - 1, x), (torch.tensor(3, device="xla"), x))
    with pytest.raises(ValueError, match=r'on cpu: move it with .to\("xla"\)'):
        scan(lambda carry, row: (carry + row, row), x.to("xla"), x[None])


def test_gradients_through_a_while_loop_are_refused() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    _, result = while_loop(
        while_running, lambda i, x: (i - 1, x * weight), counted([1.0, 2.0], device="xla")
    )
    with pytest.raises(RuntimeError, match="while_loop has no gradient"):
        result.sum().backward()


# Functions, and the dtypes of carried values and of rows.
FUNCTIONS = {
    "integers": (lambda c, x: (c + x, c * x), int, int),
    "an integer carried": (lambda c, x: (c + 1, x * c), int, float),
    "a comparison": (lambda c, x: (c + x, c > 1), float, float),
    "an index": (lambda c, x: (c + x, x.argmax()), float, float),
    "a detached result": (lambda c, x: (c + x, c.detach()), float, float),
    "a detached carry": (lambda c, x: ((c + x).detach(), x), float, float),
    "a constant": (lambda c, x: (c + x, torch.ones(2, device=x.device)), float, float),
    "the row carried": (lambda c, x: (x, c), float, float),
    "booleans": (lambda c, x: (c ^ x, c), bool, bool),
    "no result": (lambda c, x: (c * x, None), float, float),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scan(name: str) -> None:
    function, carried, row = FUNCTIONS[name]

    def run(loop: Callable[..., tuple], device: str) -> tuple[object, list[torch.Tensor | None]]:
        carry = torch.tensor([0, 1]).to(torch.tensor(carried(1)).dtype).to(device)
        xs = torch.tensor([[1, 2], [0, 4]]).to(torch.tensor(row(1)).dtype).to(device)
        inputs = [one.requires_grad_() for one in (carry, xs) if one.is_floating_point()]
        results = loop(function, carry, xs)
        total = sum((one * one).sum() for one in pytree.tree_leaves(results) if needs_grad(one))
        if torch.is_tensor(total) and total.requires_grad:
            gradients = torch.autograd.grad(total, inputs, allow_unused=True)
            results = *results, [one if one is None else one + 0 for one in gradients]
        return pytree.tree_map(lambda one: one if one is None else one.detach(), results)

    def as_zeros(value: object) -> object:
        """Gradients that are None as zeros: in a loop, each input has a gradient."""
        return pytree.tree_map(lambda one: torch.zeros(()) if one is None else one, value)

    result, expected = run(scan, "xla"), run(python_scan, "cpu")
    for one, other in zip(
        pytree.tree_leaves(as_zeros(result)), pytree.tree_leaves(as_zeros(expected)), strict=True
    ):
        torch.testing.assert_close(one.cpu(), other.broadcast_to(one.shape))


def test_scan_with_a_default_device() -> None:
    xs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with torch.device("xla"):
        carry, _ = scan(lambda c, x: (c + x, c), torch.ones(2), xs.to("xla"))
    assert carry.tolist() == [5, 7]


def needs_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@pytest.mark.parametrize("transform", [lambda f: f, torch_xla_ext.capture])
def test_scan_with_a_module_of_outside(transform: Callable[..., Callable]) -> None:
    """The gradients of the module's parameters are sums over all iterations."""
    torch.manual_seed(0)
    modules = {"cpu": torch.nn.Linear(2, 2)}
    modules["xla"] = torch.nn.Linear(2, 2)
    modules["xla"].load_state_dict(modules["cpu"].state_dict())
    modules["xla"].to("xla")
    scales = {device: torch.tensor([0.5, 2.0], device=device) for device in modules}

    def step(loop: Callable[..., tuple], x: torch.Tensor) -> torch.Tensor:
        module, scale = modules[x.device.type], scales[x.device.type]
        carry, means = loop(
            lambda c, row: ((module(c) + row * scale).tanh(), c.mean()), torch.ones_like(x[0]), x
        )
        loss = carry.sum() + means.sum()
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
        return loss.detach()

    run = transform(lambda x: step(scan, x))
    for number in range(3):
        x = torch.randn(3, 2, generator=torch.Generator().manual_seed(number))
        torch.testing.assert_close(run(x.to("xla")).cpu(), step(python_scan, x))


def test_a_pure_function_whose_tensor_of_outside_is_replaced() -> None:
    values = {}

    def function(carry: torch.Tensor, row: torch.Tensor) -> Carried:
        return carry + row * values["factor"], carry

    xs = torch.ones(2, 2, device="xla")
    for factor in (2.0, 3.0):
        values["factor"] = torch.tensor(factor, device="xla")
        carry, _ = scan(function, xs[0] * 0, xs, is_fn_pure=True)
        assert torch.equal(carry.cpu(), torch.full((2,), 2 * factor))


def test_scans_in_each_other() -> None:
    def run(loop: Callable[..., tuple], x: torch.Tensor) -> tuple:
        return loop(
            lambda c, row: (loop(lambda d, y: (d * y, d), c, row)[0], c), x[0, 0] * 0 + 1, x
        )

    x = torch.arange(1.0, 7.0).view(2, 3)
    check_equal(run(scan, x.to("xla")), run(python_scan, x))


class Layer(torch.nn.Module):
    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(2, 2), torch.nn.Dropout(0.0)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x)) * getattr(self, "factor", 1.0) + getattr(
            self, "shift", 0
        )


def dropping_all() -> Layer:
    layer = Layer()
    layer.dropout.p = 1.0
    return layer


def scaled_by_hook() -> Layer:
    layer = Layer()
    layer.register_forward_hook(lambda module, args, output: output * 2)
    return layer


# Layers, and whether they run one by one instead of in a loop.
LAYERS = {
    "a number": (lambda: [Layer(factor=float(factor)) for factor in (1, 2, 3)], True),
    "an index that is not used": (lambda: [Layer(index=index) for index in range(3)], False),
    "equal tensors": (lambda: [Layer(shift=torch.ones(2, device="xla")) for _ in range(2)], False),
    "other tensors": (
        lambda: [Layer(shift=torch.tensor([0.0, i], device="xla")) for i in range(2)],
        True,
    ),
    "other tensors on the host": (
        lambda: [Layer(shift=torch.tensor(float(i))) for i in range(2)],
        True,
    ),
    "an activation": (lambda: [torch.nn.Sequential(Layer(), each) for each in ACTIVATIONS], True),
    "training": (lambda: [Layer(), dropping_all().eval(), Layer()], False),
    "dropout": (lambda: [Layer(), dropping_all(), Layer()], True),
    "a hook": (lambda: [Layer(), scaled_by_hook()], True),
}
ACTIVATIONS = torch.nn.ReLU(), torch.nn.Tanh()


@pytest.mark.parametrize("name", LAYERS)
def test_scan_layers(name: str) -> None:
    make, one_by_one = LAYERS[name]
    layers = torch.nn.ModuleList(make()).to("xla")
    x = torch.tensor([[1.0, -2.0]], device="xla")
    expected = x
    for layer in layers:
        expected = layer(expected)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = scan_layers(layers, x)
    assert any("one by one" in str(warning.message) for warning in caught) == one_by_one
    torch.testing.assert_close(result.cpu(), expected.cpu())
    gradients = [
        torch.autograd.grad(y.sum(), list(layers.parameters())) for y in (result, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())


def test_the_gradient_of_a_scan_s_gradient_is_refused() -> None:
    first = torch.tensor([1.5], device="xla", requires_grad=True)
    values = torch.tensor([[1.0], [2.0], [3.0]], device="xla")
    last, _ = scan(lambda carry, x: (carry * x, carry + x), first, values)
    (gradient,) = torch.autograd.grad(last.sum(), first, create_graph=True)
    assert gradient.item() == 6
    with pytest.raises(RuntimeError, match="scan: second derivatives are not supported"):
        gradient.sum().backward()
