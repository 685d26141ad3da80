"""Profiles of a GPU's kernels, by the plugin's profiler behind the shim."""

from pathlib import Path

import torch
import torch_xla
from torch_xla.core import xla_model
from torch_xla.debug import profiler

from torch_xla_ext.ops import simple_add


def test_a_profile_shows_the_kernel_on_the_device(device: torch.device, tmp_path: Path) -> None:
    a, b = torch.randn(1000).to(device), torch.randn(1000).to(device)
    for run in ("first", "second"):
        folder = tmp_path / run
        profiler.start_trace(str(folder))
        for _ in range(3):
            a = simple_add(a, b)
            torch_xla.sync()
        xla_model.wait_device_ops()
        profiler.stop_trace()
        (profile,) = folder.rglob("*.xplane.pb")
        data = profile.read_bytes()
        assert b"/device:GPU:0" in data, f"{run} profile: nothing of the device"
        assert b"AddKernel" in data, f"{run} profile: no kernel"
