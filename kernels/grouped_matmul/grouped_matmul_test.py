"""The grouped products against a loop over the groups, on the CPU or a GPU."""

from collections.abc import Callable, Sequence

import pytest
import torch
from testing.samples import Arguments

import torch_xla_ext
from torch_xla_ext.ops import (
    group_ranges,
    grouped_linear,
    grouped_linear_sum,
    grouped_matmul,
    grouped_outer,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Of a result's largest value: half a unit in the last place, and sums in another order.
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-5}
for_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

Ranges = Sequence[tuple[int, int]]


def ranges_of(sizes: Sequence[int]) -> Ranges:
    return group_ranges(torch.tensor(sizes)).tolist()


def reference_matmul(x: torch.Tensor, w: torch.Tensor, ranges: Ranges) -> torch.Tensor:
    parts, at = [], 0
    for group, (begin, end) in enumerate(ranges):
        parts += [x.new_zeros(begin - at, w.shape[2]), x[begin:end] @ w[group]]
        at = end
    return torch.cat([*parts, x.new_zeros(x.shape[0] - at, w.shape[2])])


def reference_linear(x: torch.Tensor, w: torch.Tensor, ranges: Ranges) -> torch.Tensor:
    return reference_matmul(x, w.transpose(1, 2), ranges)


def reference_outer(x: torch.Tensor, y: torch.Tensor, ranges: Ranges) -> torch.Tensor:
    return torch.stack([x[begin:end].t() @ y[begin:end] for begin, end in ranges])


Function = Callable[..., torch.Tensor]
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "matmul": (grouped_matmul, reference_matmul),
    "linear": (grouped_linear, reference_linear),
    "outer": (grouped_outer, reference_outer),
}
for_each_function = pytest.mark.parametrize("name", FUNCTIONS)


def operands(name: str, dtype: torch.dtype, rows: int, groups: int, k: int, n: int) -> Arguments:
    x = torch.randn(rows, k).to(dtype)
    shapes = {"matmul": (groups, k, n), "linear": (groups, n, k), "outer": (rows, n)}
    return x, torch.randn(shapes[name]).to(dtype)


def check(
    name: str,
    tensors: Arguments,
    ranges: Ranges,
    device: torch.device,
    right_ranges: Ranges | None = None,
) -> None:
    function, reference = FUNCTIONS[name]
    on_device = torch.tensor(ranges, dtype=torch.int32).reshape(-1, 2).to(device)
    result = function(*(tensor.to(device) for tensor in tensors), on_device)
    x, y = (tensor.double() for tensor in tensors)
    expected = reference(x, y, ranges if right_ranges is None else right_ranges)
    assert (result.dtype, result.shape) == (tensors[0].dtype, expected.shape)
    assert_near(result.cpu(), expected)


def assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    scale = max(expected.abs().max().item(), 1e-30) if expected.numel() else 1
    difference = (result.double() - expected).abs()
    assert not difference.numel() or difference.max() <= TOLERANCES[result.dtype] * scale
    assert torch.equal(result == 0, expected.to(result.dtype) == 0)


@for_each_function
@for_each_dtype
@pytest.mark.parametrize(
    ("k", "n"), [(64, 128), (8, 8), (136, 264), (200, 72), (1, 1), (63, 130), (64, 129), (33, 64)]
)
def test_sizes_of_matrices(
    device: torch.device, name: str, dtype: torch.dtype, k: int, n: int
) -> None:
    """Multiples of tiles, multiples of 8 (16 bytes), and others, which another kernel computes."""
    sizes = (3, 0, 70, 1)
    check(name, operands(name, dtype, 75, len(sizes), k, n), ranges_of(sizes), device)


