"""all_reduce against PyTorch's sums, on several devices; BUILD sets CPU_NUM_DEVICES."""

import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

import torch_xla_ext
from torch_xla_ext import ops
from torch_xla_ext.ops.all_reduce import WORKSPACE_BYTES
from torch_xla_ext.sharding import PeerMemory

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

SPEC = ("x", None)


class Group:
    """The devices, and a function that adds up their blocks of a matrix's rows."""

    def __init__(self) -> None:
        xr.use_spmd()
        self.count = xr.global_runtime_device_count()
        self.mesh = xs.Mesh(np.arange(self.count), (self.count,), ("x",))
        self.peers = PeerMemory(self.mesh, WORKSPACE_BYTES)

    def put(self, x: torch.Tensor, spec: tuple[str | None, ...] = SPEC) -> torch.Tensor:
        x = x.to("xla")
        xs.mark_sharding(x, self.mesh, spec)
        return x

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        part, peers = (self._inside(t, SPEC) for t in (x, self.peers.table))
        return self._outside(ops.all_reduce(part, peers))

    def norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        part, peers = (self._inside(t, SPEC) for t in (x, self.peers.table))
        residual = self._inside(residual, (None, None))
        weight = self._inside(weight, (None,))
        results = ops.all_reduce_rms_norm(part, residual, weight, peers, epsilon)
        return tuple(map(self._outside, results))

    def _inside(self, x: torch.Tensor, spec: tuple[str | None, ...]) -> torch.Tensor:
        return xs.enable_manual_sharding(x, spec, mesh=self.mesh).global_tensor

    def _outside(self, x: torch.Tensor) -> torch.Tensor:
        return xs.disable_manual_sharding(x, (None, None), x.shape, mesh=self.mesh).global_tensor


@pytest.fixture(scope="module")
def group() -> Group:
    group = Group()
    if group.count == 1:
        pytest.skip("needs several devices")
    return group


def expected(x: torch.Tensor, count: int) -> torch.Tensor:
    """The sum in the order of ranks, rounded once."""
    total = torch.zeros(len(x) // count, x.shape[1])
    for part in x.float().chunk(count):
        total += part
    return total.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (16, 4096), (64, 4096), (5, 136), (257, 4096)])
def test_each_device_gets_the_sum(group: Group, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """The shapes take from one to several rounds of each block."""
    x = torch.randn(group.count * shape[0], shape[1]).to(dtype)
    assert torch.equal(group.sum(group.put(x)).cpu(), expected(x, group.count))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (3, 136), (16, 4096), (65, 2048), (200, 64)])
def test_norm_of_the_sum_plus_a_residual(
    group: Group, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """Each block has up to several rows; the results equal the formula's, rounded at the same
    places."""
    x = torch.randn(group.count * shape[0], shape[1]).to(dtype)
    residual, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    normed, total = group.norm(
        group.put(x), group.put(residual, (None, None)), group.put(weight, (None,)), 0.25
    )
    right = expected(x, group.count).float() + residual.float()
    assert torch.equal(total.cpu(), right.to(dtype))
    right *= torch.rsqrt(right.square().mean(-1, keepdim=True) + 0.25)
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(normed.cpu(), right.to(dtype) * weight, rtol=tolerance, atol=1e-6)


def test_norms_and_sums_in_a_row(group: Group) -> None:
    """Both kernels exchange data in the same memory, with different numbers of blocks."""
    rows, columns = 24, 512
    weight = group.put(torch.ones(columns), (None,))
    for _ in range(10):
        x = torch.randn(group.count * rows, columns)
        residual = torch.zeros(rows, columns)
        for _ in range(3):
            normed, total = group.norm(group.put(x), group.put(residual, (None, None)), weight, 0.0)
            again = group.sum(group.put(x))
            right = expected(x, group.count) + residual
            torch.testing.assert_close(total.cpu(), right)
            torch.testing.assert_close(again.cpu(), right - residual)
            right /= right.square().mean(-1, keepdim=True).sqrt()
            torch.testing.assert_close(normed.cpu(), right)
            residual = right


def test_many_sums_in_a_row(group: Group) -> None:
    """Sizes differ from call to call, so blocks have finished different numbers of rounds."""
    sizes = [(rows, 8 * columns) for rows in (1, 7, 64) for columns in (1, 100, 1000)]
    for turn in range(20):
        inputs = [torch.randn(group.count * rows, columns) for rows, columns in sizes]
        results = [group.sum(group.put(x)) for x in inputs]
        torch_xla.sync()
        for x, result in zip(inputs, results, strict=True):
            assert torch.equal(result.cpu(), expected(x, group.count)), turn


def test_independent_sums(group: Group) -> None:
    """Devices could run these sums of one size in different orders, without an error."""
    for _ in range(20):
        inputs = [torch.randn(group.count * 64, 64) for _ in range(12)]
        results = [group.sum(group.put(x).sin()) for x in inputs]
        torch_xla.sync()
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result.cpu(), expected(x.sin(), group.count))


def test_captured_chain(group: Group) -> None:
    """Each sum depends on the sum before it, as in the layers of a model."""
    weight = torch.randn(32, 64 * group.count) / 16

    @torch_xla_ext.capture
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            shards = [
                xs.enable_manual_sharding(t, (None, "x"), mesh=group.mesh).global_tensor
                for t in (x.repeat(1, 2 * group.count), weight)
            ]
            peers = xs.enable_manual_sharding(group.peers.table, SPEC, mesh=group.mesh)
            total = ops.all_reduce(shards[0] @ shards[1].t(), peers.global_tensor)
            x = xs.disable_manual_sharding(total, (None, None), (8, 32), mesh=group.mesh)
            x = x.global_tensor.tanh()
        return x

    weight_on_devices = weight.to("xla")
    xs.mark_sharding(weight_on_devices, group.mesh, (None, "x"))
    for _ in range(5):
        x = torch.randn(8, 32)
        result = step(x.to("xla"), weight_on_devices)
        right = x
        for _ in range(4):
            right = (right.repeat(1, 2 * group.count) @ weight.t()).tanh()
        torch.testing.assert_close(result.cpu(), right, rtol=1e-4, atol=1e-4)


def test_wrong_operands(group: Group) -> None:
    table = group.peers.table
    with pytest.raises(ValueError, match="x: expected a multiple of 16 bytes but got"):
        ops.all_reduce(torch.zeros(1, 3, device="xla"), table)
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype F16, BF16 or F32"):
        ops.all_reduce(torch.zeros(4, 4, dtype=torch.int32, device="xla"), table)
    with pytest.raises(ValueError, match=f"row of PeerMemory.table but got {group.count} rows"):
        ops.all_reduce(torch.zeros(4, 4, device="xla"), table)
    with pytest.raises(NotImplementedError):
        ops.all_reduce(
            torch.zeros(4, 4, device="xla", requires_grad=True), table[:1]
        ).sum().backward()
    wide = torch.zeros(2, 4100, device="xla")
    with pytest.raises(ValueError, match="expected rows of a multiple of 16 bytes, at most 16384"):
        ops.all_reduce_rms_norm(wide, wide, wide[0], table[:1], 1e-5)


def test_peer_memory_of_a_grid() -> None:
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(count), (1, count), ("x", "y"))
    with pytest.raises(ValueError, match="expected a mesh with one dimension"):
        PeerMemory(mesh, 16)
