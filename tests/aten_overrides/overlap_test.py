"""Writes to expanded tensors, windows, and other memory that several elements share.

They have PyTorch's error, or PyTorch's values.
"""

from collections.abc import Callable

import pytest
import torch
import torch_xla  # noqa: F401
from testing.as_on_the_cpu import check, check_calls, with_gradients

Call = Callable[[torch.Tensor], object]
ELEMENTS = "more than one element of the written-to tensor refers to a single memory location"
OPERANDS = "some elements of the input tensor and the written-to tensor refer to a single memory"


def index(x: torch.Tensor, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


# Functions of x, which has 3 x 3 elements.
SHARED_ELEMENTS: dict[str, Call] = {
    "add_": lambda x: x[:1].expand(2, 3).add_(1),
    "a view of it": lambda x: x[0].expand(2, 3)[:, 1:].mul_(2),
    "copy_": lambda x: x[:1].expand(2, 3).copy_(x[:2] + 0),
    "an assignment": lambda x: x[0].expand(2, 3).__setitem__(slice(None), x[:2] + 0),
    "uniform_": lambda x: x[:1].expand(2, 3).uniform_(),
    "scatter_": lambda x: x[:1].expand(2, 3).scatter_(0, index(x, 0)[None], 5),
    "addmm_": lambda x: x[:1].expand(3, 3).addmm_(x + 0, x + 0),
    "a view by as_strided": lambda x: x.as_strided((2, 3), (0, 1)).add_(1),
    "torch.add(out=)": lambda x: torch.add(x[:2] + 0, 1, out=x[:1].expand(2, 3)),
    "torch.sort(out=)": lambda x: torch.sort(
        x[:2] + 0, out=(x[:1].expand(2, 3), torch.empty(2, 3, dtype=int, device=x.device))
    ),
    "a list": lambda x: torch._foreach_add_([x[1:], x[:1].expand(2, 3)], 1),
    "without gradients": lambda x: x.requires_grad_().data[:1].expand(2, 3).add_(1),
    "a clone's": lambda x: (x * 2)[:1].expand(2, 3).sub_(1),
}
SHARED_OPERANDS: dict[str, Call] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "a row": lambda x: x.add_(x[0]),
    "a number": lambda x: x.mul_(x[0, 1]),
    "transposed": lambda x: x.add_(x.t()),
    "copy_": lambda x: x.copy_(x.t()),
    "an assignment": lambda x: x.view(-1).__setitem__(slice(1, None), x.view(-1)[:-1]),
    "torch.exp(out=)": lambda x: torch.exp(x[1:], out=x[:-1]),
    "torch.cat(out=)": lambda x: torch.cat([x[:1], x[2:]], out=x[:2]),
    "torch.cumsum(out=)": lambda x: torch.cumsum(x[1:], 0, out=x[:-1]),
    "index_copy_": lambda x: x.index_copy_(0, index(x, 2, 1, 0), x),
    "index_put_": lambda x: x.index_put_((index(x, 1, 0, 2),), x),
    "torch.index_select(out=)": lambda x: torch.index_select(x, 0, index(x, 2, 1, 0), out=x),
    "a list": lambda x: torch._foreach_mul_([x[1:]], [x[:-1]]),
}


def error_of(call: Call, x: torch.Tensor) -> str:
    with pytest.raises(RuntimeError) as raised:
        call(x)
    return str(raised.value).splitlines()[0]


@pytest.mark.parametrize("name", SHARED_ELEMENTS)
def test_shared_elements(name: str) -> None:
    x = torch.arange(9.0).view(3, 3)
    on_device = x.to("xla")
    text = error_of(SHARED_ELEMENTS[name], on_device)
    assert text == error_of(SHARED_ELEMENTS[name], x)
    assert ELEMENTS in text
    assert torch.equal(on_device.detach().cpu(), torch.arange(9.0).view(3, 3))


@pytest.mark.parametrize("name", SHARED_OPERANDS)
def test_shared_operands(name: str) -> None:
    x = torch.arange(9.0).view(3, 3)
    on_device = x.to("xla")
    text = error_of(SHARED_OPERANDS[name], on_device)
    assert text == error_of(SHARED_OPERANDS[name], x)
    assert OPERANDS in text
    assert torch.equal(on_device.cpu(), torch.arange(9.0).view(3, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.as_strided((3, 2), (1, 1)).add_(1),
        lambda x: x.view(-1).unfold(0, 3, 1).mul_(2),
        lambda x: x.as_strided((2, 3), (2, 1)).copy_(x[:2] + 0),
        lambda x: x[0].expand(2, 3).index_put_((index(x, 0, 1),), x[:2] + 0),
    ],
)
def test_shared_elements_that_pytorch_does_not_see(call: Call) -> None:
    """PyTorch writes to such elements in an undefined order; on XLA devices it is an error."""
    if call(torch.arange(9.0).view(3, 3)) is None:
        pytest.fail("PyTorch refuses it, too")
    with pytest.raises(RuntimeError, match=ELEMENTS):
        call(torch.arange(9.0, device="xla").view(3, 3))


