"""torch._grouped_mm, for which PyTorch has a kernel on CUDA only, against loops over the groups."""

import re

import pytest
import torch
import torch_xla
from testing import programs
from testing.ways import run_by

import torch_xla_ext

OFFSETS = [2, 2, 7, 9]
SHAPES = {
    "rows": ((9, 5), (4, 5, 6)),
    "products of groups": ((5, 9), (9, 6)),
    "columns": ((4, 5, 6), (6, 9)),
    "batches": ((4, 5, 6), (4, 6, 3)),
}
TRANSPOSED = [(False, False), (False, True), (True, False), (True, True)]


def reference(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
    if offsets is None:
        return torch.bmm(a, b)
    ends = offsets.tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == b.dim():
        return torch.stack([a[:, part] @ b[part] for part in parts])
    if a.dim() == 2:
        return torch.cat([a[part] @ b[i] for i, part in enumerate(parts)])
    return torch.cat([a[i] @ b[:, part] for i, part in enumerate(parts)], 1)


def offsets_of(shapes: tuple[tuple[int, ...], ...]) -> torch.Tensor | None:
    is_batched = len(shapes[0]) == len(shapes[1]) == 3
    return None if is_batched else torch.tensor(OFFSETS, dtype=torch.int32)


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
@pytest.mark.parametrize("kind", SHAPES)
def test_products_and_gradients(kind: str, way: str) -> None:
    """Operands are contiguous or transposed views."""
    torch.manual_seed(0)
    offsets = offsets_of(SHAPES[kind])
    for transposed in TRANSPOSED:
        operands = [torch.randn(shape) for shape in SHAPES[kind]]
        stored = [
            (x.mT.contiguous() if is_view else x).requires_grad_()
            for x, is_view in zip(operands, transposed, strict=True)
        ]

        def step(product, a, b, offsets, transposed=transposed):  # noqa: ANN001, ANN202
            views = [x.mT if is_view else x for x, is_view in zip((a, b), transposed, strict=True)]
            result = product(*views, offsets)
            return result.detach(), *torch.autograd.grad((result * result.cos()).sum(), (a, b))

        expected = step(reference, *stored, offsets)
        args = [x.detach().to("xla").requires_grad_() for x in stored]
        args.append(None if offsets is None else offsets.to("xla"))
        function = run_by(way, lambda *args: step(torch._grouped_mm, *args))
        for _ in range(2):
            found = function(*args)
        torch_xla.sync()
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(value.cpu(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    """Rows behind the last group are zeros."""
    x, w = torch.randn(11, 8).to(dtype), torch.randn(4, 6, 8).to(dtype)
    offsets = offsets_of(SHAPES["rows"])
    result = torch._grouped_mm(x.to("xla"), w.to("xla").mT, offsets.to("xla"), out_dtype=dtype)
    assert result.dtype == dtype
    expected = reference(x[:9].float(), w.mT.float(), offsets)
    torch.testing.assert_close(result[:9].cpu().float(), expected, rtol=2**-7, atol=1e-2)
    assert result[9:].eq(0).all()


@pytest.mark.parametrize("is_view", [True, False])
def test_weights_are_not_copied(is_view: bool) -> None:
    """Gradients are not copied either: PyTorch's formula would transpose them."""
    shape = (4, 24, 16) if is_view else (4, 16, 24)
    w = torch.randn(shape).to("xla").requires_grad_()
    x = torch.randn(9, 16).to("xla").requires_grad_()
    offsets = offsets_of(SHAPES["rows"]).to("xla")

    def step(x: torch.Tensor) -> torch.Tensor:
        result = torch._grouped_mm(x, w.mT if is_view else w, offsets)
        return torch.autograd.grad(result.square().sum(), (x, w))

    with programs.compiled() as compiled:
        torch_xla_ext.capture(step)(x)
    program = compiled.with_target("XlaGpuGroupedOuter")
    assert {"XlaGpuGroupedLinear", "XlaGpuGroupedMatmul"} <= set(re.findall(r"XlaGpu\w+", program))
    made = re.findall(r"= (?!\()\S*\[4,(?:24,16|16,24)\]\S* ([\w-]+)\(", program)
    assert set(made) <= {"parameter", "get-tuple-element", "bitcast"}


WRONG = {
    "contraction dimension of mat_a and mat_b must match": ((9, 5), (4, 6, 6), OFFSETS),
    "Have to provide offsets if there is a 2d matrix": ((9, 5), (4, 5, 6), None),
    "or no offset if both matrices are 3d": ((4, 9, 5), (4, 5, 6), OFFSETS),
    "matrix batch sizes have to match": ((9, 5), (3, 5, 6), OFFSETS),
    "batched dimension has to match": ((3, 9, 5), (4, 5, 6), None),
    "mat_a has to be 2 or 3d": ((5,), (4, 5, 6), OFFSETS),
    "mat_b has to be 2 or 3d": ((9, 5), (1, 4, 5, 6), OFFSETS),
    "offs has to be 1D": ((9, 5), (4, 5, 6), [OFFSETS]),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_shapes(text: str) -> None:
    a, b, offsets = WRONG[text]
    if offsets is not None:
        offsets = torch.tensor(offsets, dtype=torch.int32, device="xla")
    with pytest.raises(RuntimeError, match=text):
        torch._grouped_mm(torch.zeros(a, device="xla"), torch.zeros(b, device="xla"), offsets)


def test_other_wrong_arguments() -> None:
    a, b = torch.zeros(9, 5, device="xla"), torch.zeros(4, 5, 6, device="xla")
    offsets = offsets_of(SHAPES["rows"]).to("xla")
    for args, text in {
        (a.double(), b, offsets): "Expected mat_a to be Float32, BFloat16 or Float16 .* got Double",
        (a, b.int(), offsets): "Expected mat_b to be Float32, BFloat16 or Float16 matrix, got Int",
        (a, b.half(), offsets): "Expected mat_b to be Float matrix, got Half",
        (a, b, offsets.long()): "Offsets have to be int32",
        (a, b, offsets, a): "Bias not supported yet",
        (a, b, offsets, None, torch.half): "output dtype must match `mat_a` dtype",
    }.items():
        with pytest.raises(RuntimeError, match=text):
            torch._grouped_mm(*args)
