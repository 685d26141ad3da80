"""Triton's tensor descriptors that the host makes, with XLA tensors, as kernels' arguments."""

import re
import sys
from pathlib import Path

import pytest
import torch
from testing.xla import hlo
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torch_xla_ext import TritonKernel, compile_triton_kernel, triton_call
from xla_kernels.cuda_source import binary
from xla_kernels.triton import triton_call as triton_module

sys.path.insert(0, str(Path(__file__).parent))
import triton_kernels as kernels

# Not multiples of the block's sizes. Triton 3.4's interpreter needs strides that 16 divides.
ROWS, COLUMNS = 60, 48
GRID = (4, 2)
BLOCK = {"ROWS": 16, "COLUMNS": 32}


def described(tensor: Tensor, block: list[int] | None = None) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, block or [16, 32])


def empty(*shape: int) -> TensorDescriptor:
    """A result."""
    return described(torch.empty(shape, device="meta"))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(ROWS, COLUMNS)


def scaled(source: TensorDescriptor, factor: float) -> Tensor:
    outputs = {"out": empty(*source.shape)}
    kernel = kernels.scaled_by_descriptors
    return triton_call(kernel, source, outputs=outputs, factor=factor, grid=GRID, **BLOCK)[0]


def test_operands_and_results(x: Tensor, device: torch.device) -> None:
    on_device = x.to(device)
    assert torch.equal(scaled(described(on_device), 3.0).cpu(), x * 3)
    assert torch.equal(scaled(described(on_device), 2.0).cpu(), x * 2)
    # The kernel gets a row-major tensor, whatever view this is.
    wide = torch.randn(COLUMNS, 2 * ROWS)
    view = wide.to(device)[:, ::2].t()
    assert torch.equal(scaled(described(view), 2.0).cpu(), wide[:, ::2].t() * 2)


def test_part_of_a_tensor(device: torch.device) -> None:
    """Shape and strides are the descriptor's, not the tensor's."""
    x = torch.randn(8000)
    descriptor = TensorDescriptor(x.to(device), [ROWS, COLUMNS], [112, 1], [16, 32])
    part = x.as_strided([ROWS, COLUMNS], [112, 1])
    assert torch.equal(scaled(descriptor, 2.0).cpu(), part * 2)


def test_in_place(x: Tensor, device: torch.device) -> None:
    state, source = torch.zeros_like(x).to(device), x.to(device)
    (after,) = triton_call(
        kernels.scaled_by_descriptors,
        *(described(source), described(state), 0.5),
        aliases=["out"],
        grid=GRID,
        **BLOCK,
    )
    assert torch.equal(after.cpu(), x * 0.5)
    assert not state.cpu().any()


def test_a_launch(x: Tensor, device: torch.device) -> None:
    source, out = x.to(device), torch.empty(ROWS, COLUMNS, device=device)
    kernels.scaled_by_descriptors[GRID](described(source), described(out), 0.5, **BLOCK)
    assert torch.equal(out.cpu(), x * 0.5)
    assert torch.equal(source.cpu(), x)


def test_a_product(device: torch.device) -> None:
    a, b = torch.randn(32, 64).half(), torch.randn(48, 64).half()
    (c,) = triton_call(
        kernels.product_of_descriptors,
        *(described(t.to(device), [16, 16]) for t in (a, b)),
        outputs={"c": described(torch.empty(32, 48, device="meta").half(), [16, 16])},
        WIDTH=64,
        SIZE=16,
        grid=(2, 3),
    )
    torch.testing.assert_close(c.cpu(), (a.float() @ b.float().T).half(), rtol=1e-2, atol=1e-2)


def compiled(capability: int, x: Tensor) -> TritonKernel:
    return compile_triton_kernel(
        kernels.scaled_by_descriptors,
        described(x),
        outputs={"out": empty(ROWS, COLUMNS)},
        factor=0.5,
        capability=capability,
        **BLOCK,
    )


def words(result: Tensor) -> list[str]:
    """The parameters of the traced launch."""
    (line,) = [line for line in hlo(result).splitlines() if " custom-call(" in line]
    return re.search(r'parameters = \\?"([^"\\]*)', line)[1].split()