WRITES: dict[str, Call] = {
    "the same value": lambda x: x[:1].expand(3, 3).fill_(7),
    "zeros": lambda x: x[0].expand(2, 3).zero_(),
    "a mask": lambda x: x[:1].expand(3, 3).masked_fill_(x > 4, 7),
    "a triangle": lambda x: x[:1].expand(3, 3).tril_(),
    "one of the windows": lambda x: x.view(-1).unfold(0, 3, 1)[2].add_(5),
    "all windows": lambda x: x.view(-1).unfold(0, 3, 2).fill_(5),
    "a row of as_strided": lambda x: x.as_strided((3, 2), (1, 1))[0].add_(7),
    "the last row of as_strided": lambda x: x.as_strided((3, 2), (1, 1), 2)[2].mul_(7),
    "all of as_strided": lambda x: x.as_strided((3, 3), (1, 2)).fill_(-1),
    "strides that meet nowhere": lambda x: x.as_strided((2, 3), (3, 2)).add_(7),
    "the same tensor": lambda x: x.add_(x),
    "the same memory": lambda x: x.mul_(x.view(-1).view(3, 3)),
    "other rows": lambda x: x[:1].add_(x[1:2]),
    "other columns": lambda x: x[:, 0].copy_(x[:, 1]),
    "a product": lambda x: torch.mul(x, 2, out=x),
    "not expanded": lambda x: x.expand(3, 3).add_(1),
    "nothing": lambda x: x[:0].expand(0, 3).add_(1),
}


@pytest.mark.parametrize("way", ["lazy", "captured"])
@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str, way: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        WRITES[name](x)
        return x * 1

    check(step, torch.arange(9.0).view(3, 3), way=way)


def test_a_mask_is_filled_with_one_of_the_elements() -> None:
    x = torch.arange(9.0)
    on_device = x.to("xla")
    for y in (x, on_device):
        y[y > 4] = y[1]
    assert torch.equal(on_device.cpu(), x)


EXPANDED: dict[str, Call] = {
    "one row": lambda y: y[1].fill_(2.5),
    "infinity": lambda y: y[0].fill_(-torch.inf),
    "NaN": lambda y: y[1].fill_(torch.nan),
    "a small number": lambda y: y[0].fill_(1e-6),
    "all": lambda y: y.zero_(),
    "all of a column": lambda y: y[..., 0].fill_(7),
    "two rows, one after the other": lambda y: (y[1].fill_(2), y[0].fill_(4)),
    "nothing": lambda y: y[:0].fill_(3),
}
OF_ALL_TYPES = ["all", "all of a column", "two rows, one after the other", "nothing"]
SHAPES = {
    "a new dimension": ((4,), (3, 4)),
    "a dimension of one": ((1, 4), (3, 4)),
    "two": ((2, 1, 4), (3, 2, 5, 4)),
    "none": ((3, 4), (3, 4)),
    "without dimensions": ((), (2, 3)),
}


@pytest.mark.parametrize("way", ["lazy", "captured"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in EXPANDED]
    + [(name, dtype) for name in OF_ALL_TYPES for dtype in (torch.int64, torch.bool)],
)
def test_writes_to_an_expanded_tensor(name: str, shape: str, dtype: torch.dtype, way: str) -> None:
    """PyTorch's own functionalization gets them wrong."""
    own, expanded = SHAPES[shape]

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.expand(expanded)
        EXPANDED[name](y)
        return y * 1

    numbers = torch.arange(torch.Size(own).numel()) - 2.0
    numbers[:1] = 1e8
    numbers[-1:] = torch.inf if dtype == torch.float32 else 3
    check(step, numbers.view(own).to(dtype), way=way)


@pytest.mark.parametrize(
    "dim, size, step", [(1, 3, 3), (1, 2, 3), (0, 1, 2), (-1, 8, 8), (1, 4, 5)]
)
def test_elements_outside_of_windows_stay(dim: int, size: int, step: int) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        windows = x.unfold(dim, size, step)
        windows.add_(100)
        windows[..., 0].mul_(2)
        return x.clone()

    check(write, torch.arange(32.0).view(4, 8))


@pytest.mark.parametrize("way", ["captured", "openxla"])
def test_windows_in_a_program(way: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.unfold(1, 3, 3).add_(1)
        return y

    check_calls(step, [(torch.arange(16.0).view(2, 8) + i,) for i in range(3)], way)


def rows(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).expand(3, 8)
    y[1] = 5
    return y


def windows(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    y.unfold(0, 3, 4).mul_(3)
    return y


@pytest.mark.parametrize("function", [rows, windows])
def test_gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(with_gradients(function), torch.arange(8.0))


def test_other_devices_keep_pytorchs_unfold() -> None:
    x = torch.arange(6.0)
    found = torch.func.functionalize(lambda x: x.unfold(0, 2, 2) * 2)(x)
    assert torch.equal(found, x.unfold(0, 2, 2) * 2)
