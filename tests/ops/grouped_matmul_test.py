"""gmm, tgmm and quantized_matmul_int8 against upstream's references, loops over the groups."""

import pytest
import torch
from torch_xla.experimental import custom_kernel

DEVICES = ("cpu", "xla")
MODULES = pytest.mark.parametrize(
    "module", [torch.ops.xla, custom_kernel], ids=["operator", "function"]
)
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
# Rows of each group; some are empty.
SIZES = [[24], [5, 0, 12, 7], [0, 24, 0], [0, 0, 24], [1, 1, 1, 1, 20]]
M, K, N = 24, 16, 12


def reference_gmm(lhs: torch.Tensor, rhs: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return torch.cat(
        [part @ rhs[i] for i, part in enumerate(lhs[: sum(sizes)].split(sizes))]
        + [torch.zeros(lhs.shape[0] - sum(sizes), rhs.shape[2])]
    )


def reference_tgmm(lhs: torch.Tensor, rhs: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    parts = zip(lhs.split(sizes, 1), rhs.split(sizes), strict=True)
    return torch.stack([columns @ rows for columns, rows in parts])


def operands(sizes: list[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(sizes))
    lhs = torch.randn(M, K, generator=generator).to(dtype)
    rhs = torch.randn(len(sizes), K, N, generator=generator).to(dtype)
    return [lhs, rhs, torch.tensor(sizes, dtype=torch.int32)]


def move(tensors: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in tensors]


@MODULES
@ON_DEVICES
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gmm(module: object, device: str, sizes: list[int], dtype: torch.dtype) -> None:
    lhs, rhs, group_sizes = operands(sizes, dtype)
    expected = reference_gmm(lhs.float(), rhs.float(), sizes)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    result = module.gmm(*move([lhs, rhs, group_sizes], device))
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu(), expected.to(dtype), **tolerance)
    transposed = [lhs, rhs.transpose(1, 2).contiguous(), group_sizes]
    result = module.gmm(*move(transposed, device), transpose_rhs=True)
    torch.testing.assert_close(result.cpu(), expected.to(dtype), **tolerance)


@ON_DEVICES
def test_rows_of_no_group(device: str) -> None:
    lhs, rhs, _ = operands([0, 0])
    sizes = torch.tensor([3, 9])
    result = torch.ops.xla.gmm(*move([lhs, rhs, sizes], device)).cpu()
    torch.testing.assert_close(result, reference_gmm(lhs, rhs, [3, 9]))
    assert not result[12:].any()


@ON_DEVICES
def test_some_of_the_groups(device: str) -> None:
    sizes = [5, 0, 12, 7]
    lhs, rhs, group_sizes = operands(sizes)
    expected = reference_gmm(lhs, rhs, sizes)
    expected[:5] = 0
    expected[17:] = 0
    arguments = move([lhs, rhs[1:3], group_sizes], device)
    result = torch.ops.xla.gmm(*arguments, group_offset=torch.tensor(1, device=device))
    torch.testing.assert_close(result.cpu(), expected)
    columns, rows = lhs.t().contiguous(), torch.randn(M, N)
    offset = torch.tensor([2], device=device)
    result = custom_kernel.tgmm(
        *move([columns, rows, group_sizes], device), group_offset=offset, num_actual_groups=2
    )
    torch.testing.assert_close(result.cpu(), reference_tgmm(columns, rows, sizes)[2:])


@ON_DEVICES
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tgmm(device: str, sizes: list[int]) -> None:
    columns, rows = torch.randn(K, M), torch.randn(M, N)
    group_sizes = torch.tensor(sizes, dtype=torch.int32)
    result = custom_kernel.tgmm(*move([columns, rows, group_sizes], device))
    expected = reference_tgmm(columns, rows, sizes)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)


@ON_DEVICES
def test_other_groups_do_not_matter(device: str) -> None:
    """An infinity in one group does not affect another group."""
    lhs, rhs, sizes = operands([4, 20])
    rhs[0], lhs[0] = torch.inf, torch.nan
    result = torch.ops.xla.gmm(*move([lhs, rhs, sizes], device)).cpu()
    torch.testing.assert_close(result[4:], lhs[4:] @ rhs[1])
    rows = torch.randn(M, N)
    rows[1] = torch.inf
    products = custom_kernel.tgmm(*move([lhs.t().contiguous(), rows, sizes], device)).cpu()
    torch.testing.assert_close(products[1], lhs[4:].t() @ rows[4:])


@MODULES
@ON_DEVICES
def test_gradients_of_gmm(module: object, device: str) -> None:
    sizes = [5, 0, 12, 7]
    lhs, rhs, group_sizes = operands(sizes)
    leaves = [lhs.clone().requires_grad_(), rhs.clone().requires_grad_()]
    reference_gmm(*leaves, sizes).square().sum().backward()
    for function in (module.gmm, custom_kernel.GMM.apply):
        mine = [tensor.clone().to(device).requires_grad_() for tensor in (lhs, rhs)]
        function(*mine, group_sizes.to(device)).square().sum().backward()
        for tensor, leaf in zip(mine, leaves, strict=True):
            torch.testing.assert_close(tensor.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)


def test_compiled_gmm() -> None:
    sizes = [5, 0, 12, 7]
    tensors = operands(sizes, torch.bfloat16)
    with torch.no_grad():
        result = torch.compile(torch.ops.xla.gmm, backend="openxla")(*move(tensors, "xla"))
    expected = reference_gmm(tensors[0].float(), tensors[1].float(), sizes).bfloat16()
    torch.testing.assert_close(result.cpu(), expected)


def quantized(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes as upstream's test does."""
    scale = w.abs().amax(1, keepdim=True) / 127
    return (w / scale).round().clamp(-128, 127).to(torch.int8), scale[:, 0]


@MODULES
@ON_DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantize_activation", [False, True])
def test_quantized_matmul(
    module: object, device: str, dtype: torch.dtype, quantize_activation: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 192, generator=generator).to(dtype)
    x[3] = 0
    w, scalar = quantized(torch.randn(64, 192, generator=generator))
    result = module.quantized_matmul_int8(
        *move([x, w, scalar], device), quantize_activation=quantize_activation
    )
    used = x.double()
    if quantize_activation:
        rounded, scale = quantized(x.float())
        rounded[3] = 0  # 0 / 0
        used = rounded.double() * scale.double()[:, None]
    expected = used @ (w.double() * scalar.double()[:, None]).t()
    assert result.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(result.cpu().double(), expected, rtol=tolerance, atol=10 * tolerance)
    assert not result[3].any()


@ON_DEVICES
def test_refusals(device: str) -> None:
    lhs, rhs, sizes = move(operands([5, 19]), device)
    with pytest.raises(ValueError, match=r"gmm: expected .* but got \[24, 16\], \[2, 12, 16\]"):
        torch.ops.xla.gmm(lhs, rhs.transpose(1, 2), sizes)
    with pytest.raises(ValueError, match=r"gmm: expected .* group_sizes \[num_groups\]"):
        torch.ops.xla.gmm(lhs, rhs, sizes[:1])
    with pytest.raises(ValueError, match=r"tgmm: expected lhs \[k, m\]"):
        custom_kernel.tgmm(lhs, lhs, sizes)
    x, w, scalar = lhs, torch.ones(4, 16, dtype=torch.int8, device=device), lhs[0, :4]
    with pytest.raises(ValueError, match="expected w of int8, but got torch"):
        torch.ops.xla.quantized_matmul_int8(x, w.float(), scalar)
    with pytest.raises(ValueError, match=r"scalar \[out\], but got"):
        torch.ops.xla.quantized_matmul_int8(x, w, lhs[0])
    with pytest.raises(NotImplementedError, match="zero_point and quant_block_size"):
        torch.ops.xla.quantized_matmul_int8(x, w, scalar, zero_point=scalar)
