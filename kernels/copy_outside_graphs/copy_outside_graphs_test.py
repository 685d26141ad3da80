"""copy_outside_graphs on the CPU, or on GPUs with PJRT_DEVICE=CUDA; BUILD sets CPU_NUM_DEVICES."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing.xla import PLATFORM

from torch_xla_ext.ops import copy_outside_graphs

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (4, 0), (3, 257)], ids=str)
def test_a_copy_has_the_same_values(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (torch.randn(shape) * 100).to(dtype)
    result = copy_outside_graphs(x.to("xla")).cpu()
    assert result.dtype == dtype
    assert torch.equal(result, x)


def test_copies_of_views() -> None:
    x = torch.arange(24).reshape(4, 6)
    on_device = x.to("xla")
    assert torch.equal(copy_outside_graphs(on_device.t()).cpu(), x.t())
    assert torch.equal(copy_outside_graphs(on_device[1:3, ::2]).cpu(), x[1:3, ::2])


def test_the_program_calls_it() -> None:
    """The program has the call. XLA would drop an ordinary copy, and read the argument itself."""
    result = copy_outside_graphs(torch.ones(3, device="xla")) + 1
    text = torch_xla._XLAC._get_xla_tensors_hlo([result])
    assert 'custom_call_target="XlaGpuCopyOutsideGraphs"' in text


def test_wrong_dtype() -> None:
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype"):
        copy_outside_graphs(torch.zeros(3, dtype=torch.bool, device="xla"))


@pytest.mark.skipif(PLATFORM != "CUDA", reason="needs CUDA graphs")
def test_no_graph_holds_it(tmp_path: Path) -> None:
    """No CUDA graph is in the program's dump; as many calls of another kernel would be one."""
    code = """
import torch, torch_xla
from torch_xla_ext import ops
y = torch.ones(3, device="xla")
for number in range(12):
    y = ops.copy_outside_graphs(y)
assert y.tolist() == [1, 1, 1]
"""
    flags = f"--xla_dump_to={tmp_path} {os.environ.get('XLA_FLAGS', '')}"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"XLA_FLAGS": flags}, check=True)
    texts = [file.read_text() for file in tmp_path.glob("*.thunk_sequence*.txt")]
    calls = [text for text in texts if text.count("kCustomCall") >= 12]
    assert calls
    assert not any("kCommandBuffer" in text for text in calls)


def test_shards_and_copies() -> None:
    """This test is the last one, because it gives the process several devices."""
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    if count == 1:
        pytest.skip("needs several devices")
    mesh = xs.Mesh(np.arange(count), (count,), ("x",))
    x = torch.randn(count * 3, 4)
    for spec in (("x", None), (None, None)):
        on_device = x.to("xla")
        xs.mark_sharding(on_device, mesh, spec)
        assert torch.equal(copy_outside_graphs(on_device).cpu(), x)
