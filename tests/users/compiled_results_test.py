"""torch.compile(backend="openxla"): the order of results, and copies from input to input.

Upstream torch_xla 2.8.1 gives `twos` for the product in `return product, twos, twos.clone()`, and
an IndexError for `state.copy_(x)`.
"""

from collections.abc import Callable

import pytest
import torch
import torch_xla

Tensors = tuple[torch.Tensor, ...]


def one_value_twice(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    twos = torch.full_like(a, 2)
    return c.t() @ a, twos, twos.clone()


def equal_constants(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    twos = torch.full_like(a, 2, dtype=torch.int64)
    return c.t() @ a, twos, twos.nan_to_num(1)


def views_of_a_result(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    total = a + 1
    return c @ a, total, total.clone(), total.view(-1)


def copied(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    c.copy_(a)
    return (b + 1,)


def copied_to_itself(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    c.copy_(c.clone())
    return (b + 1,)


def only_copied(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    a.copy_(b)
    return (b,)


def exchanged(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    before = a.clone()
    a.copy_(b)
    b.copy_(before)
    return (c + 1,)


def moved_on(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    a.copy_(b)
    b.copy_(c)
    c.mul_(2)
    return a, c.sum().view(1)


def with_a_fallback(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    """nanmedian runs on the host between two programs. The second program's writes come last."""
    a.mul_(2)
    medians = torch.nanmedian(b, 0).values
    before = c + medians.sum()
    c.copy_(a)
    return medians, before, a + c


def only_written_after_a_fallback(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    a.copy_(torch.nanmedian(b, 0).values.expand(4, 4))
    return (b + 1,)


def inputs_returned(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Tensors:
    return a, a, b.detach(), b.clone(), c + 1


@pytest.mark.parametrize(
    "function",
    [
        *(one_value_twice, equal_constants, views_of_a_result, copied, copied_to_itself),
        *(only_copied, exchanged, moved_on, with_a_fallback, only_written_after_a_fallback),
        inputs_returned,
    ],
)
def test_order_of_results(function: Callable[..., Tensors]) -> None:
    inputs = [torch.arange(16.0).view(4, 4) * (i + 1) - i for i in range(3)]
    on_device = [tensor.to("xla") for tensor in inputs]
    torch_xla.sync()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="openxla")
    for _ in range(3):
        expected = [tensor.clone() for tensor in function(*inputs)] + inputs
        results = [*compiled(*on_device), *on_device]
        torch.testing.assert_close(results, expected, check_device=False, rtol=0, atol=0)


def test_a_view_for_an_operator_on_the_host() -> None:
    """Upstream torch_xla drops the operations that compute the view's base, and fails."""
    x = torch.arange(8.0) * 5
    on_device = x.to("xla")
    torch_xla.sync()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.nanmedian(x, 0).values, backend="openxla")
    for part in (slice(4), slice(4, 8)):
        assert torch.equal(compiled(on_device[part]).cpu(), torch.nanmedian(x[part], 0).values)


def test_copies_are_apart() -> None:
    """A copy has its own buffer, so that writes to one do not change the other."""
    state, x = (torch.arange(4.0, device="xla") * i for i in (1, 2))
    torch_xla.sync()

    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.copy_(x)
        return x.detach()

    result = torch.compile(step, backend="openxla")(state, x)
    x.add_(1)
    torch_xla.sync()
    state.mul_(10)
    torch_xla.sync()
    assert x.tolist() == [1, 3, 5, 7]
    assert state.tolist() == [0, 20, 40, 60]
    assert result.tolist() == [1, 3, 5, 7]  # x itself: detach is a view


@pytest.mark.parametrize("share", [torch.Tensor.detach, torch.clone])
def test_arguments_of_one_value(share: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In upstream torch_xla the second call multiplies its first argument by 3, too."""
    step = torch.compile(lambda x, y: (x * 2, y * 3), backend="openxla")
    first, second = torch.randn(2, 3)
    x, y = first.to("xla"), second.to("xla")
    torch_xla.sync()
    for a, b, on_cpu in ((x, share(x), (first, first)), (x, y, (first, second))):
        expected = on_cpu[0] * 2, on_cpu[1] * 3
        torch.testing.assert_close(step(a, b), expected, check_device=False)


def test_a_result_on_a_device_that_no_argument_is_on() -> None:
    compiled = torch.compile(lambda x: x.to("xla") * 2, backend="openxla")
    for value in (1.0, 2.0):
        result = compiled(torch.full((2,), value))
        assert result.device.type == "xla"
        assert result.tolist() == [2 * value] * 2
