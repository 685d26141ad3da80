"""Views by as_strided and of diagonals, which upstream torch_xla takes for slices of the view."""

import math

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import check


@pytest.mark.parametrize(
    "size, stride, offset",
    [((2, 2), (1, 8), 0), ((2, 3), (7, 2), 1), ((3, 2), (1, 3), 2), ((4, 4), (4, 1), 0)],
)
def test_write_to_a_view_of_any_strides(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    """Upstream torch_xla ignores the strides, and writes to consecutive elements."""
    operands = torch.arange(16.0), -torch.arange(1.0, 1 + size[0] * size[1]).reshape(size)
    check(lambda x, values: x.as_strided(size, stride, offset).copy_(values), *operands)
    check(lambda x, values: torch.as_strided_scatter(x, values, size, stride, offset), *operands)


def test_as_strided_of_a_view() -> None:
    """as_strided steps through the view, and beyond it through the view's base."""
    x = torch.arange(12.0, device="xla").view(3, 4)
    assert x.as_strided((2, 2), (1, 4), 1).tolist() == [[1, 5], [2, 6]]
    for rows in (x[1:], x[1:].clone()):
        assert rows.as_strided((2,), (1,)).tolist() == [4, 5]
        assert rows[0].as_strided((3, 2), (1, 1)).tolist() == [[4, 5], [5, 6], [6, 7]]
    x[1:].as_strided((2,), (5,)).fill_(-1)
    assert x.view(-1).tolist() == [0, 1, 2, 3, -1, 5, 6, 7, 8, -1, 10, 11]
    assert x[1:].as_strided((2,), (1,), 0).tolist() == [0, 1]
    assert x[1].as_strided((6,), (1,)).tolist() == [-1, 5, 6, 7, 8, -1]
    assert torch.equal(x[:, ::2].as_strided((3, 4), (4, 1), 0), x)
    with pytest.raises(RuntimeError, match="the offset 0 is the first element of the tensor that"):
        x[1:].as_strided((2, 4), (4, 1), 0)
    with pytest.raises(RuntimeError, match="reach element 12 of a tensor with 12 elements"):
        x[1:].as_strided((9,), (1,))
    weight = torch.ones(3, 4, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match="for which there is no gradient"):
        weight[1:].as_strided((2,), (1,), 0)


def test_writes_to_as_strided_beyond_a_view() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        columns = x[:, ::2]
        columns.add_(1)
        whole = columns.as_strided((3, 4), (4, 1), 0)
        whole[0] = 7
        columns.sub_(3)
        x[1:].as_strided((3,), (1,), 0).fill_(-1)
        return torch.cat([x, whole, x[:, 1:]], 1)

    check(write, torch.arange(12.0).view(3, 4))


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (9, 2), (2, 5), (3, 3, 3), (1, 1)])
def test_fill_diagonal_of_a_view(shape: tuple[int, ...], wrap: bool, way: str) -> None:
    """PyTorch composes it of an as_strided of the view, which is refused on XLA devices."""

    def fill(x: torch.Tensor) -> torch.Tensor:
        x[1].fill_diagonal_(7, wrap)
        return x + 1

    check(fill, torch.arange(2.0 * math.prod(shape)).view(2, *shape), way=way)


def test_fill_diagonal_of_unequal_sizes() -> None:
    with pytest.raises(RuntimeError, match="must be of equal length"):
        torch.zeros(2, 3, 2, device="xla").fill_diagonal_(1)


def test_views_of_consecutive_elements_gather_nothing() -> None:
    """These views, and a parameter from ``to_empty()``, which upstream copies when it is read."""
    x = torch.arange(24.0).view(4, 6)
    for size, stride, offset in [((4, 6), (6, 1), 0), ((6, 4), (1, 6), 0), ((3, 2), (1, 3), 5)]:
        view = x.to("xla").as_strided(size, stride, offset)
        assert "gather" not in torch_xla._XLAC._get_xla_tensors_hlo([view + 1])
        assert torch.equal(view.cpu(), x.as_strided(size, stride, offset))
    parameter = torch.nn.Linear(6, 4, device="meta").to_empty(device="xla").weight
    assert not torch_xla._XLAC._xla_capture_has_own_values(parameter)
    permuted = torch.empty_permuted((4, 6), (1, 0), device="xla")
    assert torch.equal(permuted.copy_(x).cpu(), x)
    with pytest.raises(RuntimeError, match="must have each of the 2 dimensions once"):
        torch.empty_permuted((4, 6), (1, 1), device="xla")


def test_strides_of_0_and_of_windows() -> None:
    """The upstream kernel treats every view as a slice, also with strides of 0 and overlaps."""
    x = torch.arange(10.0).view(2, 5)
    for size, stride in [((2,), (1,)), ((4,), (0,)), ((3, 4), (2, 1)), ((2, 4), (1, 1)), ((), ())]:
        check(lambda x, size=size, stride=stride: x.as_strided(size, stride), x)
    with pytest.raises(RuntimeError, match="reach element 14 of a tensor with 10 elements"):
        x.to("xla").as_strided((3, 5), (5, 1))


def test_as_strided_in_place_of_a_view() -> None:
    """as_strided_ of a view is refused where PyTorch's kernel would step through the view."""
    columns = torch.arange(12.0, device="xla").view(3, 4)[:, ::2]
    with pytest.raises(RuntimeError, match=r"as_strided_: size \[3, 4\] and stride \[4, 1\]"):
        columns.as_strided_((3, 4), (4, 1), 0)
    with pytest.raises(RuntimeError, match=r"the stride .* may be of either"):
        columns.as_strided_((2,), (2,))
    x = torch.arange(12.0, device="xla")
    x.as_strided_((2, 2), (1, 5), 1).add_(100)
    assert x.tolist() == [[101, 106], [102, 107]]


def test_as_strided_scatter_in_a_captured_step() -> None:
    """A captured function is refused where it runs an operator on the host."""
    step = lambda x, values: torch.as_strided_scatter(x, values, (2, 3), (3, 2), 1)  # noqa: E731
    check(step, torch.arange(12.0), -torch.ones(2, 3), way="captured")


def test_copies_of_steps_through_a_view() -> None:
    """as_strided_copy steps through the view's base; upstream steps through the view's elements."""
    x = torch.arange(12.0)
    for view in (lambda y: y[2:], lambda y: y.view(3, 4)[:, 1:], lambda y: y.view(3, 4)):
        check(lambda x, view=view: torch.as_strided_copy(view(x), (2, 2), (4, 1), 6), x)
    columns = x.to("xla").view(3, 4)[:, ::2]
    with pytest.raises(RuntimeError, match="may be of either"):
        torch.as_strided_copy(columns, (2,), (2,))
    values = torch.zeros(3, 4, device="xla")
    with pytest.raises(RuntimeError, match=r"as_strided_scatter: size \[3, 4\] and stride"):
        torch.as_strided_scatter(columns, values, (3, 4), (4, 1), 0)
