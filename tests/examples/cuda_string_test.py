"""examples/cuda_string.py: its results, and its kernels for each dtype."""

import runpy

import pytest


def test_cuda_string(capsys: pytest.CaptureFixture) -> None:
    names = runpy.run_path("examples/cuda_string.py", run_name="example")
    names["main"]()
    assert "gelu: as PyTorch's, also under torch.compile" in capsys.readouterr().out
    modules = names["gelu"].compile("sm_90a")
    assert list(modules) == ["gelu<float>", "gelu<__half>", "gelu<__nv_bfloat16>"]
    assert all(module.startswith(b"\x7fELF") for module in modules.values())
