"""The installed wheel imports and works where there is no GPU, no driver and no CUDA."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path


def test_the_wheel_under_test_is_ours() -> None:
    assert importlib.metadata.version("torch_xla") == "2.8.1+gpucc1"


def test_import_touches_no_driver() -> None:
    code = (
        "import torch_xla, torch_xla_ext, _XLAC\n"
        "print('FRONT', _XLAC.__file__)\n"
        "print('DRIVER', 'libcuda.so' in open('/proc/self/maps').read())\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    front = Path(out.split("FRONT ")[1].splitlines()[0])
    assert Path(front.parent, "torch_xla/lib/_XLAC.so").exists()
    assert "DRIVER False" in out


def test_a_tensor_can_be_computed_on_the_cpu() -> None:
    import torch
    import torch_xla

    a = torch.arange(3.0, device=torch_xla.device())
    assert torch.equal((a + a).cpu(), torch.tensor([0.0, 2.0, 4.0]))


def test_import_where_torch_has_cuda() -> None:
    """Upstream then loads no stand-ins of torch's CUDA functions, and lacks one in torch 2.8.0."""
    code = (
        "import ctypes, torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "import torch_xla, _XLAC\n"
        "print('FORWARDED', hasattr(ctypes.CDLL(_XLAC.__file__), '_ZN3c104cuda10set_deviceEa'))\n"
        "print((torch.ones(2, device='xla') + 1).tolist())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["FORWARDED True", "[2.0, 2.0]"]
