"""docs/training.md up to several GPUs: its blocks are one program that runs, learns and resumes."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path("docs/training.md").read_text().partition("## On several GPUs")[0]


@pytest.mark.filterwarnings("ignore:.*captured again")
def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    page: dict[str, object] = {}
    for block in blocks:
        exec(block, page)
    lazy, captured, resumed = capsys.readouterr().out.splitlines()
    rate = page["optimizer"].param_groups[0]["lr"]
    assert float(captured.split()[1]) == pytest.approx(0.0025)  # halved twice
    assert rate.device.type == "xla" and rate.item() == pytest.approx(0.0025)
    assert float(resumed) < float(captured.split()[0]) < float(lazy)
    states = page["optimizer"].state.values()
    assert {state["step"].item() for state in states} == {5.0}
    from_cpu = torch.load("checkpoint.pt", map_location="cpu")
    assert all(value.device.type == "cpu" for value in from_cpu["model"].values())
