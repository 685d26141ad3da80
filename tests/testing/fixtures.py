"""Fixtures: the device, a mesh, a seed, and tracing for a GPU on a machine without one."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

# By default, as in PyTorch, a GPU's convolutions use TF32, too coarse to compare with the CPU.
torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def device() -> torch.device:
    """The XLA device that PJRT_DEVICE chooses."""
    return torch_xla.device()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Dynamo has compiled nothing, and torch_xla does not ask to move tensors of the CPU."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found tensor with shape")
        yield


@pytest.fixture(scope="module")
def mesh() -> xs.Mesh:
    """A mesh of two devices; the test file sets CPU_NUM_DEVICES."""
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 2
    return xs.Mesh(np.arange(2), (2,), ("x",))


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are traced as for an H200; they are not run."""
    from torch_xla_ext.custom_call import arguments
    from torch_xla_ext.registry import registration
    from xla_kernels.cuda_source import kernel_calls
    from xla_kernels.triton import triton_call

    monkeypatch.setattr(registration, "device_platform", lambda: "CUDA")
    monkeypatch.setattr(kernel_calls, "compute_capability", lambda: 90)
    monkeypatch.setattr(triton_call, "compute_capability", lambda: 90)
    monkeypatch.setattr(arguments, "_check_registered", lambda *args: None)
