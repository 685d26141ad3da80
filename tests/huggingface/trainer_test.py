"""transformers' Trainer and accelerate's loop on XLA, against PyTorch on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface import models
from testing.xla import PLATFORM


def _run(paths: list[str]) -> dict[str, Any]:
    program = Path(models.__file__).with_name("programs.py")
    result = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_losses_of_the_cpu() -> None:
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    without_xla = [path for path in paths if not Path(path, "torch_xla").exists()]
    expected, got = _run(without_xla), _run(paths)
    for name, one in expected.items():
        assert (one["device"], got[name]["device"]) == ("cpu", "xla")
        assert len(one["losses"]) > 3
        assert got[name]["losses"] == pytest.approx(one["losses"], rel=1e-3)
        # XLA:GPU multiplies float32 matrices in TF32.
        rel = 1e-3 if PLATFORM == "CUDA" else 1e-5
        assert got[name]["total"] == pytest.approx(one["total"], rel=rel)
