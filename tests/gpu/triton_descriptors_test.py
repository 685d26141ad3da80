"""Tensor descriptors that the host makes, for kernels that Triton has compiled elsewhere.

TRITON_KERNELS is a folder with tests/launchers' kernels for this GPU, as TritonKernel.save writes
them: scaled_by_descriptors with float32 and blocks of [16, 32], product_of_descriptors with
float16, a width of 256 and blocks of [64, 64]. Triton need not be installed.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_xla_ext
from torch_xla_ext import TritonKernel, triton_call

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:

    @dataclass
    class TensorDescriptor:
        base: Tensor
        shape: list[int]
        strides: list[int]
        block_shape: list[int]

    TensorDescriptor.__module__ = "triton.tools.tensor_descriptor"

VERSIONS = ("3.4.0", "3.5.1", "3.9.0")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def load(name: str, version: str) -> TritonKernel:
    folder = os.environ.get("TRITON_KERNELS") or pytest.skip("TRITON_KERNELS is not set")
    return TritonKernel.load(Path(folder, f"{name}_{version}.json"))


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def scaled(kernel: TritonKernel, source: TensorDescriptor, factor: float) -> Tensor:
    rows, columns = source.shape
    (result,) = triton_call(
        kernel,
        source,
        outputs={"out": described(torch.empty(rows, columns, device="meta"), [16, 32])},
        factor=factor,
        grid=(-(-rows // 16), -(-columns // 32)),
    )
    return result


def test_loads_and_stores(version: str, device: torch.device) -> None:
    """The last blocks of rows and columns are not whole ones."""
    kernel = load("scaled_by_descriptors", version)
    for rows, columns in ((60, 48), (1000, 500), (5, 4)):
        x = torch.randn(rows, columns)
        result = scaled(kernel, described(x.to(device), [16, 32]), 3.0)
        assert torch.equal(result.cpu(), x * 3)


def test_part_of_a_tensor_in_place(version: str, device: torch.device) -> None:
    """Elements outside the descriptor's shape stay unchanged."""
    kernel = load("scaled_by_descriptors", version)
    x, state = torch.randn(100, 64), torch.randn(8000)
    target = TensorDescriptor(state.to(device), [70, 40], [100, 1], [16, 32])
    source = TensorDescriptor(x.to(device), [70, 40], [64, 1], [16, 32])
    (after,) = triton_call(kernel, source, target, 0.5, aliases=["out"], grid=(5, 2))
    expected = state.clone()
    expected.as_strided([70, 40], [100, 1]).copy_(x[:70, :40] * 0.5)
    assert torch.equal(after.cpu(), expected)


def test_a_product(version: str, device: torch.device) -> None:
    kernel = load("product_of_descriptors", version)
    a, b = torch.randn(320, 256).half(), torch.randn(192, 256).half()
    (c,) = triton_call(
        kernel,
        *(described(t.to(device), [64, 64]) for t in (a, b)),
        outputs={"c": described(torch.empty(320, 192, device="meta").half(), [64, 64])},
        grid=(5, 3),
    )
    torch.testing.assert_close(c.cpu().float(), a.float() @ b.float().T, rtol=2e-3, atol=2e-2)


def test_replayed_at_other_addresses(version: str, device: torch.device) -> None:
    """Each run makes new maps: a program of 32 calls runs with different tensors each time."""
    kernel = load("scaled_by_descriptors", version)

    def chain(x: Tensor) -> Tensor:
        for number in range(32):
            x = scaled(kernel, described(x, [16, 32]), 2.0 if number % 2 else 0.5) + 0.25
        return x

    captured = torch_xla_ext.capture(chain)
    kept = []
    for _ in range(6):
        x = torch.randn(256, 96)
        kept.append(x.to(device))  # so that the next one is somewhere else
        expected = x
        for number in range(32):
            expected = expected * (2.0 if number % 2 else 0.5) + 0.25
        kept.append(captured(kept[-1]))
        assert torch.equal(kept[-1].cpu(), expected)


def test_an_error_of_the_driver(version: str, device: torch.device) -> None:
    """The stride is no multiple of 16 bytes, which Triton's own descriptors refuse, too."""
    kernel = load("scaled_by_descriptors", version)
    source = described(torch.zeros(40, 40, device=device), [16, 32])
    source.strides = [35, 1]
    with pytest.raises(RuntimeError, match="scaled_by_descriptors: cuTensorMapEncodeTiled: CUDA_"):
        scaled(kernel, source, 1.0).cpu()
