"""examples/launchers, as a user runs them."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path("examples/launchers")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("torch_operator", "under torch.compile, as PyTorch's"),
        ("triton_rms_norm", "add_rms_norm: as PyTorch's"),
        ("tvm_ffi_rms_norm", "rmsnorm: as PyTorch's, also under torch.compile"),
    ],
)
def test_example(
    name: str, text: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])  # not pytest's arguments
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert text in capsys.readouterr().out
