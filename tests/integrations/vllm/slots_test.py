"""token_slots against a loop."""

from __future__ import annotations

import torch
import torch_xla
from vllm_xla_gpu.attention import token_slots


def test_slots_of_slices() -> None:
    # 5 tokens from slot 30, 3 from slot 112, 1 from slot 7; the fourth does not count.
    slices = torch.tensor([[30, 112, 7, 50], [0, 5, 8, 0], [5, 3, 1, 9]])
    key = torch.zeros(12, 2, 64)
    expected = [30, 31, 32, 33, 34, 112, 113, 114, 7, -1, -1, -1]
    for device in (torch.device("cpu"), torch_xla.device()):
        for dtype in (torch.int32, torch.int64):
            slots = token_slots(
                slices.to(device, dtype), torch.tensor([3], device=device), key.to(device)
            )
            assert slots.dtype == torch.int32
            assert slots.tolist() == expected


def test_operator_is_declared_right() -> None:
    slices = torch.tensor([[4], [0], [2]], dtype=torch.int32)
    count = torch.tensor([1], dtype=torch.int32)
    torch.library.opcheck(token_slots, (slices, count, torch.zeros(3, 1, 64)))
