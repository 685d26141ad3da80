"""docs/training.md, on several GPUs: each layout runs as printed, with the losses of one device."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_xla

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

SECTION = Path("docs/training.md").read_text().partition("## On several GPUs")[2]
START, *LAYOUTS, STEP, SAVE = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
ONE_DEVICE = "divide = lambda batch: batch\n"


def run(layout: str, *more: str) -> dict[str, object]:
    program: dict[str, object] = {}
    for block in (START, layout, STEP, *more):
        exec(block, program)
    return program


@pytest.fixture(scope="module")
def loss_of_one_device() -> float:
    return run(ONE_DEVICE)["loss"].item()


def sharding(tensor: torch.Tensor) -> str:
    return torch_xla._XLAC._get_xla_sharding_spec(tensor)


@pytest.mark.parametrize(
    ("layout", "is_divided"),
    [
        pytest.param(LAYOUTS[0], lambda name: False, id="data parallel"),
        pytest.param(LAYOUTS[1], lambda name: True, id="by marks"),
        pytest.param(LAYOUTS[2], lambda name: True, id="FSDPv2"),
        pytest.param(LAYOUTS[3], lambda name: "up" in name or "down.w" in name, id="tensor"),
        pytest.param(LAYOUTS[4], lambda name: "up" in name or "down.w" in name, id="two axes"),
    ],
)
def test_layout(
    layout: str,
    is_divided: Callable[[str], bool],
    loss_of_one_device: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(LAYOUTS) == 5
    monkeypatch.chdir(tmp_path)
    page = run(layout)
    # Within bfloat16's rounding.
    assert page["loss"].item() == pytest.approx(loss_of_one_device, rel=2e-3)
    states = page["optimizer"].state
    for name, parameter in page["model"].named_parameters():
        # XLA may divide parameters that have no mark.
        assert "devices=" in sharding(parameter) or not is_divided(name), name
        for state in ("exp_avg", "exp_avg_sq"):
            assert sharding(states[parameter][state]) == sharding(parameter), name
    values = [parameter.detach().cpu() for parameter in page["model"].parameters()]
    if layout != LAYOUTS[0]:
        exec(SAVE, page)
        for parameter, value in zip(page["model"].parameters(), values, strict=True):
            assert torch.equal(parameter.cpu(), value)
