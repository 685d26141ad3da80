"""examples/own_kernel_static: a wheel with a kernel of a project outside this one."""

import subprocess
import sys

from torch_xla_ext import Target, registered_targets


def test_kernel_is_registered_for_both_platforms_and_apis() -> None:
    ours = {t for t in registered_targets() if t.name == "XlaGpuScale"}
    assert ours == {
        Target("XlaGpuScale", platform, api)
        for platform in ("CUDA", "Host")
        for api in ("untyped", "ffi")
    }


def test_example() -> None:
    command = [sys.executable, "examples/own_kernel_static/scale.py"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "2.5000" in result.stdout
