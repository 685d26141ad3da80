"""A named target refuses dtypes that torch_xla was told to narrow on the device."""

import os

# Read once, at the first use of a dtype.
os.environ["XLA_USE_BF16"] = "1"

import pytest
import torch
from testing.xla import XLAC


def test_narrowed_input(device: torch.device) -> None:
    x = torch.zeros(2).to(device)
    with pytest.raises(ValueError, match=r'"T": inputs\[0\] is torch.float32 in PyTorch, but narr'):
        XLAC._xla_gpu_custom_call([x], b"", [[2]], [torch.int32], "T")


def test_narrowed_output(device: torch.device) -> None:
    x = torch.zeros(2, dtype=torch.int32).to(device)
    with pytest.raises(ValueError, match=r'"T": output_dtypes\[0\] is torch.float64 in PyTorch'):
        XLAC._xla_gpu_custom_call([x], b"", [[2]], [torch.float64], "T")


def test_other_dtypes_are_accepted(device: torch.device) -> None:
    x = torch.zeros(2, dtype=torch.int32).to(device)
    assert XLAC._xla_gpu_custom_call([x], b"", [[2]], [torch.bfloat16], "T")[0].shape == (2,)