def numbers(shape: list[int], strides: list[int]) -> list[str]:
    sizes = [f"x{size.to_bytes(4, 'little').hex()}" for size in shape]
    return sizes + [f"x{stride.to_bytes(8, 'little').hex()}" for stride in strides]


@pytest.mark.usefixtures("on_a_gpu")
def test_a_tensor_map(x: Tensor, device: torch.device) -> None:
    """The launch makes the tensor map, which has the size of the kernel's parameter."""
    given = words(scaled(described(x.to(device)), 0.5))
    # float32, a swizzle of 128 bytes (the block's rows), no fill, 2 dimensions, the box.
    properties = (7, 3, 0, 2, 32, 16), (COLUMNS, ROWS, 4 * COLUMNS)
    description = b"".join(n.to_bytes(4, "little") for n in properties[0])
    description += b"".join(n.to_bytes(8, "little") for n in properties[1])
    expected = numbers([ROWS, COLUMNS], [COLUMNS, 1])
    assert given[:10] == [
        *(f"mt0:{description.hex()}", *expected),
        *(f"mr0:{description.hex()}", *expected),
    ]
    kernel = compiled(90, x)
    sizes = [128 if word[0] == "m" else len(word) // 2 for word in given[:-1]]
    read = binary.read(kernel.cubin).kernels[kernel.name]
    assert read[: len(sizes)] == tuple(sizes)
    assert set(read[len(sizes) :]) == {8}  # pointers to memory that Triton asks for


def test_gpus_without_tensor_maps(
    x: Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None
) -> None:
    monkeypatch.setattr(triton_module, "compute_capability", lambda: 80)
    given = words(scaled(described(x.to(device)), 0.5))
    long = [f"x{n.to_bytes(8, 'little').hex()}" for n in (ROWS, COLUMNS, COLUMNS, 1)]
    assert given[:5] == ["t0", *long]
    kernel = compiled(80, x)
    flags = kernel.descriptors["source"]["flags"]
    assert given[5 : 5 + flags] == ["x00"] * flags
    assert given[5 + flags : 9 + flags] == numbers([ROWS, COLUMNS], [COLUMNS, 1])
    sizes = [8 if word[0] in "tr" else len(word) // 2 for word in given]
    assert binary.read(kernel.cubin).kernels[kernel.name] == tuple(sizes)


def test_a_saved_kernel(
    x: Tensor, device: torch.device, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kernel = compiled(90, x)
    kernel.save(tmp_path / "kernel.json")
    loaded = TritonKernel.load(tmp_path / "kernel.json")
    assert loaded == kernel
    request.getfixturevalue("on_a_gpu")
    source = described(x.to(device))
    (result,) = triton_call(
        loaded, source, outputs={"out": empty(ROWS, COLUMNS)}, factor=0.5, grid=GRID
    )
    assert words(result) == words(scaled(source, 0.5))


@pytest.mark.usefixtures("on_a_gpu")
def test_wrong_descriptors_are_refused(x: Tensor, device: torch.device) -> None:
    kernel, on_device = compiled(90, x), x.to(device)

    def call(source: object) -> None:
        outputs = {"out": empty(ROWS, COLUMNS)}
        triton_call(kernel, source, outputs=outputs, factor=0.5, grid=GRID)

    with pytest.raises(TypeError, match=r"source was compiled as tensordesc<fp32\[16, 32\]>, but "):
        call(on_device)
    with pytest.raises(TypeError, match=r"the argument is tensordesc<fp32\[16, 16\]>"):
        call(described(on_device, [16, 16]))
    with pytest.raises(TypeError, match=r"the argument is tensordesc<bf16\[16, 32\]>"):
        call(described(on_device.bfloat16()))
    with pytest.raises(ValueError, match=r"\[48, 1\], which reach beyond its tensor's 2880 ele"):
        call(TensorDescriptor(on_device, [ROWS + 1, COLUMNS], [COLUMNS, 1], [16, 32]))
