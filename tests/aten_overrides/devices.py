"""The device of the sweep: torch_xla's, or torch_xla_gpu's with SWEEP_DEVICE=torch_xla_gpu."""

import dataclasses
import functools
import os
from collections.abc import Callable

import torch


@dataclasses.dataclass(frozen=True)
class Device:
    """A device of PyTorch.

    Attributes:
        type: as in torch.device.
        backend: of torch.compile.
        manual_seed: seeds its random numbers.
        sync: compiles and runs pending operations.
    """

    type: str
    backend: str
    manual_seed: Callable[[int], object]
    sync: Callable[[], object]


@functools.cache
def chosen() -> Device:
    """Returns the device that SWEEP_DEVICE names, initialized."""
    name = os.environ.get("SWEEP_DEVICE", "torch_xla")
    if name == "torch_xla":
        import torch_xla

        # As testing.fixtures; torch.testing forbids to set torch.backends.cudnn.allow_tf32.
        torch._C._set_cudnn_allow_tf32(False)
        return Device("xla", "openxla", torch_xla.manual_seed, torch_xla.sync)
    if name == "torch_xla_gpu":
        import torch_xla_gpu

        torch.set_float32_matmul_precision("highest")  # a GPU would multiply in TF32
        kind = torch_xla_gpu.device.TYPE
        return Device(kind, kind, torch.manual_seed, torch.accelerator.synchronize)
    raise ValueError(f"SWEEP_DEVICE must be torch_xla or torch_xla_gpu, but is {name!r}")
