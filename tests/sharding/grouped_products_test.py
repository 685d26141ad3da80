"""The grouped products on several devices, each with its part; BUILD sets their number."""

import os

import pytest
import torch
import torch_xla.distributed.spmd as xs
from testing import programs  # before the first computation
from testing.spmd import all_sharded, run, sharded

from torch_xla_ext import ops

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made
pytestmark = pytest.mark.usefixtures("num_devices", "nothing_is_gathered")

# Which dimensions of x, w and ranges are sharded, and each device's part of w, [4, 16, 24].
_GROUPED = {
    "groups": ((None, None), ("model", None, None), ("model", None), lambda n: (4 // n, 16, 24)),
    "inner": ((None, "model"), (None, None, "model"), (None, None), lambda n: (4, 16, 24 // n)),
    "columns": ((None, None), (None, "model", None), (None, None), lambda n: (4, 16 // n, 24)),
}


@pytest.mark.parametrize("name", _GROUPED)
def test_grouped_linear(model: xs.Mesh, num_devices: int, name: str) -> None:
    """Devices that have a part of the groups, or of the inner width, add up their results."""
    *specs, shard = _GROUPED[name]
    ranges = torch.tensor([[1, 4], [4, 4], [4, 9], [9, 11]], dtype=torch.int32)
    tensors = torch.randn(12, 24), torch.randn(4, 16, 24), ranges
    args = all_sharded(tensors, model, specs)
    result, program = run(lambda: ops.grouped_linear(*args), "XlaGpuGroupedLinear")
    torch.testing.assert_close(result, ops.grouped_linear(*tensors), rtol=1e-5, atol=1e-5)
    assert f"f32[{','.join(map(str, shard(num_devices)))}]" in program
    assert "f32[4,16,24]" not in program
    columns = name == "columns"
    assert programs.collectives(program) == ([] if columns else ["all-reduce f32[12,16]{1,0}"])


@pytest.mark.parametrize("name", ["groups", "inner"])
def test_grouped_linear_sum(model: xs.Mesh, name: str) -> None:
    """Devices exchange sums of products, not the products."""
    *specs, _ = _GROUPED[name]
    ranges = torch.tensor([[0, 4], [4, 4], [4, 9], [9, 12]], dtype=torch.int32)
    position = torch.randint(12, (3, 4), dtype=torch.int32)
    tensors = torch.randn(12, 24), torch.randn(4, 16, 24), ranges, position, torch.rand(3, 4)
    args = all_sharded(tensors, model, [*specs, None, None])
    result, program = run(lambda: ops.grouped_linear_sum(*args), "XlaGpuGroupedLinearSum")
    torch.testing.assert_close(result, ops.grouped_linear_sum(*tensors), rtol=1e-5, atol=1e-5)
    assert programs.collectives(program) == ["all-reduce f32[3,16]{1,0}"]


# How many scales w, [4, 1024, 1024], has along n and k; and which dimensions of x, w and its scales
# are sharded.
_SCALED = {
    "blocks of columns": ((8, 8), (None, None), (None, "model", None), (None, "model", None)),
    "blocks of inner": ((8, 8), (None, "model"), (None, None, "model"), (None, None, "model")),
    "columns": ((1024, 1), (None, None), (None, "model", None), (None, "model", None)),
    "inner": ((1, 1), (None, "model"), (None, None, "model"), (None, None, None)),
}


@pytest.mark.parametrize("name", _SCALED)
def test_scaled_grouped_linear_sum(model: xs.Mesh, num_devices: int, name: str) -> None:
    """Dimensions with scales of blocks are divided between blocks."""
    (n_scales, k_scales), x_spec, w_spec, scale_spec = _SCALED[name]
    tensors = (
        torch.randn(12, 1024).to(torch.float8_e4m3fn),
        torch.randn(4, 1024, 1024).to(torch.float8_e4m3fn),
        torch.rand(12, k_scales),
        torch.rand(4, n_scales, k_scales),
        torch.tensor([[0, 4], [4, 4], [4, 9], [9, 12]], dtype=torch.int32),
        torch.randint(12, (3, 4), dtype=torch.int32),
        torch.rand(3, 4),
    )
    x_scale_spec = x_spec if k_scales > 1 else (None, None)
    specs = x_spec, w_spec, x_scale_spec, scale_spec, None, None, None
    args = all_sharded(tensors, model, specs)
    result, program = run(
        lambda: ops.scaled_grouped_linear_sum(*args, torch.float32), "XlaGpuScaledGroupedLinearSum"
    )
    expected = ops.scaled_grouped_linear_sum(*tensors, torch.float32)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-3)
    part = 1024 // num_devices
    shape = f"4,{part},1024" if "columns" in name else f"4,1024,{part}"
    assert f"f8e4m3fn[{shape}]" in program and "f8e4m3fn[4,1024,1024]" not in program
    columns = "columns" in name
    assert programs.collectives(program) == ([] if columns else ["all-reduce f32[3,1024]{1,0}"])


def test_gradients_of_grouped_matmul(model: xs.Mesh, num_devices: int) -> None:
    """Each device computes its groups' gradients; gradients of the rows are sums over devices."""
    x, w, grad = torch.randn(12, 24), torch.randn(4, 24, 16), torch.randn(12, 16)
    ranges = torch.tensor([[0, 4], [4, 4], [4, 9], [9, 12]], dtype=torch.int32)
    mine = [sharded(x, model).requires_grad_()]
    mine.append(sharded(w, model, ("model", None, None)).requires_grad_())
    on_devices = sharded(ranges, model, ("model", None))
    right = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    (ops.grouped_matmul(*mine, on_devices) * sharded(grad, model)).sum().backward()
    (ops.grouped_matmul(*right, ranges) * grad).sum().backward()
    for tensor, expected in zip(mine, right, strict=True):
        torch.testing.assert_close(tensor.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-5)
