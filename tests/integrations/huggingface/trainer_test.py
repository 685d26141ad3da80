"""transformers' Trainer and accelerate's loop on XLA, against PyTorch on the CPU."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from testing.scripts import run_program

from integrations.huggingface import models

PROGRAM = Path(models.__file__).with_name("programs.py")


_WITHOUT_XLA = """
import runpy, sys
sys.modules["torch_xla"] = None  # as if it were not installed
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def _without_xla() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", _WITHOUT_XLA, PROGRAM]
    return subprocess.run(command, capture_output=True, text=True)


def _found(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_losses_of_the_cpu() -> None:
    expected, got = _found(_without_xla()), _found(run_program(PROGRAM))
    for name, one in expected.items():
        assert (one["device"], got[name]["device"]) == ("cpu", "xla")
        assert len(one["losses"]) > 3
        assert got[name]["losses"] == pytest.approx(one["losses"], rel=1e-3)
        assert got[name]["total"] == pytest.approx(one["total"], rel=1e-5)


def test_last_batch_of_a_loader() -> None:
    """Only the last batch counts as the last one, however far the loader reads ahead."""
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Linear(2, 2)
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
    model, loader = accelerator.prepare(model, torch.utils.data.DataLoader(dataset))
    for _ in range(2):
        steps, last, values = [], [], []
        for (x,) in loader:
            time.sleep(0.1)
            with accelerator.accumulate(model):
                steps.append(accelerator.sync_gradients)
            last.append(accelerator.gradient_state.end_of_dataloader)
            values.append(x[0, 0].item())
        assert steps == [False, True] * 3
        assert last == [False] * 5 + [True]
        assert values == [0, 2, 4, 6, 8, 10]
