"""The grouped products against a loop over the groups, on the CPU or a GPU."""

from collections.abc import Callable, Sequence

import pytest
import torch
from testing import mxfp4
from testing.samples import Arguments

import torch_xla_ext
from torch_xla_ext.ops import (
    group_ranges,
    grouped_linear,
    grouped_linear_sum,
    grouped_matmul,
    grouped_outer,
    mx_grouped_linear,
    scaled_grouped_linear,
    scaled_grouped_linear_sum,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Relative to a result's largest value: half a unit in the last place, and sums in another order.
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
    assert not result[expected == 0].any()


@for_each_function
@for_each_dtype
@pytest.mark.parametrize(
    ("k", "n"), [(64, 128), (8, 8), (136, 264), (200, 72), (1, 1), (63, 130), (64, 129), (33, 64)]
)
def test_sizes_of_matrices(
    device: torch.device, name: str, dtype: torch.dtype, k: int, n: int
) -> None:
    """Sizes are multiples of tiles, multiples of 8 (16 bytes), or others, for another kernel."""
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
        (37, *(0,) * 20, 3),  # rows of several tiles of a step of few tokens
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
    """On Hopper, large groups have a kernel with different tiles."""
    sizes = (300, 1, 0, 129)
    check(name, operands(name, dtype, 430, len(sizes), k, 264), ranges_of(sizes), device)


@for_each_function
@for_each_dtype
def test_rows_of_no_group(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Rows of no group have results of 0, and do not affect others, even if they are infinite."""
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
    """Row 14, which is in no group, and positions that are no rows add nothing."""
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


KINDS = ("tensor", "channels", "blocks", "channels of blocks")


def with_scales(kind: str, rows: int, k: int, n: int, groups: int) -> tuple[Arguments, Arguments]:
    """Return x, w and their scales; and x and w times their scales, in float64."""
    x, w = (
        tensor.to(torch.float8_e4m3fn)
        for tensor in operands("linear", torch.float32, rows, groups, k, n)
    )
    n_blocks, k_blocks = -(-n // 128), -(-k // 128)
    n_scales = {"tensor": 1, "blocks": n_blocks}.get(kind, n)
    k_scales = k_blocks if "blocks" in kind else 1
    x_scale, w_scale = (
        torch.rand(rows, k_scales) + 0.1,
        torch.rand(groups, n_scales, k_scales) + 0.1,
    )
    of_n = torch.arange(n) // {1: n, n_blocks: 128}.get(n_scales, 1)
    of_k = torch.arange(k) // (k if k_scales == 1 else 128)
    scaled = x.double() * x_scale[:, of_k], w.double() * w_scale[:, of_n][..., of_k]
    return (x, w, x_scale, w_scale), scaled


@pytest.mark.parametrize("kind", KINDS)
@for_each_dtype
@pytest.mark.parametrize(
    ("k", "n"), [(128, 128), (256, 264), (1040, 72), (320, 136), (16, 8), (200, 130), (33, 5)]
)
@pytest.mark.parametrize("sizes", [(3, 0, 70, 1), (300, 1, 0, 129), (1,) * 40], ids=sum)
def test_scaled(
    device: torch.device, kind: str, dtype: torch.dtype, k: int, n: int, sizes: tuple[int, ...]
) -> None:
    """Rows of no group are zeros, even if they and their scales are NaN."""
    rows = sum(sizes) + 7
    ranges = [(begin + 4, end + 4) for begin, end in ranges_of(sizes)]
    tensors, (x, w) = with_scales(kind, rows, k, n, len(sizes))
    for tensor in (tensors[0], tensors[2]):
        tensor[:4] = tensor[-3:] = float("nan")
    expected = reference_linear(x, w, ranges)
    on_device = (*tensors, torch.tensor(ranges).int())
    result = scaled_grouped_linear(*(tensor.to(device) for tensor in on_device), dtype)
    assert (result.dtype, result.shape) == (dtype, expected.shape)
    assert_near(result.cpu(), expected)


@for_each_dtype
def test_scaled_sums(device: torch.device, dtype: torch.dtype) -> None:
    ranges = ranges_of((3, 0, 11))
    tensors, (x, w) = with_scales("blocks", 15, 256, 136, 3)
    position, weights = torch.randint(14, (9, 4), dtype=torch.int32), torch.rand(9, 4)
    arguments = (*tensors, torch.tensor(ranges).int(), position, weights)
    result = scaled_grouped_linear_sum(*(tensor.to(device) for tensor in arguments), dtype).cpu()
    products = reference_linear(x, w, ranges).to(dtype).double()[position.long()]
    assert_near(result, (products * weights.double()[..., None]).sum(1))


@for_each_dtype
@pytest.mark.parametrize(("k", "n"), [(64, 128), (96, 264), (2880, 72), (512, 72), (32, 5)])
@pytest.mark.parametrize(
    "sizes", [(1, 0, 9, 2), (3, 0, 40, 1), (3, 0, 130, 1), (300, 1, 0, 129), (1,) * 40], ids=sum
)
def test_mxfp4(
    device: torch.device, dtype: torch.dtype, k: int, n: int, sizes: tuple[int, ...]
) -> None:
    ranges = [(begin + 4, end + 4) for begin, end in ranges_of(sizes)]
    x = torch.randn(sum(sizes) + 7, k).to(dtype)
    x[:4] = x[-3:] = float("nan")
    w = mxfp4.quantize(torch.randn(len(sizes), n, k) / 8)
    arguments = (x, *w, torch.tensor(ranges).int())
    result = mx_grouped_linear(*(tensor.to(device) for tensor in arguments)).cpu()
    expected = reference_linear(x.double(), mxfp4.values(*w), ranges)
    assert (result.dtype, result.shape) == (dtype, expected.shape)
    assert_near(result, expected)


def test_all_scales_of_mxfp4(device: torch.device) -> None:
    """Each of 32 columns has one element, which is not 0; float32 has the values of most scales."""
    exponents = torch.arange(256)
    codes = torch.zeros(256, 32, 32, dtype=torch.long)
    codes.diagonal(dim1=1, dim2=2).copy_(torch.arange(32) % 16)
    w = mxfp4.pack(codes)
    w_scale = exponents.to(torch.uint8)[:, None, None].expand(-1, 32, 1).contiguous()
    # The larger the scales, the smaller the inputs, so that results are normal numbers.
    x = torch.exp2((127 - exponents).clamp(-120, 120).double()).bfloat16()
    ranges = torch.stack([exponents, exponents + 1], 1).int()
    arguments = (x[:, None].expand(-1, 32).contiguous(), w, w_scale, ranges)
    result = mx_grouped_linear(*(tensor.to(device) for tensor in arguments)).cpu().double()
    expected = mxfp4.values(w, w_scale).diagonal(dim1=1, dim2=2) * x.double()[:, None]
    assert torch.equal(result[2:253], expected[2:253])
    assert result[255].isnan().all()


def test_scales_of_wrong_sizes(device: torch.device) -> None:
    tensors, _ = with_scales("blocks", 4, 256, 136, 2)
    x, w, x_scale, w_scale = (tensor.to(device) for tensor in tensors)
    ranges = torch.zeros(2, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="to be 1, 2 or 136, and 1 or 2, but got 3 and 2"):
        scaled_grouped_linear(x, w, x_scale, w_scale[:, [0, 1, 1]], ranges)
    with pytest.raises(ValueError, match=r"operand 3 \(w_scale\): expected dimension 2 to be 1"):
        scaled_grouped_linear(x, w, x_scale[:, :1], w_scale, ranges)


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
    """One program serves groups whose sizes change from call to call."""
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
