"""_xla_custom_call equals upstream's function, except for its hash and its errors."""

import pytest
import torch
from testing.xla import XLAC, custom_call_lines, register_host_kernels
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEchoSingle", "TestEcho")


def test_positional_call(device: torch.device) -> None:
    x = torch.zeros(2).to(device)
    outputs = XLAC._xla_custom_call([x], "T", [[3]], [torch.float32], True, "cfg", 1, {"k": "v"})
    (line,) = custom_call_lines(*outputs)
    assert line == (
        '%custom-call = f32[3]{0} custom-call(f32[2]{0} %p0), custom_call_target="T", '
        'custom_call_has_side_effect=true, frontend_attributes={k="v"}, backend_config="cfg"'
    )


def test_runs_with_one_result(device: torch.device) -> None:
    x = torch.zeros(2).to(device)
    result = XLAC._xla_custom_call(
        [x], "TestEchoSingle", [[16]], [torch.int64], False, "abc", 3, {}
    )[0]
    assert result.cpu().tolist()[:4] == [3, 97, 98, 99]


def test_upstreams_stablehlo_custom_call(device: torch.device) -> None:
    x = torch.zeros(2).to(device)
    result = stablehlo_custom_call((x,), "TestEchoSingle", [[16]], [torch.int64], api_version=3)
    assert result.cpu().tolist()[0] == 0
