"""torch_xla's eager mode and its messages about executions are upstream's."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

import torch_xla_ext

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "floor_divide": lambda x: torch.floor_divide(x, 0.3),
    "sort": lambda x: torch.sort(x),
    "layer_norm": lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5),
    "in place": lambda x: x.clamp_(0, 1),
}


def executions(function: Callable[[], object]) -> int:
    xm.wait_device_ops()
    met.clear_all()
    function()
    xm.wait_device_ops()
    return met.metric_data("EagerOpExecuteTime")[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_of_several_operators_is_one_program(name: str) -> None:
    with torch_xla.experimental.eager_mode_context(True):
        x = torch.randn(4, 4, device="xla")
        assert executions(lambda: CALLS[name](x)) == 1


def test_written_arguments_are_computed() -> None:
    norm = torch.nn.BatchNorm1d(4).to("xla")
    with torch_xla.experimental.eager_mode_context(True):
        x = torch.randn(4, 4, device="xla")
        assert executions(lambda: norm(x)) <= 4
        info = torch_xla._XLAC._get_xla_tensor_debug_info(norm.running_mean)
    assert "Data Shape: f32[4]" in info


STEPS = """
import torch, torch_xla
x = torch.ones(2, device="xla") + 1
torch_xla.sync()
torch.compile(lambda x: x * 100, backend="openxla")(x)
"""


def test_causes_are_named_by_upstreams_frames() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", STEPS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PT_XLA_DEBUG": "1"},
    )
    lines = [line.strip() for line in result.stderr.splitlines()]
    causes = [lines[i + 1] for i, line in enumerate(lines) if line.endswith(" Cause")]
    assert causes == [
        "Compilation Analysis:   user torch_xla.sync",
        "Execution Analysis:   user torch_xla.sync",
        "Compilation Analysis:   dynamo is compiling a FX graph to HLO",
        "Execution Analysis:   dynamo is executing a compiled program",
    ]
    assert str(Path(torch_xla_ext.__file__).parent) not in result.stderr