@for_each_function
@for_each_dtype
@pytest.mark.parametrize(
    "sizes",
    [
        (1,),
        (0,),
        (0, 0, 5),
        (5, 0, 0),
        (64, 64),
        (65, 1, 127, 16, 17),
        (0, 130, 0, 129),
        (1,) * 40,
        tuple(i % 5 for i in range(130)),
    ],
    ids=lambda sizes: f"{len(sizes)}-{sum(sizes)}",
)
def test_sizes_of_groups(
    device: torch.device, name: str, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    check(name, operands(name, dtype, sum(sizes), len(sizes), 72, 40), ranges_of(sizes), device)


@for_each_function
@for_each_dtype
@pytest.mark.parametrize("k", [128, 1096])
def test_large_groups(device: torch.device, name: str, dtype: torch.dtype, k: int) -> None:
    """On Hopper, they have tiles of their own."""
    sizes = (300, 1, 0, 129)
    check(name, operands(name, dtype, 430, len(sizes), k, 264), ranges_of(sizes), device)


@for_each_function
@for_each_dtype
def test_rows_of_no_group(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Their results are zeros, and they take no part, even if they are infinite."""
    ranges = ((3, 10), (10, 10), (75, 80))
    x, y = operands(name, dtype, 150, len(ranges), 72, 136)
    for outside in (slice(3), slice(10, 75), slice(80, None)):
        x[outside] = float("inf")
        if name == "outer":
            y[outside] = float("nan")
    function, reference = FUNCTIONS[name]
    on_device = torch.tensor(ranges, dtype=torch.int32).to(device)
    result = function(x.to(device), y.to(device), on_device).cpu()
    assert_near(result, reference(x.double(), y.double(), ranges))


@for_each_function
@for_each_dtype
def test_ranges_that_are_no_ranges(device: torch.device, name: str, dtype: torch.dtype) -> None:
    ranges = ((-5, 4), (2, 9), (1, 6), (12, 11), (20, 999), (-1, 2**31 - 1))
    right = ((0, 4), (4, 9), (9, 9), (11, 11), (20, 30), (30, 30))
    tensors = operands(name, dtype, 30, len(ranges), 64, 64)
    check(name, tensors, ranges, device, right_ranges=right)


@for_each_function
def test_empty_operands(device: torch.device, name: str) -> None:
    check(name, operands(name, torch.bfloat16, 0, 2, 16, 24), ((0, 0), (0, 0)), device)
    check(name, operands(name, torch.bfloat16, 5, 2, 16, 0), ((0, 2), (2, 5)), device)
    check(name, operands(name, torch.bfloat16, 5, 2, 0, 24), ((0, 2), (2, 5)), device)


@for_each_function
@for_each_dtype
def test_slices_that_are_not_aligned(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """XLA may pass a kernel a slice of an allocation."""
    ranges = ranges_of((3, 2, 7))
    x, y = operands(name, dtype, 12, 3, 24, 40)
    function, reference = FUNCTIONS[name]
    padded = torch.cat([torch.zeros(1, dtype=dtype), x.flatten()]).to(device)
    result = function(
        padded[1:].reshape(x.shape), y.to(device), torch.tensor(ranges).int().to(device)
    )
    assert_near(result.cpu(), reference(x.double(), y.double(), ranges))


@for_each_dtype
@pytest.mark.parametrize("n", [1, 40, 63, 2048, 4104])
@pytest.mark.parametrize("terms", [1, 2, 8])
def test_sums(device: torch.device, dtype: torch.dtype, n: int, terms: int) -> None:
    """Row 14 is of no group, and some positions are no rows: they add nothing."""
    ranges = ranges_of((3, 0, 11))
    x, w = operands("linear", dtype, 15, 3, 16, n)
    position = torch.randint(-2, 17, (9, terms), dtype=torch.int32)
    weights = torch.rand(9, terms)
    arguments = (x, w, torch.tensor(ranges).int(), position, weights)
    result = grouped_linear_sum(*(tensor.to(device) for tensor in arguments)).cpu()
    products = reference_linear(x.double(), w.double(), ranges).to(dtype).double()
    is_row = (position >= 0) & (position < 15)
    terms_of = products[torch.where(is_row, position, 14).long()]
    expected = (terms_of * weights.double()[..., None]).sum(1)
    assert (result.dtype, result.shape) == (dtype, (9, n))
    assert_near(result, expected)


@for_each_function
@for_each_dtype
def test_gradients(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Gradients of both operands, and the gradients of these, are right."""
    ranges = ranges_of((5, 0, 70, 3))  # two rows are of no group
    tensors = operands(name, dtype, 80, 4, 40, 72)
    function, reference = FUNCTIONS[name]
    on_device = torch.tensor(ranges).int().to(device)

    def gradients(function: Function, leaves: Arguments, ranges: object) -> Arguments:
        out = function(*leaves, ranges)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(out.shape, generator=generator).to(out)
        first = torch.autograd.grad(out, leaves, grad, create_graph=True)
        factors = [torch.randn(leaf.shape, generator=generator).to(leaf) for leaf in leaves]
        total = sum((g * f).sum() for g, f in zip(first, factors, strict=True))
        return *first, *torch.autograd.grad(total, leaves)

    mine = [tensor.to(device).requires_grad_() for tensor in tensors]
    right = [tensor.double().requires_grad_() for tensor in tensors]
    results = gradients(function, mine, on_device)
    for result, expected in zip(results, gradients(reference, right, ranges), strict=True):
        scale = expected.abs().max()
        difference = (result.detach().cpu().double() - expected).abs().max()
        assert difference <= 2 * TOLERANCES[dtype] * scale


@for_each_function
def test_only_needed_gradients(device: torch.device, name: str) -> None:
    ranges = torch.tensor(ranges_of((2, 3))).int().to(device)
    for needed in range(2):
        leaves = [t.to(device) for t in operands(name, torch.float32, 5, 2, 8, 8)]
        leaves[needed].requires_grad_()
        FUNCTIONS[name][0](*leaves, ranges).sum().backward()
        assert leaves[needed].grad is not None
        assert leaves[1 - needed].grad is None


def test_captured(device: torch.device) -> None:
    """One program serves sizes of groups that change from call to call."""
    x, w = operands("linear", torch.bfloat16, 24, 3, 64, 48)
    step = torch_xla_ext.capture(grouped_linear)
    for sizes in ((8, 8, 8), (24, 0, 0), (0, 1, 20), (3, 4, 5)):
        ranges = group_ranges(torch.tensor(sizes))
        result = step(x.to(device), w.to(device), ranges.to(device))
        assert_near(result.cpu(), reference_linear(x.double(), w.double(), ranges.tolist()))


def test_group_ranges(device: torch.device) -> None:
    for dtype in (torch.int32, torch.int64):
        ranges = group_ranges(torch.tensor([2, 0, 3], dtype=dtype, device=device))
        assert ranges.dtype == torch.int32
        assert ranges.tolist() == [[0, 2], [2, 2], [2, 5]]


def test_wrong_operands(device: torch.device) -> None:
    x, w = (t.to(device) for t in operands("matmul", torch.float32, 4, 2, 8, 6))
    ranges = torch.zeros(2, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"operand 1 \(w\): expected dimension 1 to be 8"):
        grouped_matmul(x, w.transpose(1, 2), ranges)
    with pytest.raises(ValueError, match=r"operand 1 \(w\): expected dimension 2 to be 8"):
        grouped_linear(x, w, ranges)
    with pytest.raises(ValueError, match=r"operand 2 \(ranges\): expected dimension 0 to be 2"):
        grouped_matmul(x, w, ranges[:1])
    with pytest.raises(TypeError, match=r"operand 2 \(ranges\): expected dtype S32"):
        grouped_matmul(x, w, ranges.long())
    with pytest.raises(TypeError, match=r"operand 1 \(w\): expected dtype F32"):
        grouped_matmul(x, w.bfloat16(), ranges)
    with pytest.raises(ValueError, match=r"operand 1 \(y\): expected dimension 0 to be 4"):
        grouped_outer(x, x[:2], ranges)
