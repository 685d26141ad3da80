"""Functions of torch.compile(backend="openxla") that use CPU tensors beside XLA tensors."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torch_xla_ext.graph.shared_memory import SharedMemory

Function = Callable[..., object]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def written_on_the_host(x: Tensor, s: Tensor) -> Tensor:
    s.add_(1)
    return x * s


def written_from_the_host(x: Tensor, s: Tensor) -> None:
    x.add_(s)


def written_on_both(x: Tensor, s: Tensor) -> Tensor:
    s.add_(1)
    x.mul_(s)
    return x.sum()


def host_from_device(x: Tensor, s: Tensor) -> Tensor:
    x.mul_(2)
    s.copy_(x.sum())
    return x + s


def device_between(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    s.mul_(3)
    x.add_(s)
    total = x.sum().cpu() + s
    s.add_(total)
    return x * total, total


def swapped(x: Tensor, s: Tensor) -> None:
    old = s.clone()
    s.copy_(x[0])
    x.fill_(0).add_(old)


def host_vector(x: Tensor, s: Tensor) -> Tensor:
    weights = torch.linspace(0, 1, 3)
    return x + (weights * s).to(x.device)


def several_results(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.stack([s, s + 1, s - 1]).sort()
    return x + values.max(), places


def float64_scalar(x: Tensor, s: Tensor) -> Tensor:
    return x * s.double() + s.long()


def device_from_host(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.ones(2, device=x.device) * s
    s.add_(1)
    return made, made + s


def of_the_host_only(x: Tensor, s: Tensor) -> Tensor:
    return s.add_(1) * 2


def two_dtypes(x: Tensor, s: Tensor) -> Tensor:
    n = (s * 2).long()
    return x * s + (s + 1) + n - (n + 3)


FUNCTIONS = [
    *(written_on_the_host, written_from_the_host, written_on_both, host_from_device),
    *(device_between, swapped, host_vector, several_results, float64_scalar, device_from_host),
    *(of_the_host_only, two_dtypes),
]


def check(function: Function, calls: int = 3) -> None:
    """Compares results and arguments with PyTorch's, and also the results' devices."""
    compiled = torch.compile(function, backend="openxla")
    ours = [torch.tensor([1.0, 2.0, 3.0], device="xla"), torch.tensor(2.0)]
    theirs = [tensor.cpu().clone() for tensor in ours]
    for _ in range(calls):
        results, expected = compiled(*ours), function(*theirs)
        torch.testing.assert_close(results, expected, check_device=False)
        torch.testing.assert_close(ours, theirs, check_device=False)
    assert [tensor.device.type for tensor in ours] == ["xla", "cpu"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_with_cpu_tensors(function: Function) -> None:
    check(function)


def test_results_are_where_pytorch_has_them() -> None:
    x, s = torch.ones(3, device="xla"), torch.tensor(2.0)
    results = torch.compile(lambda x, s: (x * s, s * 2, s), backend="openxla")(x, s)
    assert [result.device.type for result in results] == ["xla", "cpu", "cpu"]
    assert results[2] is s


def test_cpu_tensors_where_xla_is_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs in PyTorch, once for each call, if XLA's device is another one."""
    monkeypatch.setattr(SharedMemory, "of", lambda graph, arguments: None)
    s = torch.tensor(1.0)
    function = torch.compile(lambda s: s.add_(1) * 2, backend="openxla")
    with pytest.warns(UserWarning, match="a function of CPU tensors is not compiled"):
        assert function(s).item() == 4
    assert function(s).item() == 6
    assert s.item() == 3


def test_a_device_argument_alone() -> None:
    """The part of the function that runs on the device has no XLA argument."""
    s = torch.tensor(2.0)
    function = lambda s: (torch.ones(2, device="xla") * s, s.add_(1))  # noqa: E731
    made, same = torch.compile(function, backend="openxla")(s)
    assert made.device.type == "xla"
    assert made.tolist() == [2, 2]
    assert same.item() == 3


def test_a_closed_over_tensor() -> None:
    x, count = torch.zeros(2, device="xla"), torch.tensor(0)

    @torch.compile(backend="openxla")
    def step() -> None:
        count.add_(1)
        x.add_(count)

    for _ in range(3):
        step()
    assert count.item() == 3
    assert x.tolist() == [6, 6]


def test_the_gradient_of_a_host_parameter() -> None:
    results = []
    for device in ("cpu", "xla"):
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        s = torch.tensor(3.0, requires_grad=True)
        function = lambda x, s: (x * s.exp()).sum()  # noqa: E731
        run = torch.compile(function, backend="openxla") if device == "xla" else function
        run(x, s).backward()
        results.append((x.grad.cpu(), s.grad))
    torch.testing.assert_close(results[1], results[0])


def test_an_operator_without_a_kernel() -> None:
    """The operator runs on the host, between two programs; both sides write to an argument."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        median = torch.nanmedian(x, dim=0)
        x.add_(median.values)
        return x + median.indices

    compiled = torch.compile(function, backend="openxla")
    ours = torch.tensor([3.0, 1.0, 2.0], device="xla")
    theirs = ours.cpu()
    for _ in range(2):
        torch.testing.assert_close(compiled(ours).cpu(), function(theirs))
        torch.testing.assert_close(ours.cpu(), theirs)


def random_function(seed: int) -> str:
    """Source of a function of two XLA vectors and two CPU scalars, which it may write to."""
    choose = random.Random(seed)
    device, host = ["a", "b"], ["s", "t"]
    lines = []
    for i in range(choose.randint(3, 7)):
        d, e = choose.choice(device), choose.choice(device)
        h, k = choose.choice(host), choose.choice(host)
        kind = choose.randrange(8)
        if kind == 0:
            lines.append(f"d{i} = {d} * 0.5 + {h}")
            device.append(f"d{i}")
        elif kind == 1:
            lines.append(f"h{i} = {h} * 0.5 - {k}")
            host.append(f"h{i}")
        elif kind == 2:
            lines.append(f"{choose.choice('ab')}.mul_(0.5).add_({h})")
        elif kind == 3:
            lines.append(f"{choose.choice('st')}.add_({k} * 0.25)")
        elif kind == 4:
            lines.append(f"{choose.choice('st')}.copy_({d}.mean())")
        elif kind == 5:
            lines.append(f"h{i} = {d}.mean().cpu() + {h}")
            host.append(f"h{i}")
        elif kind == 6:
            lines.append(f"{choose.choice('ab')}[1:].sub_({h})")
        else:
            lines.append(f"d{i} = {d} - {e} * 0.5")
            device.append(f"d{i}")
    results = ", ".join(choose.sample(device, 2) + choose.sample(host, 2))
    body = "\n    ".join([*lines, f"return {results}"])
    return f"def function(a, b, s, t):\n    {body}\n"


@pytest.mark.parametrize("seed", range(25))
def test_random_function(seed: int) -> None:
    source = random_function(seed)
    names: dict[str, Function] = {}
    exec(source, names)
    function = names["function"]
    compiled = torch.compile(function, backend="openxla")
    theirs = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, -1.0])]
    theirs += [torch.tensor(2.0), torch.tensor(-1.0)]
    ours = [tensor.to("xla" if tensor.dim() else "cpu", copy=True) for tensor in theirs]
    for _ in range(3):
        results, expected = compiled(*ours), function(*theirs)
        torch.testing.assert_close(results, expected, check_device=False, msg=source)
        torch.testing.assert_close(ours, theirs, check_device=False, msg=source)
