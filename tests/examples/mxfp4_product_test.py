"""examples/mxfp4_product.py: its result, its weights, and its kernel for several GPUs."""

import runpy

import pytest
import torch


def test_mxfp4_product(capsys: pytest.CaptureFixture) -> None:
    names = runpy.run_path("examples/mxfp4_product.py", run_name="example")
    names["main"]()
    assert "mxfp4: as the reference" in capsys.readouterr().out
    # Values that the format represents are kept.
    weight = names["VALUES"].repeat(2, 4) * torch.tensor([[0.25], [8.0]])
    codes, scale = names["quantize"](weight)
    assert (codes.shape, scale.shape) == ((2, 32), (2, 2))
    assert torch.equal(names["dequantize"](codes, scale), weight)
    names["product"].check(architectures=["sm_80", "sm_90a", "sm_100a"])
