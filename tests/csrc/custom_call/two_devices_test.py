"""Calls in a process with two devices; tests/csrc/BUILD sets CPU_NUM_DEVICES."""

import re

import pytest
import torch
from testing.xla import XLAC, register_host_kernels


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEcho")


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    return [torch.zeros(2, device=f"xla:{index}") for index in range(2)]


def test_inputs_on_different_devices(tensors: list[torch.Tensor]) -> None:
    text = 'custom call "T": inputs[1] is on xla:1, but inputs[0] is on xla:0'
    with pytest.raises(ValueError, match=re.escape(text)):
        XLAC._xla_gpu_custom_call(tensors, b"", [[2]], [torch.float32], "T")
    with pytest.raises(ValueError, match=re.escape(text)):
        XLAC._xla_custom_call(tensors, "T", [[2]], [torch.float32], False, "", 1, {})


@pytest.mark.parametrize("index", [0, 1])
def test_a_call_runs_where_its_inputs_are(tensors: list[torch.Tensor], index: int) -> None:
    (result,) = XLAC._xla_gpu_custom_call(
        [tensors[index]], b"abc", [[16]], [torch.int64], "TestEcho"
    )
    assert result.device == torch.device("xla", index)
    assert result.cpu().tolist()[:4] == [3, 97, 98, 99]
